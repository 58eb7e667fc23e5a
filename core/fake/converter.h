// Converts real tensors to fake ones. Internal to core/; programs use FakeTensorMode::from_real.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/fake/mode_state.h"

namespace shadowgraph {

// Returns a fake with the real tensor's dtype, sizes, strides and offset on the simulated `device` (nullopt: the real
// tensor's). With a mode, the same real tensor has the same fake, and tensors that share a storage have fakes that
// share one. A leaf stays a leaf and keeps requires_grad. A fake is returned as it is.
at::Tensor fake_of_real(const at::Tensor& real, ModeState* mode, std::optional<c10::Device> device = std::nullopt);
// The same, but also converts a fake of another mode.
at::Tensor new_fake_of(const at::Tensor& tensor, ModeState* mode, std::optional<c10::Device> device = std::nullopt);
// Gives the fake of a leaf the fake of the leaf's gradient, once; later the program assigns it. Not to be called while
// another thread trains the leaf: libtorch frees a gradient before it clears the field.
void convert_gradient(const at::Tensor& fake, const at::Tensor& real, ModeState& mode);

// Returns the storage shared by the fakes on `device` of a real storage's tensors, with its contents if they are known.
c10::Storage fake_storage_of(const c10::Storage& real, ModeState* mode, c10::Device device);
// Gives `fake` the contents of `real`, which has the same geometry, if the mode keeps contents of such a tensor. Returns
// whether it does.
bool copy_contents_if_kept(const at::Tensor& fake, const at::Tensor& real, const ModeState& mode);
// Removes a tensor's fakes from the memo. The tensor may have been freed.
void forget_fakes_of(const c10::TensorImpl* real, ModeState& mode);

// Prevents backward from leaking fake gradients into a real tensor or its history: installs a hook that throws for
// fakes. Called before the call for a real operand that requires grad.
void block_gradients_into(const at::Tensor& real);

// Returns the real tensor that `fake` was converted from, if it is still alive; otherwise undefined.
class FakeTensorImpl;
at::Tensor real_of_fake(const FakeTensorImpl& fake, const ModeState& mode);

// Suspends the observers of a mode, while libtorch converts tensors or a user-defined kernel runs.
class Unobserved {
 public:
  // Only single-threaded modes have observers, so no other thread is affected.
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
  C10_DISABLE_COPY_AND_ASSIGN(Unobserved);

 private:
  ModeState* mode_;
  CallObserver* observer_ = nullptr;
  SavedTensorObserver* saved_tensors_ = nullptr;
};

}  // namespace shadowgraph
