// Makes parameters, buffers and constants of an exported program as fakes. Internal to core/exported.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "core/exported/archive.h"
#include "core/exported/program.h"

namespace shadowgraph {

struct MadeWeights {
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> idle;  // parallel to program.idle
};

// `inputs` is parallel to program.inputs, undefined where that is the user's. All are on the active mode's device.
// Weights that share a record of the archive share a storage; those of the same geometry are one tensor. Floating-point
// weights become `dtype`.
// Bytes of the archive are only read if their values may decide something. Those are single numbers, and integers and
// booleans that are no parameters, up to 64 KiB.
MadeWeights make_weights(const ExportArchive& archive, const SavedProgram& program,
                         std::optional<c10::ScalarType> dtype);

}  // namespace shadowgraph
