// The sharding problem: layouts of all tensors of a captured step, as an assignment problem for solvers.
//
// The variables are strategies of nodes: on every mesh axis, one of those given by its rule
// (shadowgraph/shard/rules.h). The costs are times of nodes on local tensors, and of redistributions between results
// and the operands that use them, in integer picoseconds of the profiler's time model.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/names.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/shard/apply.h"
#include "shadowgraph/shard/layout.h"
#include "shadowgraph/shard/rules.h"
#include "shadowgraph/shard/solver.h"

namespace SHADOWGRAPH_API shadowgraph {

// A fixed layout of placeholders with matching names ("*" and "?" as in file names; "layers.*.q_proj.weight"), or of
// the first result of a node ("n329", by its number in the text form).
struct ShardingPin {
  std::string name;
  Layout layout;
  NodeId node = {};  // if valid, used instead of the name, which is then for display only
};

struct ShardingOptions {
  DeviceMesh mesh;
  const DeviceSpec* device = nullptr;          // required
  const Interconnect* interconnect = nullptr;  // required
  const ShardingRules* rules = nullptr;        // nullptr: built-in rules
  int64_t memory = kNoLimit;                   // bytes per device, live at any node
  std::vector<ShardingPin> pins;
  bool unfold = false;        // use a variable for each node, instead of one for equal nodes of repeated layers
  bool shard_random = false;  // random operators may be sharded: each device draws its own numbers
  CollectiveOverlap overlap = CollectiveOverlap::kNone;  // redistributions hidden by this cost nothing
  double seconds_per_parameter_byte =
      0;                             // seconds per byte of a device's parameters, for communication between replicas
  double seconds_per_kept_byte = 0;  // seconds per byte saved on a device from forward to backward
  double layer_repeats = 1;          // weight of nodes in numbered modules: the step represents one with more layers
};

// Returns the rates used for redistributions; requires a device and an interconnect.
RedistributionRates redistribution_rates(const ShardingOptions& options);

struct PlaceholderLayout {
  std::string name;
  NodeId node;
  Layout layout;
  int64_t bytes = 0;        // of the whole tensor
  int64_t local_bytes = 0;  // per device
};

class ShardingProblem {
 public:
  // Throws Error for missing options and impossible pins. Linear in nodes and pairs of strategies of distinct nodes.
  static ShardingProblem of(const Graph& graph, const ShardingOptions& options);
  ~ShardingProblem();
  ShardingProblem(ShardingProblem&&) noexcept;
  ShardingProblem& operator=(ShardingProblem&&) noexcept;

  const AssignmentProblem& assignment() const { return assignment_; }
  // Returns the problem with additional pins. A pin must apply to all nodes of a variable or to none of them; the last
  // of several takes precedence. Throws Error otherwise, and for pins without match or possible strategy.
  AssignmentProblem pinned(std::span<const ShardingPin> pins) const;
  // Returns the costs of pinned variables without the pins (SolveOptions::pins).
  const std::vector<AssignmentPin>& pins() const { return pins_; }
  // Returns the plan for a choice: one strategy for each of assignment().nodes.
  GraphLayouts plan(std::span<const uint32_t> choice) const;
  // Returns the choice for a plan, with minimum cost for shared copies. std::nullopt if a node does not have such a
  // strategy, or if nodes of one variable have different layouts in the plan.
  std::optional<std::vector<uint32_t>> choice_of(const GraphLayouts& plan) const;
  // Returns the variable of a node; std::nullopt for nodes without tensors.
  std::optional<uint32_t> variable_of(NodeId node) const;
  // Returns the nodes of a variable; empty for the variables of shared copies.
  std::span<const NodeId> nodes_of(uint32_t variable) const;

  // Cost of a choice in picoseconds.
  struct Cost {
    AssignmentCost::Wide compute = 0;
    AssignmentCost::Wide communication = 0;
    AssignmentCost::Wide total() const { return compute + communication; }
  };
  Cost cost(std::span<const uint32_t> choice) const;
  // Returns parameters, buffers and inputs with their layouts, in program order.
  std::vector<PlaceholderLayout> placeholders(const GraphLayouts& plan) const;

  // Returns all possible layouts of a placeholder.
  std::vector<Layout> layouts_of(NodeId placeholder) const;

  const RuleCoverage& coverage() const { return coverage_; }
  int64_t tensor_nodes() const { return tensor_nodes_; }
  const RedistributionPlanner& planner() const { return *planner_; }

 private:
  friend class ShardingProblemBuilder;
  ShardingProblem();
  // Returns the variables of `pins`, with the last pin of each. Throws as pinned() does.
  std::map<uint32_t, size_t> variables_of(std::span<const ShardingPin> pins) const;

