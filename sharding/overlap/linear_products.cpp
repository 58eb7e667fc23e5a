#include "sharding/overlap/linear_products.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "ir/analysis/operand_source.h"

namespace shadowgraph {
namespace {

constexpr std::string_view kGather = "_c10d_functional::all_gather_into_tensor";
constexpr std::string_view kScatter = "_c10d_functional::reduce_scatter_tensor";
constexpr std::string_view kReduce = "_c10d_functional::all_reduce";

bool calls(const Graph& graph, NodeId node, std::string_view name) { return graph.target(node).name() == name; }

ValueId operand(const Graph& graph, NodeId node, std::string_view name) {
  const Argument* found = graph.find_argument(node, name);
  return found != nullptr && found->kind == ArgumentKind::kValue ? found->ref.value : ValueId();
}

bool is_product(const Graph& graph, NodeId node) { return calls(graph, node, "aten::mm"); }

// wait_tensor gives its operand back: it counts as a collective, not as a view.
bool is_plain_view(const Graph& graph, NodeId node) {
  return graph.facts(node).is_view && !graph.facts(node).collective && !graph.is_placeholder(node);
}

ValueId behind_views(const Graph& graph, ValueId value) { return source_of(graph, value, Behind::kViews); }

bool is_weight(const Graph& graph, ValueId value) { return parameter_behind(graph, value, Behind::kCasts).valid(); }

// The operand of a product that is no weight, where the other one is; invalid: it is no such product.
ValueId beside_weight(const Graph& graph, NodeId product) {
  const ValueId left = operand(graph, product, "self"), right = operand(graph, product, "mat2");
  if (is_weight(graph, left) == is_weight(graph, right)) return {};
  return is_weight(graph, left) ? right : left;
}

// Products that read a value, or views of it.
std::vector<NodeId> products_of(const Graph& graph, ValueId value, std::vector<NodeId>* others = nullptr) {
  std::vector<NodeId> products;
  std::vector<ValueId> open{value};
  while (!open.empty()) {
    const ValueId v = open.back();
    open.pop_back();
    graph.for_each_use(v, [&](NodeId user) {
      if (is_product(graph, user)) {
        if (std::ranges::find(products, user) == products.end()) products.push_back(user);
      } else if (is_plain_view(graph, user)) {
        graph.for_each_output(user, [&](ValueId made) { open.push_back(made); });
      } else if (others != nullptr) {
        others->push_back(user);
      }
    });
  }
  std::ranges::sort(products, [&](NodeId a, NodeId b) { return graph.is_before(a, b); });
  return products;
}

// What is summed into a value: products with a weight. Empty if there is anything else.
std::vector<NodeId> summed(const Graph& graph, ValueId value) {
  std::vector<NodeId> products;
  std::vector<ValueId> open{value};
  while (!open.empty()) {
    const ValueId v = behind_views(graph, open.back());
    open.pop_back();
    const NodeId producer = graph.value(v).producer;
    if (is_product(graph, producer) && beside_weight(graph, producer).valid()) {
      products.push_back(producer);
    } else if (calls(graph, producer, "aten::add.Tensor") || calls(graph, producer, "aten::add_.Tensor")) {
      for (const char* name : {"self", "other"}) {
        const ValueId part = operand(graph, producer, name);
        if (!part.valid()) return {};
        open.push_back(part);
      }
    } else if (calls(graph, producer, "aten::clone")) {  // pieces of each rank come to lie together
      open.push_back(operand(graph, producer, "self"));
    } else {
      return {};
    }
  }
  return products;
}

}  // namespace

std::vector<InputGradientSum> input_gradient_sums(const Graph& graph) {
  std::vector<InputGradientSum> sums;
  for (const NodeId node : graph.nodes()) {
    if (graph.node(node).phase != Graph::kBackward) continue;
    if (!calls(graph, node, kScatter) && !calls(graph, node, kReduce)) continue;
    InputGradientSum sum{.collective = node, .products = summed(graph, operand(graph, node, "input"))};
    for (const NodeId product : sum.products) {
      const ValueId gradient = behind_views(graph, beside_weight(graph, product));
      for (const NodeId other : products_of(graph, gradient)) {
        const bool is_weights = other != product && graph.node(other).phase == Graph::kBackward &&
                                !is_weight(graph, operand(graph, other, "self")) &&
                                !is_weight(graph, operand(graph, other, "mat2"));
        if (is_weights) sum.weight_gradients.push_back(other);
      }
    }
    if (!sum.weight_gradients.empty()) sums.push_back(std::move(sum));
  }
  return sums;
}

NodeId gather_behind(const Graph& graph, ValueId operand_of_product) {
  const NodeId wait = graph.value(behind_views(graph, operand_of_product)).producer;
  if (!calls(graph, wait, "_c10d_functional::wait_tensor")) return {};
  const NodeId gather = graph.value(operand(graph, wait, "tensor")).producer;
  return calls(graph, gather, kGather) ? gather : NodeId();
}

std::vector<ProductInPieces> products_in_pieces(const Graph& graph, const std::vector<InputGradientSum>& hidden) {
  std::set<NodeId> is_hidden;
  for (const InputGradientSum& sum : hidden) is_hidden.insert(sum.collective);
  std::vector<ProductInPieces> found;
  std::set<NodeId> taken;
  for (const NodeId node : graph.nodes()) {
    const bool gathers = calls(graph, node, kGather);
    if (!gathers && !calls(graph, node, kScatter)) continue;
    const Argument* size = graph.find_argument(node, "group_size");
    if (size == nullptr || size->kind != ArgumentKind::kInt || size->i < 2) continue;
    ProductInPieces one{.collective = node, .pieces = size->i};
    if (gathers) {
      const NodeId wait = graph.node(node).next;
      if (!calls(graph, wait, "_c10d_functional::wait_tensor")) continue;
      std::vector<NodeId> readers = products_of(graph, graph.results(wait)[0].ref.value, &one.others);
      for (const NodeId reader : readers) {
        const bool by_rows = is_weight(graph, operand(graph, reader, "mat2")) &&
                             gather_behind(graph, operand(graph, reader, "self")) == node;
        if (by_rows && !one.product.valid()) {
          one.product = reader;
        } else if (!by_rows) {
          one.others.push_back(reader);
        }
      }
      if (!one.product.valid()) continue;
    } else {
      if (is_hidden.contains(node)) continue;
      const ValueId made = behind_views(graph, operand(graph, node, "input"));
      const NodeId product = graph.value(made).producer;
      if (!is_product(graph, product) || !is_weight(graph, operand(graph, product, "mat2"))) continue;
      one.product = product;
    }
    if (taken.insert(one.product).second) found.push_back(std::move(one));  // a product goes with one collective
  }
  return found;
}

}  // namespace shadowgraph
