// Megatron's tensor parallelism cuts parameters by the names that models give them. A layer that spreads is cut by its
// columns (outputs), one that gathers by its rows (inputs). Weights are [out, in]; GPT-2's Conv1D has [in, out], so its
// columns are dimension 1.
#include "shadowgraph/sharding/hand_plans.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>

#include "ir/analysis/module_tree.h"
#include "shadowgraph/analysis/effects.h"

namespace shadowgraph {

std::string_view to_string(HandPlan plan) {
  switch (plan) {
    case HandPlan::kDataParallel:
      return "data parallel";
    case HandPlan::kFullySharded:
      return "fully sharded";
    case HandPlan::kTensorParallel:
      return "tensor parallel";
    case HandPlan::kDataTensorParallel:
      return "data + tensor parallel";
    case HandPlan::kFullyShardedTensor:
      return "fully sharded + tensor parallel";
  }
  return "data parallel";
}

std::vector<HandPlan> hand_plans(const DeviceMesh& mesh) {
  if (mesh.axes.size() == 1) {
    return {HandPlan::kDataParallel, HandPlan::kFullySharded, HandPlan::kTensorParallel};
  }
  return {HandPlan::kDataParallel, HandPlan::kFullySharded, HandPlan::kDataTensorParallel,
          HandPlan::kFullyShardedTensor};
}

HandPlan hand_plan(std::string_view name, const DeviceMesh& mesh) {
  std::vector<std::string> words;
  for (const HandPlan plan : hand_plans(mesh)) {
    std::string word(to_string(plan));
    if (word == name) return plan;
    std::erase(word, '+');
    std::ranges::replace(word, ' ', '-');
    word.erase(std::ranges::unique(word, [](char a, char b) { return a == '-' && b == '-'; }).begin(), word.end());
    if (word == name) return plan;
    words.push_back(std::move(word));
  }
  throw Error(
      fmt::format("there is no plan by hand '{}' on {}; there are {}", name, mesh.to_string(), fmt::join(words, ", ")));
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

}  // namespace

LinearCut linear_cut(std::string_view module) {
  const auto is = [&](std::string_view layer) { return ends_with_layer(module, layer); };
  if (std::ranges::any_of(kColumnLayers, is) || is("intermediate.dense")) return LinearCut::kColumns;
  if (std::ranges::any_of(kRowLayers, is) || is("output.dense")) return LinearCut::kRows;
  return LinearCut::kNone;
}

namespace {

// Returns the dimension of a parameter that `role` cuts; below 0 if it cuts none.
int64_t dimension_of(LinearCut role, std::string_view name, size_t rank) {
  if (role == LinearCut::kNone) return -1;
  const bool bias = name.ends_with("bias");
  if (rank == 1) return bias && role == LinearCut::kColumns ? 0 : -1;
  if (rank != 2) return -1;
  const bool transposed = name.find(".c_attn.") != std::string_view::npos ||
                          name.find(".c_fc.") != std::string_view::npos ||
                          name.find(".c_proj.") != std::string_view::npos;
  return (role == LinearCut::kColumns) != transposed ? 0 : 1;
}

}  // namespace

std::vector<ShardingPin> pins_of(HandPlan plan, const Graph& graph, const ShardingProblem& problem,
                                 const DeviceMesh& mesh) {
  const size_t axes = mesh.axes.size();
  const bool tensor = plan == HandPlan::kTensorParallel || plan == HandPlan::kDataTensorParallel ||
                      plan == HandPlan::kFullyShardedTensor;
  const bool cut_parameters = plan == HandPlan::kFullySharded || plan == HandPlan::kFullyShardedTensor;
  const Effects effects = Effects::of(graph);
  std::vector<ShardingPin> pins;
  for (const NodeId node : graph.nodes()) {
    if (!graph.is_placeholder(node)) break;
    const std::string name = placeholder_name(graph, node);
    const bool input = graph.node(node).target == target_of(Builtin::kInput);
    const bool parameter = graph.node(node).target == target_of(Builtin::kParameter);
    if (name.empty() || (!input && !parameter)) continue;
    const ValueId value = graph.results(node)[0].ref.value;
    // An input that the step writes to is state, such as an optimizer's moments, and has no batch to cut. It lies as
    // what updates it wants: with a fused optimizer as the parameter does.
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
        const int64_t dim = parameter ? dimension_of(linear_cut(name.substr(0, name.rfind('.'))), name, rank) : -1;
        if (dim >= 0) cut(axis, dim);
      } else if (input ? rank > 0 : cut_parameters) {
        // FSDP cuts dimension 0. If the axis does not divide that, another dimension may do.
        for (size_t dim = 0; dim < (input ? 1 : rank) && !cut(axis, static_cast<int64_t>(dim)); ++dim) {}
      }
    }
    pins.push_back({.name = name, .layout = layout});
  }
  return pins;
}

}  // namespace shadowgraph
