// A captured training step of one micro-batch, cut into the stages of a pipeline.
//
//     const Graph& step = capture.graph;                                  // forward, backward, optimizer
//     const auto stages = PipelineStages::balanced(step, 4, {.spec = &h100, .interconnect = &links});
//     stages.of(2).forward;                                               // seconds of a micro-batch
//
// A stage is a stretch of forward. What its nodes hand on to later stages is sent from stage to stage. Each stage has
// its nodes' backward in two pieces: W has what leads to gradients of its own weights alone, I all else. What depends on
// the program's inputs alone, such as masks and tables of positions, is computed in each stage that uses it.
//
// Memory is held as torch.distributed.pipelining holds it: a stage keeps what it was given and what it sent until its
// backward of that micro-batch. Gradients of weights stay from the first micro-batch on; later ones are added to them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/interconnect.h"

namespace SHADOWGRAPH_API shadowgraph {

struct StageOptions {
  const DeviceSpec* spec = nullptr;            // none: what fits the graph's device (DeviceSpec::find)
  const Interconnect* interconnect = nullptr;  // of collectives inside a stage; none: they cost nothing
  // Schedules gather what the program itself gathers of parameters (UNSHARD), and scatter sums of gradients once a step:
  // FSDP. Otherwise each micro-batch does, as a layout of tensor parallel may. Whole gradients are summed once in any
  // case.
  bool gathers_once = true;
};

// Seconds by piece. Backward as a whole may hide more than its two pieces apart.
struct PieceSeconds {
  double forward = 0;
  double backward = 0;
  double input_gradient = 0;
  double weight_gradient = 0;
};

struct StageFigures {
  std::string begins;  // the module of its first node
  double forward = 0;  // seconds of one micro-batch, as all here
  double input_gradient = 0;
  double weight_gradient = 0;
  // What collectives inside the stage cost a piece: it waits for them, or computes slower beside them. It is in the
  // seconds above. What is under way when a piece ends is waited for.
  PieceSeconds exposed;
  // The same where schedules gather the stage's parameters (UNSHARD) and add up gradients (REDUCE_GRAD): those
  // collectives are then in no piece, and take these seconds.
  PieceSeconds exposed_unsharded;
  // What copies of engines take, to the host in forward and back in backward (shadowgraph/passes/offload.h). They run
  // beside all that the rank computes and communicates: a piece takes as long as its copies at least.
  PieceSeconds copies;
  double unshard = 0;
  double reduce_gradients = 0;
  double accumulate = 0;       // adding gradients to those of earlier micro-batches
  double optimizer = 0;        // once a step
  int64_t weights = 0;         // elements of parameters that are trained
  int64_t expert_weights = 0;  // of these, of experts that are on several ranks (shadowgraph/sharding/expert_ranks.h)
  int64_t parameters = 0;      // bytes of what is there from the beginning:
  int64_t expert_parameters = 0;
  int64_t optimizer_state = 0;
  int64_t other = 0;           // buffers, constants
  int64_t inputs = 0;          // bytes of the program's inputs that it uses, of one micro-batch
  int64_t gradients = 0;       // bytes of gradients of its weights
  int64_t carried = 0;         // bytes alive from forward to backward, of one micro-batch
  int64_t on_host = 0;         // bytes that wait on the host from forward to backward, of one micro-batch
  int64_t awaiting = 0;        // bytes alive from the input's gradient to the weights' beside those, of one micro-batch
  int64_t sends_forward = 0;   // bytes to the next stage
  int64_t sends_backward = 0;  // bytes to the stage before
  double backward() const {
    return input_gradient - exposed.input_gradient + weight_gradient - exposed.weight_gradient + exposed.backward;
  }
  // What each micro-batch takes where a schedule gathers and sums once a step.
  PieceSeconds unsharded() const {
    const PieceSeconds &with = exposed, &without = exposed_unsharded;
    return {.forward = forward - with.forward + without.forward,
            .backward = backward() - with.backward + without.backward,
            .input_gradient = input_gradient - with.input_gradient + without.input_gradient,
            .weight_gradient = weight_gradient - with.weight_gradient + without.weight_gradient};
  }
};

// A parameter that several stages hold: its gradients are added over them before the optimizer's step.
struct TiedParameter {
  std::string name;
  int64_t gradient_bytes = 0;
  int64_t weights = 0;  // elements, if it is trained
  std::vector<int32_t> stages;
};

struct StageParts;

class PipelineStages {
 public:
  // `modules`: where the second stage begins, the third, ..: at the first node of a module. Throws Error for a module
  // that is not there or does not come after the one before, and for graphs that are no training steps.
  static PipelineStages at_modules(const Graph& step, std::span<const std::string> modules,
                                   const StageOptions& options = {});
  // Where the slowest stage is quickest, of cuts that hand on least; of equally quick ones those that send least.
  // Throws Error, too, if forward has fewer such places.
  static PipelineStages balanced(const Graph& step, int32_t stages, const StageOptions& options = {});

  // Stages of which no more is known than these figures: from a planner, or from measurements. What is carried is
  // allocated in F and freed in W, and gradients come in W.
  static PipelineStages of_figures(std::vector<StageFigures> figures);

  int32_t count() const { return static_cast<int32_t>(figures_.size()); }
  const StageFigures& of(int32_t stage) const { return figures_[static_cast<size_t>(stage)]; }
  const std::vector<TiedParameter>& tied() const { return tied_; }
  // What a reader should know: parameters that several stages hold, tensors that are handed through.
  const std::vector<std::string>& notes() const { return notes_; }
  // For the rooms of parallel/: parallel/stages/stage_parts.h.
  const StageParts& parts() const { return *parts_; }

 private:
  friend class StageCutting;
  friend class ReplicatedStages;
  std::vector<StageFigures> figures_;
  std::vector<TiedParameter> tied_;
  std::vector<std::string> notes_;
  std::shared_ptr<const StageParts> parts_;
};

}  // namespace shadowgraph
