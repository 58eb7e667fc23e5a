// Layouts for all tensors of a captured step, as a problem for solvers.
//
//     ShardingOptions options{.mesh = DeviceMesh::parse("8x8"), .device = &h100, .interconnect = &links};
//     const ShardingProblem problem = ShardingProblem::of(graph, options);
//     const AssignmentSolution solution = solve(problem.assignment());            // shadowgraph/shard/solver.h
//     const ShardingPlan plan = problem.plan(solution.choice);
//     for (const PlannedTensor& tensor : problem.placeholders(plan)) ...        // "layers.0.q_proj.weight" "R,S(0)"
//
// What is chosen is a strategy for each node: on every mesh axis one of those that its rule gives
// (shadowgraph/shard/rules.h). What costs are the nodes' seconds on one device's part, and the redistributions
// between results and the operands that use them. Both come from the profiler's time model, in integer picoseconds.
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

// A layout that is given: of placeholders whose name matches ("*" and "?" as in file names; "layers.*.q_proj.weight"),
// or of the first result of one node ("n329", by the number that the text has).
struct ShardingPin {
  std::string name;
  Layout layout;
  NodeId node = {};  // in place of the name, which is then for people
};

struct ShardingOptions {
  DeviceMesh mesh;
  const DeviceSpec* device = nullptr;          // needed
  const Interconnect* interconnect = nullptr;  // needed
  const ShardingRules* rules = nullptr;        // none: the built-in ones
  int64_t memory = kNoLimit;                   // bytes a device may have, live at any node
  std::vector<ShardingPin> pins;
  bool unfold = false;      // a variable for each node, not one for all like it in layers that repeat
  bool cut_random = false;  // random operators may be cut: each device draws its own numbers
  CollectiveOverlap overlap = CollectiveOverlap::kNone;  // what this hides of redistributions costs nothing
  double parameter_byte = 0;  // seconds that each byte of a device's parameters costs beside the step: its replicas
  double kept_byte = 0;       // seconds that each byte costs that a device keeps from forward to backward
  double layer_times = 1;  // what is in modules with a number counts so often: the step stands for one of more layers
};

// What redistributions cost by these options; needs a device and an interconnect.
RedistributionRates redistribution_rates(const ShardingOptions& options);

struct PlannedTensor {
  std::string name;
  NodeId node;
  Layout layout;
  int64_t bytes = 0;        // of the whole tensor
  int64_t local_bytes = 0;  // a device
};

class ShardingProblem {
 public:
  // Throws Error for options that are missing, pins that nothing matches or that cannot be. Linear in nodes and in the
  // pairs of strategies of those that are different.
  static ShardingProblem of(const Graph& graph, const ShardingOptions& options);
  ~ShardingProblem();
  ShardingProblem(ShardingProblem&&) noexcept;
  ShardingProblem& operator=(ShardingProblem&&) noexcept;

  const AssignmentProblem& assignment() const { return assignment_; }
  // The same with other pins, besides those of the options. A pin must be of all nodes that one variable stands for, or
  // of none of them; of several the last counts. Throws Error otherwise, and for what matches nothing or cannot be.
  AssignmentProblem pinned(std::span<const ShardingPin> pins) const;
  // Returns what the variables of the options' pins would cost without them (SolveOptions::pins).
  const std::vector<AssignmentPin>& pins() const { return pins_; }
  // Returns the plan of the variables that nodes have; `choice` is one strategy for each of assignment().nodes.
  ShardingPlan plan(std::span<const uint32_t> choice) const;
  // The choice that gives this plan; the copies that several nodes share as they cost least. Nothing if some node has
  // no such strategy, or if nodes that one variable stands for differ in the plan.
  std::optional<std::vector<uint32_t>> choice_of(const ShardingPlan& plan) const;
  // The variable that decides over a node; nothing for nodes without tensors.
  std::optional<uint32_t> variable_of(NodeId node) const;
  // The nodes that one variable decides over; none for the copies that several nodes share.
  std::span<const NodeId> nodes_of(uint32_t variable) const;

  // What a plan takes, by kind of cost; picoseconds.
  struct Cost {
    AssignmentCost::Wide compute = 0;
    AssignmentCost::Wide communication = 0;
    AssignmentCost::Wide total() const { return compute + communication; }
  };
  Cost cost(std::span<const uint32_t> choice) const;
  // Parameters, buffers and inputs as a plan has them, in program order.
  std::vector<PlannedTensor> placeholders(const ShardingPlan& plan) const;

  // The layouts that a placeholder can have.
  std::vector<Layout> layouts_of(NodeId placeholder) const;

  const RuleCoverage& coverage() const { return coverage_; }
  int64_t tensor_nodes() const { return tensor_nodes_; }
  const RedistributionPlanner& planner() const { return *planner_; }

 private:
  friend class ShardingProblemBuilder;
  ShardingProblem();
  // The variables that pins are of, with the last pin of each. Throws as pinned().
  std::map<uint32_t, size_t> variables_of(std::span<const ShardingPin> pins) const;

