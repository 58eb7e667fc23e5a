#pragma once

#include <c10/core/DispatchKey.h>

#include <string>

#include "python/src/binding.h"

namespace shadowgraph::python {

// Gives the key of a device's kernels, by the name of the device. Throws c10::Error for a name that is none.
c10::DispatchKey key_of(const std::string& device);

void bind_own_kernels(py::module_& m);

}  // namespace shadowgraph::python
