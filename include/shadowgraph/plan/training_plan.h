// A plan of training on a cluster: how many ways each thing is cut, which stages there are, and what a step then takes.
//
//     StepSource source{.capture = capture, .layers = 126};
//     ClusterRequest request{.devices = 1024, .device = h100, .links = links, .batch = 2048, .sequence = 8192};
//     const PlanAnswer answer = plan_training(source, request);
//     answer.best().plan.tensor;  answer.best().run.seconds();  answer.bound;
//     std::puts(to_text(answer).c_str());
//
// How it is found:
//   1. A few layers are captured under each way to cut a micro-batch, with activations kept and computed again, whole
//   or
//      in part. Ways are tensor and context parallel sizes by micro-batch sizes by ranks that share experts. What a
//      layer more costs is repeated for the rest (layer_chain.h).
//   2. All pipelines, schedules, stages of ZeRO and orders of the mesh are gone through, least bound first. Stages are
//      the cuts whose slowest stage is quickest, each computing again as many layers as its memory wants.
//   3. What looks best is captured whole, cut, and run on all ranks of a pipeline, allocators included (PipelineRun).
//
// What is given back was simulated so, and fits. No plan of the space, its stages cut as said, is below `bound` seconds
// by the figures of the layers.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shadowgraph/capture/attention_kernel.h"
#include "shadowgraph/error.h"
#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/options.h"
#include "shadowgraph/plan/pipeline.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/shard/apply.h"

namespace SHADOWGRAPH_API shadowgraph {

// Which step is captured.
struct StepSize {
  int64_t micro_batch = 1;
  int64_t layers = 0;  // that the model shall have; 0: all
  AttentionKernel attention = AttentionKernel::kDevices;
};

// Where steps come from.
struct StepSource {
  std::function<Graph(const StepSize&)> capture;  // forward, backward and any optimizer, of one device
  int64_t layers = 0;                             // of the model; 0: the source cannot make fewer
  int64_t first_layers = 0;                       // of these, so many are of another kind than the rest
  std::string name = "model";
  bool any_micro_batch = true;  // otherwise a capture has the size that it has, whatever StepSize says
  // The same model on longer or shorter sequences; empty: that cannot be, and no sequence is cut.
  std::function<StepSource(int64_t tokens)> with_sequence = {};
};

// What backward computes again of a layer. kSelective: all but what products with weights, attention and convolutions
// give, which is kept as the sums over ranks of it are. kCurve: what is worth it, by rotor's curve; there are several
// ways.
enum class Recompute : uint8_t { kNothing, kSelective, kWhole, kCurve };
constexpr auto enum_names(Recompute) {
  return names_of<Recompute>({{Recompute::kNothing, "nothing"},
                              {Recompute::kSelective, "selective"},
                              {Recompute::kWhole, "whole"},
                              {Recompute::kCurve, "curve"}});
}

// Who lays out a stage's tensors over the ranks of tensor parallel: Megatron-LM's rules, or the solver of
// shadowgraph/shard/shard.h. To that collectives cost what the engine does not hide.
enum class TensorLayout : uint8_t {
  kMegatron,
  kSolved,  // the quickest
  kLean,    // where a byte that is kept from forward to backward costs what it takes to compute it again
};
constexpr auto enum_names(TensorLayout) {
  return names_of<TensorLayout>(
      {{TensorLayout::kMegatron, "megatron"}, {TensorLayout::kSolved, "solved"}, {TensorLayout::kLean, "lean"}});
}

// What may be on the host: what layers keep for backward, and main weights and moments, whose step is then run there.
enum class Offload : uint8_t { kActivations, kOptimizer };
constexpr auto enum_names(Offload) {
  return names_of<Offload>({{Offload::kActivations, "activations"}, {Offload::kOptimizer, "optimizer"}});
}

// A knob is a field here and a row of the table: command line, Python's keywords, help and checks follow
// (CONTRIBUTING.md).
struct ClusterRequest {
  int64_t devices = 1;
  DeviceSpec device;
  Interconnect links;
  std::optional<int64_t> memory;  // bytes of a device; nothing: its own
  int64_t leave_free = 0;         // bytes of these that no plan takes
  int64_t batch = 1;              // samples, or sequences, of a step on all devices
  int64_t sequence = 0;           // tokens of a sample; 0: tokens are not counted
  TrainingState state = kMixedPrecision;
  bool float8 = false;  // products of layers, the head's left out (passes/precision/float8.h)
  // What may be tried; empty: all that makes sense.
  std::vector<int64_t> tensor, context, pipeline, stages_per_rank, micro_batch, experts;
  std::vector<int> zero;
  std::vector<std::string> schedules;
  std::vector<AttentionKernel> attention;  // empty: what PyTorch takes on the device
  std::vector<TensorLayout> layouts;       // empty: Megatron-LM's
  std::vector<Recompute> recompute;        // besides nothing, which always may be; empty: all but kCurve
  std::vector<Offload> offload;            // what may be on the host
  // Rows that a rank of experts has room for, over the mean. 1: routing is even.
  double expert_capacity = 1;
  // What the engine does with collectives of tensor parallel.
  CollectiveOverlap overlap = CollectiveOverlap::kNone;
  int simulated = 3;  // how many plans are simulated in full, at least

