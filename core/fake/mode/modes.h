// Derives mode options from existing tensors, so that a capture need not repeat the options its module was created with
// (see CaptureOptions in shadowgraph/capture/capture.h). Internal to core/.
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

// Returns the complete options of the mode with this id, if it still exists.
std::optional<FakeTensorOptions> options_of_mode(uint32_t id);

// Completes `given` from the mode of the fake tensors in `own`; without any, from the mode of `inputs`, or else the
// innermost mode of this thread. Throws Error if the modes of `own` differ in device or profile from each other or from
// `given`.
FakeTensorOptions options_around(at::TensorList own, at::TensorList inputs, FakeTensorOptions given);

// Throws Error if the mode of `tensor`, called `name`, differs from `mode` in device or profile.
void check_is_of(const ModeState& mode, const at::Tensor& tensor, const std::string& name);

// Lets TorchScript's print, str and save describe or refuse fake tensors. Called once.
void install_script_operators();

// Reports the calls of a real program to an observer, at the dispatch level where fake tensors run, without changing
// them.
//
// Used to validate captures: the same program, run for real under an ObserveMode and captured on fake tensors, must
// make the same calls with the same results. Thread-local like FakeTensorMode; does not nest inside one.

class ObserveMode {
 public:
  // `saved_tensors` may be null. Both must outlive the mode.
  explicit ObserveMode(CallObserver& observer, SavedTensorObserver* saved_tensors = nullptr);
  ~ObserveMode();
  C10_DISABLE_COPY_AND_ASSIGN(ObserveMode);

 private:
  std::unique_ptr<ModeState> state_;
  ModeState* outer_;
  c10::impl::IncludeDispatchKeyGuard key_;
};

}  // namespace shadowgraph
