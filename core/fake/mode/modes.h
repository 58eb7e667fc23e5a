// Finds the options of a mode around tensors that are there already. A capture then need not be told again what the
// module was made with. Internal to core/; the rules are those of CaptureOptions (shadowgraph/capture/capture.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <memory>
#include <optional>
#include <string>

#include "core/fake/call_observer.h"
#include "core/fake/mode/process_state.h"
#include "core/fake/mode_state.h"
#include "shadowgraph/capture/fake.h"

namespace shadowgraph {

// Returns the options of the mode with this number, if it is still there, with nothing left open.
std::optional<FakeTensorOptions> options_of_mode(uint32_t id);

// Completes `given` from the mode that the fakes among `own` were made in. Without any it takes the mode of `inputs`,
// or else the innermost mode of this thread. Throws Error if the modes of `own`, or one of them and
// `given`, differ in device or profile.
FakeTensorOptions options_around(at::TensorList own, at::TensorList inputs, FakeTensorOptions given);

// Throws Error if `tensor`, called `name`, was made in a mode that differs from `mode` in device or
// profile.
void check_is_of(const ModeState& mode, const at::Tensor& tensor, const std::string& name);

// Shows the calls of a real program to an observer, at the level where fake tensors run, without changing any of them.
//
// This is the yardstick for captures. The same program, run for real under an ObserveMode and captured on fake tensors,
// must make the same calls with the same results. It is thread-local like FakeTensorMode and does not nest inside one.

struct ModeState;

class ObserveMode {
 public:
  // `saved_tensors` may be null. Both must outlive the mode.
  explicit ObserveMode(CallObserver& observer, SavedTensorObserver* saved_tensors = nullptr);
  ~ObserveMode();
  ObserveMode(const ObserveMode&) = delete;
  ObserveMode& operator=(const ObserveMode&) = delete;

 private:
  std::unique_ptr<ModeState> state_;
  ModeState* outer_;
  c10::impl::IncludeDispatchKeyGuard key_;
};

}  // namespace shadowgraph