  bool may_offload(Offload what) const { return std::ranges::find(offload, what) != offload.end(); }
  // "1024xh100": of how many of which device; "8": of the usual one. Links: a name or file; "": what is usual around
  // the device. Throws Error.
  static ClusterRequest on(const std::string& devices, const std::string& links);
  static const OptionTable<ClusterRequest>& table();
};

// Layers of which the same is kept; the rest is computed again (Recompute::kCurve).
struct PartlyKept {
  std::vector<std::string> layers;
  std::vector<std::string> keeps;  // results of forward: "aten::mm#2" is the third one's of that operator in the layer
  friend bool operator==(const PartlyKept&, const PartlyKept&) = default;
};

struct PlannedStage {
  std::string begins;      // module
  int64_t units = 0;       // layers and the like
  int64_t recomputed = 0;  // the first so many of them
  int64_t selective = 0;   // so many of the others, the first ones
  int64_t in_part = 0;     // so many behind those, by the curve
  int64_t offloaded = 0;   // of all of them, whose tensors wait on the host
  friend bool operator==(const PlannedStage&, const PlannedStage&) = default;
};

struct TrainingPlan {
  int64_t tensor = 1;
  int64_t context = 1;  // ranks that share each sequence (sharding/ranks/ranks.h)
  int64_t data = 1;
  int64_t pipeline = 1;
  int64_t stages_per_rank = 1;
  int64_t experts = 1;       // replicas, neighbours, that share the experts of a layer
  int64_t micro_batch = 1;   // samples
  int64_t microbatches = 1;  // of a step, on each replica
  int zero = 0;              // of optimizer state, gradients, parameters over the replicas
  std::string schedule = "1f1b";
  TensorLayout layout = TensorLayout::kMegatron;
  CollectiveOverlap overlap = CollectiveOverlap::kNone;  // of tensor parallel's
  AttentionKernel attention = AttentionKernel::kDevices;
  bool data_outermost =
      false;  // ranks of a pipeline are neighbours of each other; otherwise those of data parallel are
  std::vector<PlannedStage> stages;
  std::vector<std::string> recomputed;  // modules, whole
  std::vector<std::string> selective;   // others, all but what is dear (Recompute::kSelective)
  std::vector<PartlyKept> in_part;      // others, each once
  std::vector<std::string> offloaded;   // of all, those whose kept tensors wait for backward on the host
  bool optimizer_on_host = false;       // its state is there, and its step is run there

