// For who looks at fakes from outside a kernel and must see them as a kernel does. Internal to core/.
#pragma once

#include "core/fake/thread_state.h"

namespace shadowgraph {

// Fakes answer as within a kernel while it lives: "meta" for their device.
class KernelDepth {
 public:
  KernelDepth() { ++thread_state.kernel_depth; }
  ~KernelDepth() { --thread_state.kernel_depth; }
  KernelDepth(const KernelDepth&) = delete;
  KernelDepth& operator=(const KernelDepth&) = delete;
};

}  // namespace shadowgraph
