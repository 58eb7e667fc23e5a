// Turns real tensors into fake ones. Internal to core/; programs use FakeTensorMode::from_real.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/fake/mode_state.h"

namespace shadowgraph {

// Returns a fake with the real tensor's dtype, sizes, strides and offset that pretends to be on `device` (nullopt: the
// real tensor's own). With a mode, the same real tensor gives the same fake, and tensors that share a storage give
// fakes that share one. A leaf stays a leaf and keeps requires_grad. A fake is returned as it is.
at::Tensor fake_of_real(const at::Tensor& real, ModeState* mode, std::optional<c10::Device> device = std::nullopt);
// Does the same, also for a fake of another mode.
at::Tensor new_fake_of(const at::Tensor& tensor, ModeState* mode, std::optional<c10::Device> device = std::nullopt);

// Returns the storage that fakes on `device` of a real storage's tensors share, with its contents where those are kept.
c10::Storage fake_storage_of(const c10::Storage& real, ModeState* mode, c10::Device device);
// Drops a tensor's fakes from the memo. The tensor need not exist any more.
void forget_fakes_of(const c10::TensorImpl* real, ModeState& mode);

// Keeps backward from going on from fakes into a real tensor: its gradient, or the history that made it. Call it for a
// real operand that autograd has seen, before the call runs: what autograd has put behind it then refuses fakes.
void keep_gradients_from(const at::Tensor& real);

// Returns the real tensor that `fake` was made from, if it is still alive; otherwise undefined.
class FakeTensorImpl;
at::Tensor real_of_fake(const FakeTensorImpl& fake, const ModeState& mode);

// While it lives, nobody watches a mode: what libtorch does around a conversion, and what a kernel of the user's own
// calls, is not the program's.
class Unobserved {
 public:
  // Only a mode of one thread has observers, so nobody else's calls are lost.
  explicit Unobserved(ModeState* mode) : mode_(mode) {
    if (mode_ != nullptr && mode_->observer != nullptr) observer_ = std::exchange(mode_->observer, nullptr);
    if (mode_ != nullptr && mode_->saved_tensors != nullptr) {
      saved_tensors_ = std::exchange(mode_->saved_tensors, nullptr);
    }
  }
  ~Unobserved() {
    if (observer_ != nullptr) mode_->observer = observer_;
    if (saved_tensors_ != nullptr) mode_->saved_tensors = saved_tensors_;
  }
  Unobserved(const Unobserved&) = delete;
  Unobserved& operator=(const Unobserved&) = delete;

 private:
  ModeState* mode_;
  CallObserver* observer_ = nullptr;
  SavedTensorObserver* saved_tensors_ = nullptr;
};

}  // namespace shadowgraph
