#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <vector>

#include "core/fake/process_groups.h"
#include "ir/analysis/module_tree.h"
#include "ir/analysis/operand_source.h"
#include "ir/edit/bulk_edits.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/passes/shapes.h"
#include "sharding/ranks/ranks.h"

namespace shadowgraph {

std::vector<int64_t> ranks_of_group(int64_t ranks, int64_t apart) {
  std::vector<int64_t> all;
  for (int64_t r = 0; r < ranks; ++r) all.push_back(r * apart);
  return all;
}

void add_group_note(Graph& graph, const ProcessGroupInfo& group) {
  NodeId first = graph.first();
  while (graph.is_placeholder(first)) first = graph.node(first).next;
  InsertionPoint(graph, first)
      .insert(graph.intern_target(process_group_target()),
              {graph.string_argument(group.name), Argument::of_int(group.size), Argument::of_int(group.rank),
               graph.int_list(group.ranks), graph.string_argument(group.axis)});
}

GroupsOfGraph::GroupsOfGraph(const Graph& graph) {
  for (const ProcessGroupInfo& info : process_groups(graph)) {
    if (find_process_group(info.name)) continue;
    fake_process_group(info);
    names_.push_back(info.name);
  }
}

GroupsOfGraph::~GroupsOfGraph() {
  for (const std::string& name : names_) unregister_fake_process_group(name);
}

namespace {

constexpr const char* kGroup = "experts";
constexpr const char* kNote = "expert_ranks";

struct GroupedProduct {
  NodeId node;
  ValueId left, right, ends;
  NodeId parameter;  // weights of the experts; invalid: the product is their gradient
};

std::vector<GroupedProduct> grouped_products(const Graph& graph) {
  std::vector<GroupedProduct> products;
  for (const NodeId node : nodes_calling(graph, "aten::_grouped_mm")) {
    const auto operand = [&](const char* name) { return graph.find_argument(node, name)->ref.value; };
    const Argument* ends = graph.find_argument(node, "offs");
    if (ends == nullptr || ends->kind != ArgumentKind::kValue) {
      throw Error("expert parallelism does not support experts with a fixed number of rows (_grouped_mm without offs)");
    }
    GroupedProduct product{.node = node, .left = operand("self"), .right = operand("mat2"), .ends = ends->ref.value};
    if (graph.sizes(product.right).size() == 3) {
      product.parameter = parameter_of_operand(graph, product.right, LookThrough::kViews);
      if (!product.parameter.valid()) {
        throw Error(fmt::format("expert parallelism needs parameters as experts' weights; in {} they are not",
                                module_path(graph, node)));
      }
    }
    products.push_back(product);
  }
  return products;
}

// Throws Error if a module has further parameters indexed by expert: other ranks hold some of the experts.
void check_other_parameters(const Graph& graph, const std::vector<GroupedProduct>& products, int64_t experts) {
  std::set<std::string> modules;
  std::set<NodeId> weights;
  for (const GroupedProduct& product : products) {
    modules.insert(module_path(graph, product.node));
    weights.insert(product.parameter);
  }
  for (const NodeId node : graph.nodes()) {
    if (!graph.is_placeholder(node)) break;
    if (graph.node(node).target != target_of(Builtin::kParameter) || weights.contains(node)) continue;
    const std::string name = placeholder_name(graph, node);
    const auto sizes = graph.sizes(graph.results(node)[0].ref.value);
    if (sizes.empty() || sizes[0] != experts || !modules.contains(name.substr(0, name.rfind('.')))) continue;
    throw Error(
        fmt::format("expert parallelism does not support {}: a per-expert parameter (such as a bias) that is not an "
                    "operand of the experts' products",
                    name));
  }
}

// The part of a step that runs on the experts' ranks.
class ExpertSide {
 public:
  ExpertSide(const Graph& graph, const std::vector<GroupedProduct>& products) : graph_(graph) {
    std::set<std::string> modules;
    for (const GroupedProduct& product : products) {
      modules.insert(module_path(graph, product.node));
      side_[product.node] = kBehind | kBefore;
    }
    std::vector<NodeId> inside;
    for (const NodeId node : graph.nodes()) {
      if (graph.is_placeholder(node) || graph.node(node).target == target_of(Builtin::kGradient)) continue;
      if (modules.contains(module_path(graph, node))) inside.push_back(node);
    }
    const auto is = [&](NodeId node, uint8_t what) { return (std::as_const(side_)[node] & what) != 0; };
    for (const NodeId node : inside) {
      graph.for_each_input(node, [&](ValueId v) {
        if (is(graph.value(v).producer, kBehind)) side_[node] |= kBehind;
      });
    }
    for (auto node = inside.rbegin(); node != inside.rend(); ++node) {
      bool only_there = true;
      graph.for_each_output(*node, [&](ValueId v) {
        graph.for_each_use(v, [&](NodeId user) {
          if (is(user, kBefore)) side_[*node] |= kBefore;
          only_there &= contains(user);
        });
      });
      // Views of rows stay on the side of their source.
      if (graph.facts(*node).is_view && is(*node, kBefore) && only_there) side_[*node] |= kBehind;
    }
  }

