// Real tensors to fake ones. Internal to core/; programs use FakeTensorMode::from_real.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/fake/mode_state.h"

namespace shadowgraph {

// A fake with the real tensor's dtype, sizes, strides and offset that pretends to be on `device` (nullopt: the real
// tensor's own). With a mode, the same real tensor gives the same fake, and tensors that share a storage give fakes
// that share one; a leaf stays a leaf and keeps requires_grad. A fake is returned as it is.
at::Tensor fake_of_real(const at::Tensor& real, ModeState* mode, std::optional<c10::Device> device = std::nullopt);
// The same, also for a fake of another mode.
at::Tensor new_fake_of(const at::Tensor& tensor, ModeState* mode, std::optional<c10::Device> device = std::nullopt);

// The storage that fakes on `device` of the tensors of a real storage share, with its contents where those are kept.
c10::Storage fake_storage_of(const c10::Storage& real, ModeState* mode, c10::Device device);
// Drops them from the memo. The tensor need not exist any more.
void forget_fakes_of(const c10::TensorImpl* real, ModeState& mode);

// Backward must not go on from fakes into a real tensor: its gradient, or the history that made it. To be called for a
// real operand that autograd has seen, before the call runs: what autograd has put behind it then refuses fakes.
void keep_gradients_from(const at::Tensor& real);

// The real tensor that `fake` was made from, if it is still alive; otherwise undefined.
class FakeTensorImpl;
at::Tensor real_of_fake(const FakeTensorImpl& fake, const ModeState& mode);

}  // namespace shadowgraph
