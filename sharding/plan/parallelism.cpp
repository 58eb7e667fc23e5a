// Preset plans. Megatron-style tensor parallelism shards parameters by layer name: column-parallel layers are sharded
// by outputs, row-parallel ones by inputs. Weights are [out, in]; GPT-2's Conv1D has [in, out], so its columns are
// dimension 1.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "ir/analysis/module_tree.h"
#include "shadowgraph/graph/analysis.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/passes/functional.h"
#include "shadowgraph/shard/problem.h"

namespace shadowgraph {

std::vector<Parallelism> parallelisms(const DeviceMesh& mesh) {
  if (mesh.axes.size() == 1) {
    return {Parallelism::kDataParallel, Parallelism::kFullySharded, Parallelism::kTensorParallel};
  }
  return {Parallelism::kDataParallel, Parallelism::kFullySharded, Parallelism::kDataTensorParallel,
          Parallelism::kFullyShardedTensor};
}

Parallelism parse_parallelism(std::string_view name, const DeviceMesh& mesh) {
  std::vector<std::string> words;
  std::vector<Parallelism> plans = parallelisms(mesh);
  if (mesh.axes.size() == 1) plans.push_back(Parallelism::kMegatron);
  for (const Parallelism plan : plans) {
    std::string word(to_string(plan));
    if (word == name) return plan;
    std::erase(word, '+');
    std::ranges::replace(word, ' ', '-');
    word.erase(std::ranges::unique(word, [](char a, char b) { return a == '-' && b == '-'; }).begin(), word.end());
    if (word == name) return plan;
    words.push_back(std::move(word));
  }
  throw Error(
      fmt::format("no preset plan '{}' for mesh {}; choose one of {}", name, mesh.to_string(), fmt::join(words, ", ")));
}

namespace {

constexpr std::array kColumnLayers{"q_proj",  "k_proj", "v_proj", "gate_proj", "up_proj",  "query",   "key",
                                   "value",   "c_fc",   "c_attn", "fc1",       "in_proj",  "lm_head", "wi",
                                   "linear1", "w1",     "w3",     "mlp.0",     "mlp.fc_in"};
constexpr std::array kRowLayers{"o_proj", "down_proj", "out_proj", "c_proj", "fc2",
                                "wo",     "linear2",   "w2",       "mlp.3",  "mlp.fc_out"};

bool ends_with_layer(std::string_view module, std::string_view layer) {
  if (!module.ends_with(layer)) return false;
  return module.size() == layer.size() || module[module.size() - layer.size() - 1] == '.';
}

// Returns the dimension of a parameter that `role` shards; negative if none.
int64_t dimension_of(LinearSharding role, std::string_view name, size_t rank) {
  if (role == LinearSharding::kNone) return -1;
  if (rank == 1) return name.ends_with("bias") && role == LinearSharding::kColumns ? 0 : -1;
  if (rank != 2) return -1;
  const bool transposed = name.find(".c_attn.") != std::string_view::npos ||
                          name.find(".c_fc.") != std::string_view::npos ||
                          name.find(".c_proj.") != std::string_view::npos;
  return (role == LinearSharding::kColumns) != transposed ? 0 : 1;
}

// The dimension that the role of a parameter shards, also for transposed and other views of the parameter.
class CutParameters {
 public:
  explicit CutParameters(const Graph& graph) : graph_(graph) {}

  // Returns a negative number if the tensor is not sharded.
  int64_t dimension(ValueId value) const {
    const NodeId node = graph_.value(value).producer;
    if (graph_.node(node).target == target_of(Builtin::kParameter)) {
      const std::string name = placeholder_name(graph_, node);
      return dimension_of(linear_sharding(name.substr(0, name.rfind('.'))), name, graph_.sizes(value).size());
    }
    const std::string_view called = graph_.target(node).name();
    if (called != "aten::t" && called != "aten::detach" && called != "aten::alias") return -1;
    const ValueId source = operand(node, "self");
    const int64_t cut = graph_.sizes(source).size() == 2 ? dimension(source) : -1;
    return called == "aten::t" && cut >= 0 ? 1 - cut : cut;
  }

  // Returns the placement of a product of activations with an unmodified parameter; nullopt for other nodes.
  std::optional<Placement> of_product(NodeId node) const {
    const std::string_view called = graph_.target(node).name();
    const bool adds = called == "aten::addmm";
    if (called != "aten::mm" && !adds) return std::nullopt;
    const int64_t left = dimension(operand(node, adds ? "mat1" : "self"));
    const int64_t right = dimension(operand(node, "mat2"));
    if ((left < 0) == (right < 0)) return std::nullopt;
    return left == 1 || right == 0 ? Placement::partial() : Placement::shard(left == 0 ? 0 : 1);
  }