  // A variable applies to equal nodes, to places of such nodes, or (neither) to copies of a tensor.
  struct Variable {
    std::vector<NodeId> nodes;
    std::vector<uint32_t> places;  // for each of `nodes`, the place; empty: whole nodes
    uint32_t operands = 0;         // tensors of a node, or of a place
    uint32_t results = 0;
    std::vector<uint16_t> layouts;  // by strategy, then tensor, operands first: indices in layouts_
    uint16_t layout(uint32_t strategy, uint32_t tensor) const {
      return layouts[strategy * size_t{operands + results} + tensor];
    }
  };

  // Tensors of a node that are independent of its others: an operand of sg::output, one parameter's in _foreach_add_.
  struct Place {
    uint32_t variable = 0;
    std::vector<uint32_t> operands, results;  // indices among the node's
  };
  // The variable of a tensor of a node, and the index of the tensor in it; operands come first.
  struct TensorOf {
    uint32_t variable = 0;
    uint32_t tensor = 0;
  };
  std::vector<TensorOf> tensors_of(NodeId node) const;

  const Graph* graph_ = nullptr;
  DeviceMesh mesh_;
  AssignmentProblem assignment_;
  std::vector<AssignmentPin> pins_;
  std::vector<Layout> layouts_;
  std::vector<Variable> variables_;
  IdMap<NodeId, uint32_t> variable_of_;          // 1 + index; for nodes with places, that of the first place
  std::map<NodeId, std::vector<Place>> places_;  // of nodes with places
  RuleCoverage coverage_;
  int64_t tensor_nodes_ = 0;
  std::unique_ptr<RedistributionPlanner> planner_;
};

// Standard parallelism plans: pins of parameters and inputs. Tensors that are not divisible remain replicated.
enum class Parallelism : uint8_t {
  kDataParallel,    // parameters replicated, inputs sharded along dimension 0 over all axes
  kFullySharded,    // parameters sharded as well: ZeRO 3, FSDP
  kTensorParallel,  // parameters of linear layers alternately column- and row-parallel over the last axis (Megatron)
  kMegatron,        // kTensorParallel with communication of activations only, never of weights
  kDataTensorParallel,  // inputs sharded over the other axes
  kFullyShardedTensor,  // and parameters
};
constexpr auto enum_names(Parallelism) {
  return names_in_order<Parallelism>("data parallel", "fully sharded", "tensor parallel", "megatron",
                                     "data + tensor parallel", "fully sharded + tensor parallel");
}
// Parses a name as written by to_string, or with "-" instead of blanks. Throws Error that lists those for the mesh.
Parallelism parse_parallelism(std::string_view name, const DeviceMesh& mesh);
// Returns the plans to compare with: the first three for one axis, otherwise all that use several axes. `megatron` is
// included only if requested by name, since it is impossible for some models.
std::vector<Parallelism> parallelisms(const DeviceMesh& mesh);
// Tensor parallelism of a linear layer with this module name: column-parallel (outputs) or row-parallel (inputs).
enum class LinearSharding : uint8_t { kNone, kColumns, kRows };
LinearSharding linear_sharding(std::string_view module);

// Moves the bias of row-parallel products after their reduction, as `megatron` requires. Returns the number of changes.
int64_t move_biases_after_reduction(Graph& graph);

std::vector<ShardingPin> pins_of(Parallelism plan, const Graph& graph, const ShardingProblem& problem,
                                 const DeviceMesh& mesh);

// Sharding decisions of a user or another solver, read from a file.
//
// Four formats are recognized by their contents:
//
//     {"format": "shadowgraph-layouts", ...}            layouts of all nodes: layouts.json
//     {"format": "shadowgraph-assignment-solution", ...}      a strategy for each node of the exported problem
//     [0, 3, 1, ...]                                          the choice only, as written by IOPDDL solvers
//     {"head.weight": "R,S(0)", "layers.*.norm.weight": ...}  layouts by name: the rest is chosen for minimum cost

// A solution of an assignment problem.
struct AssignmentChoice {
  std::vector<uint32_t> choice;
  std::string cost;  // stated in the file; "" if it is not
  std::string name;  // file name, for messages

  // Returns the cost. Throws Error if the choice is for another problem: other nodes, strategies or cost.
  AssignmentCost of(const AssignmentProblem& problem) const;
};

// Exactly one of these is set.
struct ImportedSolution {
  std::optional<GraphLayouts> plan;
  std::optional<AssignmentChoice> choice;
  std::vector<ShardingPin> layouts;
};

// `name` is the file name, for messages. Throws ParseError for other formats, and for another graph.
ImportedSolution read_solution(std::string_view text, const std::string& name, const Graph& graph);
// Reads the second or third format only. Throws ParseError for anything else.
AssignmentChoice read_assignment_choice(std::string_view text, const std::string& name);

}  // namespace shadowgraph
