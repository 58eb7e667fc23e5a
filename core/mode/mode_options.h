// Finds the options of a mode around tensors that are there already. A capture then need not be told again what the
// module was made with. Internal to core/; the rules are those of CaptureOptions (shadowgraph/capture.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "core/fake/mode_state.h"
#include "shadowgraph/fake.h"

namespace shadowgraph {

// Returns the options of the mode with this number, if it is still there, with nothing left open.
std::optional<FakeTensorOptions> options_of_mode(uint32_t id);

// Completes `given` from the mode that the fakes among `own` were made in. Without any it takes the mode of `inputs`,
// or else the innermost mode of this thread. Throws ModeMismatchError if the modes of `own`, or one of them and
// `given`, differ in device or profile.
FakeTensorOptions options_around(at::TensorList own, at::TensorList inputs, FakeTensorOptions given);

// Throws ModeMismatchError if `tensor`, called `name`, was made in a mode that differs from `mode` in device or
// profile.
void check_is_of(const ModeState& mode, const at::Tensor& tensor, const std::string& name);

}  // namespace shadowgraph