 private:
  ValueId operand(NodeId node, std::string_view name) const { return graph_.find_argument(node, name)->ref.value; }

  const Graph& graph_;
};

// Megatron communicates activations, never weights. Without these pins, weights of a small batch would be gathered,
// which is faster for it, and saved for backward.
void pin_products(const Graph& graph, const ShardingProblem& problem, std::vector<ShardingPin>& pins) {
  const CutParameters cut(graph);
  const Numbering numbering = Numbering::of(graph);
  for (const NodeId node : graph.nodes()) {
    const std::optional<Placement> placement = cut.of_product(node);
    if (!placement) continue;
    Layout layout(1);
    layout[0] = *placement;
    const std::vector<Layout> possible = problem.layouts_of(node);
    if (std::ranges::find(possible, layout) == possible.end()) continue;
    pins.push_back({.name = fmt::format("n{}", numbering.of(node)), .layout = layout, .node = node});
  }
}

}  // namespace

LinearSharding linear_sharding(std::string_view module) {
  const auto is = [&](std::string_view layer) { return ends_with_layer(module, layer); };
  if (std::ranges::any_of(kColumnLayers, is) || is("intermediate.dense")) return LinearSharding::kColumns;
  if (std::ranges::any_of(kRowLayers, is) || is("output.dense")) return LinearSharding::kRows;
  return LinearSharding::kNone;
}

int64_t move_biases_after_reduction(Graph& graph) {
  const CutParameters cut(graph);
  return split_bias_of(graph,
                       [&](NodeId node) {
                         const std::optional<Placement> placement = cut.of_product(node);
                         return placement && placement->is_partial();
                       })
      .split;
}

std::vector<ShardingPin> pins_of(Parallelism plan, const Graph& graph, const ShardingProblem& problem,
                                 const DeviceMesh& mesh) {
  const size_t axes = mesh.axes.size();
  const bool tensor = plan == Parallelism::kTensorParallel || plan == Parallelism::kMegatron ||
                      plan == Parallelism::kDataTensorParallel || plan == Parallelism::kFullyShardedTensor;
  const bool cut_parameters = plan == Parallelism::kFullySharded || plan == Parallelism::kFullyShardedTensor;
  const Effects effects = Effects::of(graph);
  std::vector<ShardingPin> pins;
  for (const NodeId node : graph.nodes()) {
    if (!graph.is_placeholder(node)) break;
    const std::string name = placeholder_name(graph, node);
    const bool input = graph.node(node).target == target_of(Builtin::kInput);
    const bool parameter = graph.node(node).target == target_of(Builtin::kParameter);
    if (name.empty() || (!input && !parameter)) continue;
    const ValueId value = graph.results(node)[0].ref.value;
    // An input that the step writes to is state, such as an optimizer's moments, without a batch dimension. Its layout
    // follows from the update; with a fused optimizer it is the parameter's.
    if (input && effects.final_version(graph.value(value).storage) > 0) continue;
    const size_t rank = graph.sizes(value).size();
    const std::vector<Layout> possible = problem.layouts_of(node);
    const auto can = [&](const Layout& layout) { return std::ranges::find(possible, layout) != possible.end(); };
    Layout layout(axes);
    const auto cut = [&](size_t axis, int64_t dim) {
      Layout wanted = layout;
      wanted[axis] = Placement::shard(dim);
      if (can(wanted)) layout = wanted;
      return layout == wanted;
    };
    for (size_t axis = axes; axis-- > 0;) {
      const bool by_layers = tensor && axis + 1 == axes;
      if (by_layers) {
        const int64_t dim = parameter ? dimension_of(linear_sharding(name.substr(0, name.rfind('.'))), name, rank) : -1;
        if (dim >= 0) cut(axis, dim);
      } else if (input ? rank > 0 : cut_parameters) {
        // FSDP shards dimension 0; falls back to other dimensions if the axis does not divide it.
        for (size_t dim = 0; dim < (input ? 1 : rank) && !cut(axis, static_cast<int64_t>(dim)); ++dim) {}
      }
    }
    pins.push_back({.name = name, .layout = layout});
  }
  if (plan == Parallelism::kMegatron) pin_products(graph, problem, pins);
  return pins;
}

}  // namespace shadowgraph
