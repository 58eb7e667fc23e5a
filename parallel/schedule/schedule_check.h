// Checks that the ranks of a schedule can execute their rows without deadlock.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "shadowgraph/plan/pipeline.h"

namespace shadowgraph {

struct ScheduleFacts {
  std::vector<int32_t> rank_of;  // by stage
  int32_t microbatches = 0;
  bool has_transfers = false;
};
// Throws Error that names the offending action.
ScheduleFacts check_schedule(const std::string& name, const PipelineSchedule::Rows& rows);

// Returns the kind of send that a wait action waits for; empty for other actions.
std::optional<PipelineWork> waited_send(const PipelineAction& a);

inline bool sends(const PipelineAction& a) {
  return a.work == PipelineWork::kSendForward || a.work == PipelineWork::kSendBackward;
}
inline bool receives(const PipelineAction& a) {
  return a.work == PipelineWork::kReceiveForward || a.work == PipelineWork::kReceiveBackward;
}
// Returns whether the action transfers an output, not a gradient.
inline bool transfers_forward(const PipelineAction& a) {
  return a.work == PipelineWork::kSendForward || a.work == PipelineWork::kReceiveForward;
}
inline int32_t other_stage(const PipelineAction& a) { return a.stage + (transfers_forward(a) == sends(a) ? 1 : -1); }
inline bool is_backward(const PipelineAction& a) {
  return a.work == PipelineWork::kBackward || a.work == PipelineWork::kInputGradient;
}

class DoneActions {
 public:
  DoneActions(int32_t stages, int32_t microbatches)
      : stages_(stages), microbatches_(microbatches), done_(size_t(kPipelineWorks) * stages * microbatches, 0) {}
  bool has(PipelineWork work, int32_t stage, int32_t microbatch) const { return done_[at(work, stage, microbatch)]; }
  // Returns whether the gradient of the stage's input has been computed.
  bool has_input_gradient(int32_t stage, int32_t microbatch) const {
    return has(PipelineWork::kBackward, stage, microbatch) || has(PipelineWork::kInputGradient, stage, microbatch);
  }
  void add(const PipelineAction& a) {
    if (computes(a) || transfers(a) || waited_send(a)) done_[at(a.work, a.stage, a.microbatch)] = 1;
  }

 private:
  size_t at(PipelineWork work, int32_t stage, int32_t microbatch) const {
    return (static_cast<size_t>(work) * stages_ + static_cast<size_t>(stage)) * microbatches_ +
           static_cast<size_t>(microbatch);
  }
  size_t stages_, microbatches_;
  std::vector<char> done_;
};

}  // namespace shadowgraph
