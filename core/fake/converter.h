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

}  // namespace shadowgraph
