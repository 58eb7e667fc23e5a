// A plan of a captured step in one call: what must be so before shard(), and what a request leaves open.
//
//     StepRequest request{.mesh = DeviceMesh::parse("dp=8,tp=8"), .memory = 80'000'000'000};
//     const PlannedStep planned = plan_step(std::move(capture.graph), request);
//     std::fputs(to_text(planned).c_str(), stdout);
//
// `shadowgraph shard` and Python's `shard` are this function, with words parsed. shard() is for a graph whose losses
// are split already, and for figures that are at hand.
//
// What is done, in this order:
//   1. Losses that are means are split, since a mean of means is wrong where devices count unequal targets.
//      `cut_vocabulary` splits log_softmax as well. By hand as Megatron-LM, biases are added behind sums over ranks.
//   2. The device's figures and its links are looked up, where the request has none.
//   3. The step is sharded; with `recompute` sharded and computed again in turns.
#pragma once

#include <c10/core/Device.h>
#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "shadowgraph/error.h"
#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/sharding/overlap.h"
#include "shadowgraph/sharding/shard.h"
#include "shadowgraph/sharding/shard_and_recompute.h"

namespace SHADOWGRAPH_API shadowgraph {

struct StepRequest {
  DeviceMesh mesh;  // needed

  // The device, and what each one has. Without figures: those that DeviceSpec::find has for the graph's device, which
  // is a CUDA device unless the graph says otherwise. Without links: those around the device (Interconnect::around),
  // and "pcie4" if none are known.
  std::optional<DeviceSpec> device;
  std::optional<Interconnect> links;
  std::optional<int64_t> memory;  // bytes for the step; nothing: no limit

  // What a plan may be.
  std::vector<ShardingPin> pins;
  ShardingRules rules;          // the built-in ones; add() to them
  bool unfold = false;          // layers that repeat are decided one by one
  bool cut_random = false;      // each device may draw random numbers of its own
  bool cut_vocabulary = false;  // losses may be cut along the vocabulary; split_log_softmaxes says what that costs
  CollectiveOverlap overlap = CollectiveOverlap::kNone;  // ShardingOptions::overlap
  double parameter_byte = 0;                             // ShardingOptions::parameter_byte
  double kept_byte = 0;                                  // ShardingOptions::kept_byte
  double layer_times = 1;                                // ShardingOptions::layer_times
  bool recompute = false;  // computes again what costs less so than cutting more; needs `memory`

  // An answer that is measured in place of a search (given_answer.h): its JSON, and its file's name for messages.
  std::string answer, answer_name = "the answer";
  std::string by_hand;  // a plan that people make, as hand_plan() takes it; "": none

  // How it is looked for.
  double time_limit = 20;     // seconds of the solver
  std::optional<double> gap;  // good enough, relative; nothing: 0.001 with a limit of memory, which is hard, else 0
  AssignmentSolver solver = AssignmentSolver::kOwn;
  std::string highs;  // SolveOptions::highs

  // What the answer has besides the plan: as ShardOptions.
  bool compare = false;
  std::vector<std::string> explain;
  int64_t rank = 0;
  std::function<void(const ShardedGraph&)> each_rank = {};
  std::function<std::optional<std::vector<uint32_t>>(const ShardingProblem&)> decided = {};
  std::function<void(const ShardingProblem&)> problem = {};
};

// A request cannot be met, whatever the step. what() names the field.
class StepRequestError : public Error {
 public:
  using Error::Error;
};

// The request has no figures of a device, and none are known of the graph's.
class UnknownDeviceError : public StepRequestError {
 public:
  explicit UnknownDeviceError(c10::Device device);
  c10::Device device() const { return device_; }

 private:
  c10::Device device_;
};

// Throws StepRequestError for what is wrong with a request whatever the graph. plan_step() asks first, too.
void check(const StepRequest& request);

struct PlannedStep {
  Graph graph;  // the step that the plan is of: losses are split, and some of it may be computed again
  ShardingAnswer answer;
  // With StepRequest::recompute, else empty: what is computed again, and what was tried.
  std::vector<CheckpointSegment> segments;
  std::vector<RecomputeRound> rounds;
  // What it was planned for.
  DeviceSpec device;
  Interconnect links;

  // The planner of its redistributions, for copies_of() and pictures.
  RedistributionPlanner planner() const;
};

// Takes the graph over: give clone(graph) to keep one. Throws StepRequestError, NoPlanError, and what shard() throws.
PlannedStep plan_step(Graph graph, const StepRequest& request);

// For people: the rounds, if there were any, then as to_text(ShardingAnswer).
std::string to_text(const PlannedStep& planned, int rows = 40);
// Without the plan, which has a file of its own.
nlohmann::json to_json(const PlannedStep& planned);

}  // namespace shadowgraph
