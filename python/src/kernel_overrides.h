#pragma once

#include <c10/core/DispatchKey.h>

#include "python/src/binding.h"

namespace shadowgraph::python {

// Returns the dispatch key of kernels on a device. Throws c10::Error for an invalid device.
c10::DispatchKey key_of(const std::string& device);

void bind_kernel_overrides(py::module_& m);

}  // namespace shadowgraph::python
