// Whether a call that found a dispatch key is first for Python: a subclass with __torch_dispatch__ is among its operands,
// or a TorchDispatchMode is on.
//
// Replaces: the order of keys. libtorch takes Python's before Fake.
// Since:    2.13; before, Fake is found first and hands such a call on.
// Check:    tests/package/test_distributed.py: a DTensor of fakes stays one.
#pragma once

#include <c10/core/DispatchKeySet.h>

namespace shadowgraph {

constexpr bool is_first_for_python(c10::DispatchKey found, c10::DispatchKeySet keys) {
  return found > c10::DispatchKey::Python && keys.has(c10::DispatchKey::Python);
}

}  // namespace shadowgraph
