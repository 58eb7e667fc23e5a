// Names the two dispatch keys that shadowgraph takes; everything else in the tree refers to these names.
#pragma once

#include <c10/core/DispatchKey.h>

namespace shadowgraph {

// Below autograd, above every backend: where fake tensors run and where nodes are recorded. libtorch 2.13.0 has the key
// and registers nothing on it; process_state.cpp checks that at start-up.
inline constexpr c10::DispatchKey kFakeKey = c10::DispatchKey::Fake;

// Above autograd and autocast: where composite calls (aten::linear, ...) are seen before they decompose.
inline constexpr c10::DispatchKey kCompositeKey = c10::DispatchKey::DeferredInit;

}  // namespace shadowgraph