  bool contains(NodeId node) const { return side_[node] == (kBehind | kBefore); }

 private:
  static constexpr uint8_t kBehind = 1, kBefore = 2;  // after or before a product, within its module
  const Graph& graph_;
  IdMap<NodeId, uint8_t> side_;
};

class ExpertExchange {
 public:
  ExpertExchange(Graph& graph, const ExpertRanks& over, const ExpertLayers& layers)
      : graph_(graph), over_(over), layers_(layers), products_(grouped_products(graph)), side_(graph, products_) {}

  void run() {
    add_group_note(
        graph_,
        {.name = kGroup, .size = over_.ranks, .ranks = ranks_of_group(over_.ranks, over_.apart), .axis = kGroup});
    for (const GroupedProduct& product : products_) {
      exchange_ends(product);
      if (!product.parameter.valid()) gradients_.insert(product.node);
    }
    std::vector<NodeId> nodes;
    for (const NodeId node : graph_.nodes()) {
      if (side_.contains(node)) nodes.push_back(node);
    }
    for (const NodeId node : nodes) {
      std::vector<ValueId> comes, goes;
      graph_.for_each_input(node, [&](ValueId v) { comes.push_back(v); });
      graph_.for_each_output(node, [&](ValueId v) { goes.push_back(v); });
      for (const ValueId value : comes) send_there(value, node);
      for (const ValueId value : goes) send_back(value, node);
    }
    free_storages_after_last_use(graph_, changed_);
    cut_parameters();
  }

 private:
  int64_t padded() const {
    return std::llround(
               std::ceil(static_cast<double>(layers_.rows) * over_.capacity / static_cast<double>(over_.ranks))) *
           over_.ranks;
  }
  bool is_rows(ValueId value) const {
    const auto sizes = graph_.sizes(value);
    return !sizes.empty() && sizes[0] == layers_.rows;
  }

  // Appends a call with one result: a view, or contiguous in new memory.
  ValueId call(InsertionPoint& at, const char* name, ValueId of, std::vector<Argument> more,
               const std::vector<int64_t>& sizes, bool view = false) {
    more.insert(more.begin(), Argument::of_value(of));
    const NodeId node = at.insert(graph_.intern_operator(name), more);
    new_.insert(node);
    std::vector<int64_t> strides(sizes.size(), 1);
    for (size_t i = sizes.size(); i-- > 1;) strides[i - 1] = strides[i] * sizes[i];
    const Value like = graph_.value(of);
    StorageId storage = like.storage;
    if (!view) {
      const Storage& old = graph_.storage(like.storage);
      const int64_t element = graph_.logical_bytes(of) / std::max<int64_t>(1, graph_.numel(of));
      const int64_t bytes = element * (sizes.empty() ? 1 : strides[0] * sizes[0]);
      storage = graph_.add_storage(
          {.bytes = bytes, .device_type = old.device_type, .device_index = old.device_index, .born = node});
      changed_.insert(storage);
    }
    return graph_.add_tensor_result(node, {.dtype = like.dtype,
                                           .sizes = sizes,
                                           .strides = strides,
                                           .storage = storage,
                                           .offset = view ? like.offset : 0,
                                           .device = like.device(),
                                           .requires_grad = like.requires_grad});
  }

  ValueId clone(InsertionPoint& at, ValueId value, const std::vector<int64_t>& sizes) {
    return call(at, "aten::clone", value, {Argument::of_int(static_cast<int64_t>(c10::MemoryFormat::Contiguous))},
                sizes);
  }

  ValueId all_to_all(InsertionPoint& at, ValueId value, const std::vector<int64_t>& sizes) {
    const std::vector<int64_t> parts(static_cast<size_t>(over_.ranks), sizes[0] / over_.ranks);
    const ValueId sent = call(at, "_c10d_functional::all_to_all_single", value,
                              {graph_.int_list(parts), graph_.int_list(parts), graph_.string_argument(kGroup)}, sizes);
    return call(at, "_c10d_functional::wait_tensor", sent, {}, sizes, /*view=*/true);
  }

  // Computes the row ends of a rank's experts from the counts of all ranks.
  void exchange_ends(const GroupedProduct& product) {
    ValueId& mine = ends_[product.ends];
    if (!mine.valid()) {
      InsertionPoint at(graph_, product.node);
      const ValueId all = all_to_all(at, product.ends, {layers_.experts});
      mine = call(at, "aten::slice.Tensor", all,
                  {Argument::of_int(0), Argument::of_int(0), Argument::of_int(layers_.experts / over_.ranks),
                   Argument::of_int(1)},
                  {layers_.experts / over_.ranks}, /*view=*/true);
      is_used_less(product.ends);
    }
    graph_.replace_uses_if(product.ends, mine, [&](NodeId user, const Argument&) { return side_.contains(user); });
  }

