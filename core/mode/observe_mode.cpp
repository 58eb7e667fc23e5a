#include "core/mode/observe_mode.h"

#include "core/fake/dispatch_keys.h"
#include "core/fake/mode_state.h"
#include "core/fake/thread_state.h"

namespace shadowgraph {
namespace {

std::unique_ptr<ModeState> make_state(CallObserver& observer, SavedTensorObserver* saved_tensors) {
  install_process_state();
  auto state = std::make_unique<ModeState>();
  state->kind = ModeKind::kObserve;
  state->observer = &observer;
  state->saved_tensors = saved_tensors;
  return state;
}

}  // namespace

ObserveMode::ObserveMode(CallObserver& observer, SavedTensorObserver* saved_tensors)
    : state_(make_state(observer, saved_tensors)),
      outer_(std::exchange(thread_state.mode, state_.get())),
      key_(kFakeKey) {}

ObserveMode::~ObserveMode() { thread_state.mode = outer_; }

}  // namespace shadowgraph
