#include "sharding/plan/hidden_collectives.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/analysis/operand_source.h"

namespace shadowgraph {
namespace {

bool is_product(const Graph& graph, NodeId node) { return graph.target(node).name() == "aten::mm"; }

ValueId operand(const Graph& graph, NodeId node, std::string_view name) {
  const Argument* found = graph.find_argument(node, name);
  return found != nullptr && found->kind == ArgumentKind::kValue ? found->ref.value : ValueId();
}

bool is_weight(const Graph& graph, ValueId value) { return parameter_behind(graph, value, Behind::kCasts).valid(); }

// The operand beside a weight; invalid: none of them is one, or both are.
ValueId beside_weight(const Graph& graph, NodeId product) {
  const ValueId left = operand(graph, product, "self"), right = operand(graph, product, "mat2");
  if (is_weight(graph, left) == is_weight(graph, right)) return {};
  return is_weight(graph, left) ? right : left;
}

// A linear layer's views of its rows: transposed ones, as heads of attention are, have others.
bool keeps_rows(const Graph& graph, NodeId node) {
  const std::string_view name = graph.target(node).name();
  return name == "aten::view" || name == "aten::_unsafe_view";
}

}  // namespace

HiddenCollectives::HiddenCollectives(const Graph& graph, const StepTime& time, CollectiveOverlap overlap, int64_t ranks)
    : graph_(graph),
      time_(time),
      in_pieces_(overlap == CollectiveOverlap::kPieces),
      ranks_(static_cast<double>(ranks)) {
  if (overlap == CollectiveOverlap::kNone) return;
  find_weight_gradients();
  find_sums();
  find_gathers();
}

void HiddenCollectives::find_weight_gradients() {
  for (const NodeId node : graph_.nodes()) {
    if (graph_.node(node).phase != Graph::kBackward || !is_product(graph_, node)) continue;
    const ValueId left = operand(graph_, node, "self"), right = operand(graph_, node, "mat2");
    if (is_weight(graph_, left) || is_weight(graph_, right)) continue;
    for (const ValueId factor : {left, right}) of_weights_[source_of(graph_, factor, Behind::kViews)] += seconds(node);
  }
}

// An input gradient hides behind the weight gradients of the same outputs. What forward sums goes in pieces.
void HiddenCollectives::find_sums() {
  for (const NodeId node : graph_.nodes()) {
    Products found;
    const std::string_view name = graph_.target(node).name();
    if (is_product(graph_, node)) {
      const ValueId beside = beside_weight(graph_, node);
      const bool backward = graph_.node(node).phase == Graph::kBackward;
      if (backward && beside.valid()) {
        found.reduce = std::as_const(of_weights_)[source_of(graph_, beside, Behind::kViews)];
        found.scatter = found.reduce;
      } else if (backward) {
        found.weight_gradient = 2 * seconds(node);  // until the next one is to be summed: it, and its input gradient
      } else if (beside.valid() && in_pieces_) {
        found.scatter = seconds_in_pieces(node);
      }
    } else if (name == "aten::add.Tensor" || name == "aten::add_.Tensor") {  // of products that are summed once
      const Argument* other = graph_.find_argument(node, "other");
      if (other->kind != ArgumentKind::kValue) continue;
      const Products& left = beside(operand(graph_, node, "self"));
      const Products& right = beside(other->ref.value);
      if (left.reduce > 0 && right.reduce > 0) found.reduce = found.scatter = left.reduce + right.reduce;
    } else if (keeps_rows(graph_, node) || name == "aten::clone") {
      found = beside(operand(graph_, node, "self"));
    } else if (name == "aten::t") {
      found.weight_gradient = beside(operand(graph_, node, "self")).weight_gradient;
    }
    if (found.scatter == 0 && found.weight_gradient == 0) continue;
    graph_.for_each_output(node, [&](ValueId v) { beside_[v] = found; });
  }
}

// Rows arrive while the product of those before runs, where products go in pieces: one of them waits for the rows. Those
// that forward gathers are gathered again while gradients of the products' inputs are computed, which takes as long.
void HiddenCollectives::find_gathers() {
  std::vector<NodeId> nodes;
  for (const NodeId node : graph_.nodes()) nodes.push_back(node);
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
    Products found;
    if (is_product(graph_, *node) && is_weight(graph_, operand(graph_, *node, "mat2"))) {
      if (in_pieces_) found.gather = seconds_in_pieces(*node);
      if (graph_.node(*node).phase == Graph::kForward) found.gather_again = seconds(*node);
    } else if (keeps_rows(graph_, *node)) {
      graph_.for_each_output(*node, [&](ValueId v) {
        found.gather = std::max(found.gather, beside(v).gather);
        found.gather_again += beside(v).gather_again;
      });
    }
    if (found.gather == 0 && found.gather_again == 0) continue;
    Products& read = beside_[operand(graph_, *node, "self")];
    read.gather = std::max(read.gather, found.gather);
    read.gather_again += found.gather_again;
  }
}

}  // namespace shadowgraph
