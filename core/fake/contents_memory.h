// Holds the real memory behind known contents. Internal to core/.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

namespace shadowgraph {

// Returns so many bytes of zeros, on the CPU.
c10::Storage zeroed(size_t bytes);
// Returns a real CPU tensor on `memory` with the geometry, dtype and lazy bits of `like`.
at::Tensor real_view(const c10::Storage& memory, const at::Tensor& like);

}  // namespace shadowgraph
