// Calls that are for Python and found a dispatch key of ours first. A subclass with __torch_dispatch__ is among the
// operands, or a TorchDispatchMode is on.
//
// Replaces: the order of keys, in which libtorch takes Python's before Fake.
// Since:    2.13. Before, Fake is above Python, and what Python runs excludes all keys above it: ours must stay.
// Check:    tests/package/test_distributed.py: a DTensor of fakes stays one.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/PyInterpreter.h>
#include <c10/core/impl/PyInterpreterHooks.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

namespace shadowgraph {

// Whether Python answers a call that `found` is the first key of.
inline bool is_first_for_python(c10::DispatchKey found, c10::DispatchKeySet keys) {
  if (found < c10::DispatchKey::Python || !keys.has(c10::DispatchKey::Python)) return false;
  // Without a mode the key that modes include means nothing.
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