  // What no list says: keys of JSON, values that neighbours differ in (the group), and what text says of a value that
  // is not the usual one (the summary).
  static const OptionTable<TrainingPlan>& table();
  int64_t replicas() const { return context * data; }  // that have the same weights
  int64_t devices() const { return tensor * replicas() * pipeline; }
  friend bool operator==(const TrainingPlan&, const TrainingPlan&) = default;
};
// "tp 8, pp 16 x 4 interleaved, dp 64 zero 1, 128 x 1, optimizer on the host".
std::string to_string(const TrainingPlan& plan);

struct SimulatedPlan {
  TrainingPlan plan;
  PipelineRun run;
  double estimated = 0;         // seconds, by the figures of layers
  int64_t estimated_bytes = 0;  // of the fullest rank
  // Reserved for streams that gather and sum what is in no layer (ZeRO 2 and 3): such blocks serve no other stream.
  // NCCL's buffers for groups of experts count here, too.
  int64_t other_streams = 0;
  int64_t on_host = 0;  // bytes, of the rank that has most there
  // How parameters lie over ranks of tensor parallel where the solver laid them out: "model.embed_tokens.weight" is
  // "S(0)". `shadowgraph shard` takes them as --answer.
  std::map<std::string, std::string> layouts;
  int64_t bytes() const;  // reserved on the device, of the fullest rank, other streams included
};

// The best plan with another value of one knob, by the figures of layers.
struct PlanNeighbour {
  std::string knob;               // "tensor"
  std::string value;              // "4"
  std::optional<double> seconds;  // nothing: no such plan fits
  std::optional<int64_t> bytes;
  std::string plan;
  std::string why_not;
};

// A plan of the search, without its stages, by the figures of layers.
struct WorkedOutPlan {
  TrainingPlan plan;
  double seconds = 0;
  int64_t bytes = 0;  // of the fullest rank
};

struct PlanAnswer {
  std::string name;
  ClusterRequest request;
  int64_t memory = 0;                    // bytes that a rank may reserve
  std::vector<SimulatedPlan> simulated;  // quickest first; all fit
  double bound = 0;                      // seconds
  std::vector<PlanNeighbour> neighbours;
  // The best plan, if routing sends each row that it can to the experts of one rank.
  std::optional<std::pair<double, int64_t>> worst_routing;  // seconds, bytes
  std::vector<WorkedOutPlan> worked_out;   // least bound first; others are slower by their bounds, or do not fit
  std::map<std::string, int64_t> counted;  // "tried", "too large", ...: of the search
  std::vector<std::string> notes;
  double table_seconds = 0, search_seconds = 0, simulation_seconds = 0;