  void send_there(ValueId value, NodeId user) {
    const NodeId producer = graph_.value(value).producer;
    if (side_.contains(producer) || graph_.is_placeholder(producer) || !is_rows(value) || new_.contains(producer))
      return;
    InsertionPoint at(graph_, user);
    const std::vector<int64_t> there = sizes_there(value);
    const int64_t more = padded() - layers_.rows;
    ValueId rows = value;
    if (more > 0) {
      std::vector<int64_t> pad(2 * there.size(), 0);
      pad.back() = more;
      rows = call(at, "aten::constant_pad_nd", value, {graph_.int_list(pad), Argument::of_int(0)}, there);
    } else if (!graph_.is_contiguous(value)) {
      rows = clone(at, value, there);
    }
    rows = all_to_all(at, rows, there);
    if (layers_.experts > over_.ranks) rows = clone(at, rows, there);
    is_used_less(value);
    graph_.replace_uses_if(value, rows, [&](NodeId n, const Argument&) { return side_.contains(n); });
  }

  void send_back(ValueId value, NodeId producer) {
    if (!is_rows(value) || gradients_.contains(producer)) return;
    bool leaves = false;
    graph_.for_each_use(value, [&](NodeId user) { leaves |= !side_.contains(user); });
    if (!leaves) return;
    InsertionPoint at = InsertionPoint::after(graph_, producer);
    const std::vector<int64_t> there = sizes_there(value);
    std::vector<int64_t> mine = there;
    mine[0] = layers_.rows;
    ValueId rows = value;
    if (layers_.experts > over_.ranks || !graph_.is_contiguous(value)) rows = clone(at, value, there);
    rows = all_to_all(at, rows, there);
    if (padded() > mine[0]) {
      rows = call(at, "aten::slice.Tensor", rows,
                  {Argument::of_int(0), Argument::of_int(0), Argument::of_int(mine[0]), Argument::of_int(1)}, mine,
                  /*view=*/true);
    }
    is_used_less(value);
    graph_.replace_uses_if(value, rows,
                           [&](NodeId n, const Argument&) { return !side_.contains(n) && !new_.contains(n); });
  }

  std::vector<int64_t> sizes_there(ValueId rows) const {
    const auto sizes = graph_.sizes(rows);
    std::vector<int64_t> there(sizes.begin(), sizes.end());
    there[0] = padded();
    return there;
  }

  void is_used_less(ValueId value) {
    const StorageId storage = graph_.value(value).storage;
    if (graph_.storage(storage).freed_after.valid()) changed_.insert(storage);
  }

  void cut_parameters() {
    ShapePropagationOptions options;
    for (const GroupedProduct& product : products_) {
      if (!product.parameter.valid() || !graph_.note(product.parameter, kNote).empty()) continue;
      const ValueId value = graph_.results(product.parameter)[0].ref.value;
      const auto sizes = graph_.sizes(value);
      InputGeometry part{.dtype = graph_.value(value).dtype, .sizes = {sizes.begin(), sizes.end()}};
      part.sizes[0] /= over_.ranks;
      options.inputs.emplace(placeholder_name(graph_, product.parameter), std::move(part));
      graph_.set_note(product.parameter, kNote, std::to_string(over_.ranks));
    }
    const GroupsOfGraph groups(graph_);
    ShapePropagation::of(graph_, options).apply(graph_);
  }

  Graph& graph_;
  const ExpertRanks& over_;
  const ExpertLayers& layers_;
  std::vector<GroupedProduct> products_;
  ExpertSide side_;
  std::map<ValueId, ValueId> ends_;
  std::set<NodeId> new_;
  std::set<NodeId> gradients_;   // products that compute experts' gradients
  std::set<StorageId> changed_;  // new storages, and those with fewer uses than before
};

}  // namespace

ExpertLayers expert_layers(const Graph& step) {
  ExpertLayers layers;
  const std::vector<GroupedProduct> products = grouped_products(step);
  for (const GroupedProduct& product : products) {
    if (!product.parameter.valid()) continue;
    const ExpertLayers of{step.sizes(product.right)[0], step.sizes(product.left)[0]};
    if (layers.experts > 0 && (of.experts != layers.experts || of.rows != layers.rows)) {
      throw Error(fmt::format("expert parallelism needs equal layers; found {} and {} experts with {} and {} rows",
                              layers.experts, of.experts, layers.rows, of.rows));
    }
    layers = of;
  }
  if (layers.experts > 0) check_other_parameters(step, products, layers.experts);
  return layers;
}

Graph shard_experts_over(Graph step, const ExpertRanks& over) {
  if (over.ranks == 1) return step;
  const ExpertLayers layers = expert_layers(step);
  if (layers.experts == 0 || layers.experts % over.ranks != 0) {
    throw Error(fmt::format("{} experts cannot be divided among {} ranks", layers.experts, over.ranks));
  }
  if (layers.rows % over.ranks != 0) {
    throw Error(fmt::format("{} rows of experts cannot be divided among {} ranks", layers.rows, over.ranks));
  }
  ExpertExchange(step, over, layers).run();
  return step;
}

bool is_of_experts(const Graph& graph, NodeId placeholder) { return !graph.note(placeholder, kNote).empty(); }

}  // namespace shadowgraph
