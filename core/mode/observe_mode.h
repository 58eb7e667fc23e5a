// Shows the calls of a real program to an observer, at the level where fake tensors run, without changing any of them.
//
// This is the yardstick for captures. The same program, run for real under an ObserveMode and captured on fake tensors,
// must make the same calls with the same results. It is thread-local like FakeTensorMode and does not nest inside one.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <memory>

#include "core/fake/call_observer.h"
#include "core/process/process_state.h"

namespace shadowgraph {

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
