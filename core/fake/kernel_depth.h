// Serves code that looks at fakes from outside a kernel and must see them as a kernel does. Internal to core/.
#pragma once

#include "core/fake/thread_state.h"

namespace shadowgraph {

// While it lives, fakes answer as within a kernel: "meta" for their device.
class KernelDepth {
 public:
  KernelDepth() { ++thread_state.kernel_depth; }
  ~KernelDepth() { --thread_state.kernel_depth; }
  KernelDepth(const KernelDepth&) = delete;
  KernelDepth& operator=(const KernelDepth&) = delete;
};

}  // namespace shadowgraph
