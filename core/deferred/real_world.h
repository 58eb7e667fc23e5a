// Real tensors, whatever goes on around: no fake mode, no autograd's dispatch. Internal to core/deferred, which computes
// for real in the midst of programs that run on fakes; unlike UnfakeGuard, nobody is told.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "core/fake/dispatch_keys.h"
#include "core/fake/thread_state.h"

namespace shadowgraph {

class RealWorld {
 public:
  RealWorld() : mode_(std::exchange(thread_state.mode, nullptr)), keys_(without_mode()) {}
  ~RealWorld() { thread_state.mode = mode_; }
  RealWorld(const RealWorld&) = delete;
  RealWorld& operator=(const RealWorld&) = delete;

 private:
  static c10::impl::PODLocalDispatchKeySet without_mode() {
    const auto local = c10::impl::tls_local_dispatch_key_set();
    c10::impl::PODLocalDispatchKeySet changed;
    changed.set_included(local.included_ - c10::DispatchKeySet(kFakeKey) - c10::DispatchKeySet(kCompositeKey));
    changed.set_excluded(local.excluded_ | c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                         c10::autocast_dispatch_keyset);
    return changed;
  }
  ModeState* mode_;
  c10::impl::ForceDispatchKeyGuard keys_;
};

}  // namespace shadowgraph
