// Chooses who is asked about tensors that autograd saves on this thread, besides the active mode
// (core/process/process_state.h).
//
//     const SavedTensorScope scope(&observer);   // until its end: observer's hooks, instead of the mode's
//
// Scopes nest; the innermost alone is asked. Installs the process state, since libtorch has no saved-tensor hooks
// without an engine that gives them; throws EnvironmentError where that cannot be done.
#pragma once

#include "core/process/process_state.h"

namespace shadowgraph {

class SavedTensorScope {
 public:
  explicit SavedTensorScope(SavedTensorObserver* observer);
  ~SavedTensorScope();
  SavedTensorScope(const SavedTensorScope&) = delete;
  SavedTensorScope& operator=(const SavedTensorScope&) = delete;

 private:
  SavedTensorObserver* outer_;
};

// Returns the observer of the active mode on this thread; nullptr if there is none.
SavedTensorObserver* saved_tensor_observer_of_mode();

}  // namespace shadowgraph
