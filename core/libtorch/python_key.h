// Calls intended for Python that reach one of our dispatch keys first: an operand is a subclass with
// __torch_dispatch__, or a TorchDispatchMode is active.
//
// Replaces: the order of keys, in which libtorch handles Python before Fake.
// Since:    2.13. Before, Fake is above Python, and what Python runs excludes all keys above it: ours must stay
//           included.
// Check:    tests/package/test_distributed.py: a DTensor of fakes stays a DTensor.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/PyInterpreter.h>
#include <c10/core/impl/PyInterpreterHooks.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

namespace shadowgraph {

// Returns whether Python handles a call whose first key is `found`.
inline bool is_first_for_python(c10::DispatchKey found, c10::DispatchKeySet keys) {
  if (found < c10::DispatchKey::Python || !keys.has(c10::DispatchKey::Python)) return false;
  // Without a mode, the key that modes include has no effect.
  return c10::impl::TorchDispatchModeTLS::stack_len() > 0 ||
         !c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Python);
}

inline void run_by_python(c10::DispatchKey found, const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  static const c10::DispatchKeySet kUpToPython =
      c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::Python).add(c10::DispatchKey::Python);
  const c10::impl::ExcludeDispatchKeyGuard above(
      (c10::DispatchKeySet(c10::DispatchKeySet::FULL) - kUpToPython).remove(found));
  (*c10::impl::getGlobalPyInterpreter())->dispatch(op, stack);
}

}  // namespace shadowgraph