  const SimulatedPlan& best() const { return simulated.front(); }
  double tokens_per_second() const;  // of one device; 0 without a sequence
  double model_flops_share() const;  // of the peak of the devices; 0 where unknown
  double flops = 0;                  // of a sample, forward and backward without what is computed again
};

// Throws NoPlanError; Error for requests that make no sense, and what captures throw.
PlanAnswer plan_training(const StepSource& source, const ClusterRequest& request);

// Captures a plan whole and runs all ranks of one of its pipelines. Throws Error for a plan that cannot be.
SimulatedPlan simulate(const StepSource& source, const ClusterRequest& request, TrainingPlan plan);

std::string to_text(const PlanAnswer& answer);
nlohmann::json to_json(const PlanAnswer& answer);
nlohmann::json to_json(const TrainingPlan& plan);

// A plan that somebody else made, to be simulated beside one's own.
//
//     const TrainingPlan plan = given_plan(text, source, request);
//     simulate(source, request, plan);
//
// {"tensor": 8, "pipeline": 16, "stages_per_rank": 8, "schedule": "interleaved", "zero": 1, "micro_batch": 1}
//
// Keys are those of to_json(TrainingPlan), in which plan.json has its plans. These may be less than that:
//   data, microbatches  what devices and batch leave
//   overlap             that of the request
//   stages              numbers of units, such as [9, 8, 8, 7], or where each begins; without it all have equally many,
//                       the first ones one more
//   recomputed          names of layers; "all": all of them; or how many of each stage, its first ones: [4, 4, 0, 0]
//   selective           the same, of layers that are not in `recomputed`

// Throws ParseError for unknown keys, for values that make no sense, and for stages and layers that are not the
// model's. Throws Error for more ranks than devices or more stages than units.
TrainingPlan given_plan(std::string_view text, const StepSource& source, const ClusterRequest& request);
// The same of a plan whose step is at hand. There is one of all that it leaves out.
TrainingPlan given_plan(std::string_view text, const Graph& step);

// Questions that one plan does not answer: the same model with more devices, faster links, other memory, other batches.
//
//     PlanQuestions questions(source, request);
//     std::puts(to_text(questions.ask({.about = PlanTopic::kDevices})).c_str());
//
// A row of a table is the best plan of a changed request, simulated as plan_training() simulates. Figures of layers are
// kept between rows and between questions wherever the captured step and the links stay as they are.

enum class PlanTopic : uint8_t {
  kDevices,   // seconds by number of devices, and where efficiency falls under a share
  kNetwork,   // what faster links bring, and what is exposed
  kMemory,    // seconds by memory of a device, and the least that does
  kBatch,     // seconds by batch, and the largest batch in one pass
  kSequence,  // the longest sequence that fits
  kPrice,     // the cheapest cluster that trains so many tokens in time
};
constexpr auto enum_names(PlanTopic) {
  return names_of<PlanTopic>({{PlanTopic::kDevices, "devices"},
                              {PlanTopic::kNetwork, "network"},
                              {PlanTopic::kMemory, "memory"},
                              {PlanTopic::kBatch, "batch"},
                              {PlanTopic::kSequence, "sequence"},
                              {PlanTopic::kPrice, "price"}});
}

// Devices that can be had, at a price of the user's.
struct DeviceOffer {
  DeviceSpec device;
  Interconnect links;
  double per_hour = 0;  // of one device, in any currency
  int64_t most = 0;     // devices; 0: no end
};
// A JSON file {"h100": 2.5, "a100": {"per_hour": 1.2, "most": 512, "interconnect": "a100"}}: devices by name or file.
// Throws ParseError, FileError, Error for devices and links that there are none of.
std::vector<DeviceOffer> read_offers(const std::string& path);
std::vector<DeviceOffer> parse_offers(const std::string& text, const std::string& name);

struct PlanQuestion {
  PlanTopic about = PlanTopic::kDevices;
  // Devices; factors of the links' bytes a second; bytes of a device; samples; tokens of a sequence. Empty: around the
  // request's own.
  std::vector<double> values = {};
  double share = 0.4;  // of the devices' peak, for kDevices and kBatch
  // For kPrice:
  double tokens = 0;  // that are trained in all
  double within = 0;  // seconds
  std::vector<DeviceOffer> offers = {};

  // All but what it is about, and its values.
  static const OptionTable<PlanQuestion>& table();
};

// Values of a question in words, as its topic has them: "512", "80GB", "2". Throws Error.
std::vector<double> question_values(PlanTopic about, const std::vector<std::string>& words);

struct PlanRow {
  std::string value;  // "2048", "infiniband x 2"
  double number = 0;
  std::string why_not;  // nothing below, then
  TrainingPlan plan;
  int64_t devices = 0;
  double seconds = 0;            // of a step
  int64_t bytes = 0;             // of the fullest rank
  double tokens_per_second = 0;  // of one device; 0 without a sequence
  double share = 0;              // of the devices' peak
  double exposed = 0;            // seconds of a step in which the mean rank waits for collectives or is slowed by them
  double waiting = 0;            // share of all ranks' time in which they do not compute
  double training = 0, price = 0;  // seconds and price of all tokens, for kPrice
};

struct PlanTable {
  PlanTopic about = PlanTopic::kDevices;
  std::string title, head;  // head: of the first column
  std::vector<PlanRow> rows;
  std::vector<std::string> findings;  // sentences: what was asked for
};

class PlanQuestions {
 public:
  PlanQuestions(StepSource source, ClusterRequest request);
  // What plan_training() gives, and throws.
  PlanAnswer plan();
  // Throws Error for questions that make no sense for this source, and what captures throw.
  PlanTable ask(const PlanQuestion& question);
  // A plan that somebody else made, as given_plan() reads it. It need not fit into a device.
  SimulatedPlan simulate(std::string_view plan);

 private:
  struct Kept;
  std::shared_ptr<Kept> kept_;
};

std::string to_text(const PlanTable& table);
nlohmann::json to_json(const PlanTable& table);

}  // namespace shadowgraph