  // What one variable decides over: nodes that are alike, places of such nodes, or (neither) copies of a tensor.
  struct Variable {
    std::vector<NodeId> nodes;
    std::vector<uint32_t> places;  // of each of `nodes`, which of its places; empty: nodes as wholes
    uint32_t operands = 0;         // tensors of a node, or of a place
    uint32_t results = 0;
    std::vector<uint16_t> layouts;  // by strategy, then tensor, operands first: numbers in layouts_
    uint16_t layout(uint32_t strategy, uint32_t tensor) const {
      return layouts[strategy * size_t{operands + results} + tensor];
    }
  };

  // Some of a node's tensors, where they have nothing to do with its others: an operand of sg::output, what
  // _foreach_add_ does with one parameter.
  struct Place {
    uint32_t variable = 0;
    std::vector<uint32_t> operands, results;  // which of the node's
  };
  // The variable that decides over a tensor of a node, and which of its tensors that is; operands come first.
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
  IdMap<NodeId, uint32_t> variable_of_;          // 1 + number; of nodes in places the first place's
  std::map<NodeId, std::vector<Place>> places_;  // of the nodes that have some
  RuleCoverage coverage_;
  int64_t tensor_nodes_ = 0;
  std::unique_ptr<RedistributionPlanner> planner_;
};

// Plans as people write them by hand: pins of parameters and inputs, after which the rest follows at least cost. What
// divides by no axis stays whole.
//
//     const AssignmentProblem pinned = problem.pinned(pins_of(HandPlan::kFullySharded, graph, problem, mesh));
//     const AssignmentSolution by_hand = solve(pinned);                         // what the best plan is compared with

enum class HandPlan : uint8_t {
  kDataParallel,        // parameters whole, inputs cut along dimension 0, over all axes
  kFullySharded,        // parameters cut as well: ZeRO 3, FSDP
  kTensorParallel,      // over the last axis, parameters of linear layers cut by columns and rows in turn (Megatron)
  kMegatron,            // the same, and products with those parameters send activations, never weights
  kDataTensorParallel,  // inputs cut over the other axes
  kFullyShardedTensor,  // and parameters
};
constexpr auto enum_names(HandPlan) {
  return names_in_order<HandPlan>("data parallel", "fully sharded", "tensor parallel", "megatron",
                                  "data + tensor parallel", "fully sharded + tensor parallel");
}
// As to_string writes it, or with "-" between words. Throws Error that names those of the mesh.
HandPlan hand_plan(std::string_view name, const DeviceMesh& mesh);
// Those that a plan is compared with: with one axis the first three, with more all but those of one axis. `megatron` is
// asked for by name, since some models cannot be laid out so.
std::vector<HandPlan> hand_plans(const DeviceMesh& mesh);
// How tensor parallel cuts a linear layer of this name: by columns (outputs) or by rows (inputs).
enum class LinearCut : uint8_t { kNone, kColumns, kRows };
LinearCut linear_cut(std::string_view module);

// Products with a bias that tensor parallel cuts by rows: their sum goes over ranks, and the bias behind it. Without
// this such a model has no plan `megatron`. Gives how many changed.
int64_t put_biases_behind_sums(Graph& graph);

std::vector<ShardingPin> pins_of(HandPlan plan, const Graph& graph, const ShardingProblem& problem,
                                 const DeviceMesh& mesh);

// What a person or another solver has decided of a step, read from a file.
//
//     const GivenAnswer answer = read_answer(read_file("choice.json"), "choice.json", graph);
//
// Four kinds are told by what is in them:
//
//     {"format": "shadowgraph-sharding-plan", ...}            layouts of all nodes: plan.json
//     {"format": "shadowgraph-assignment-solution", ...}      a strategy for each node of the exported problem
//     [0, 3, 1, ...]                                          the same alone, as solvers of IOPDDL write it
//     {"head.weight": "R,S(0)", "layers.*.norm.weight": ...}  layouts by name: all else is chosen at least cost

// A solution of an assignment problem.
struct GivenChoice {
  std::vector<uint32_t> choice;
  std::string cost;  // that the file says it has; "": it does not say
  std::string name;  // of the file, for messages

  // Returns what it costs. Throws Error if it is of another problem: of other nodes or strategies, or if it costs
  // something else than the file says.
  AssignmentCost of(const AssignmentProblem& problem) const;
};

// One of the three.
struct GivenAnswer {
  std::optional<ShardingPlan> plan;
  std::optional<GivenChoice> choice;
  std::vector<ShardingPin> layouts;
};

// `name` is of the file, for messages. Throws ParseError for what is none of the four, or is of another graph.
GivenAnswer read_answer(std::string_view text, const std::string& name, const Graph& graph);
// Reads the second or third kind alone. Throws ParseError for anything else.
GivenChoice read_choice(std::string_view text, const std::string& name);

}  // namespace shadowgraph
