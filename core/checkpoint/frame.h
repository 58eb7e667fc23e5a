// Keeps one call of a checkpointed function: its inputs, and a slot for every tensor that autograd wanted to save in
// it. Internal to core/checkpoint.
//
// Who holds whom:
//
//     grad_fn made in the function  a hook in place of a tensor
//     hook                          its slot and the frame
//     frame                         the function and the inputs; it knows the slots without holding them
//
// The frame keeps inputs as autograd would save them outside the function, so an outer checkpoint has a slot for them
// in its turn. When the last grad_fn lets go, all of it goes. A run of the function fills a slot for one backward (one
// graph task); asking the slot empties it.
#pragma once

#include <torch/csrc/autograd/saved_variable.h>

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/checkpoint/ambient_state.h"
#include "core/process/saved_tensor_scope.h"
#include "shadowgraph/checkpoint.h"

namespace shadowgraph {

struct CheckpointSlot {
  size_t index = 0;
  // Describes what was to be saved, to compare it with what comes the second time.
  std::vector<int64_t> sizes;
  at::ScalarType dtype = at::kFloat;
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  // By graph task; guarded by the frame's mutex.
  std::unordered_map<int, std::shared_ptr<torch::autograd::SavedVariableHooks>> filled;
};

class CheckpointFrame : public std::enable_shared_from_this<CheckpointFrame> {
 public:
  CheckpointFrame(CheckpointedFunction function, const CheckpointOptions& options)
      : function_(std::move(function)), options_(options) {}

  std::vector<at::Tensor> run_forward(const std::vector<at::Tensor>& inputs);

  // ---- For the hooks
  std::shared_ptr<CheckpointSlot> new_slot(const at::Tensor& tensor);
  at::Tensor unpack(CheckpointSlot& slot);

 private:
  void run_again(int task, CheckpointSlot* only);
  void forget_after(int task);

  const CheckpointedFunction function_;
  const CheckpointOptions options_;
  std::vector<torch::autograd::SavedVariable> inputs_;
  AutocastState autocast_;
  RandomStates random_;
  std::vector<std::weak_ptr<CheckpointSlot>> slots_;
  bool forward_done_ = false;
  std::unordered_set<int> tasks_run_;  // graph tasks under way for which the function ran again
  std::mutex mutex_;                   // taken in backward, from the inner frame to the outer

  // In a capture: which session's checkpoint it is.
  uint32_t session_ = 0;
  uint32_t recorded_as_ = 0;
};

}  // namespace shadowgraph
