// A state dict in a file that Python's torch.load reads, weights_only=True included, written tensor by tensor.
//
//     write_weights("w.pt", named_tensors, {});   // described tensors are materialised one at a time and dropped again
//
// The format is torch.save's: a zip archive with data.pkl (an OrderedDict of names to tensors, pickle protocol 2) and one
// record for every storage. Tensors that share a storage share it in the file, so ties survive.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/deferred/materialize.h"

namespace shadowgraph {

struct WrittenWeights {
  size_t tensors = 0;
  size_t storages = 0;
  uint64_t bytes = 0;  // of the storages
};

// Real tensors are written as they are. Nothing is left half-written; throws FileError, and what materialising throws.
WrittenWeights write_weights(const std::string& path, const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                             const MaterializeOptions& options = {});

}  // namespace shadowgraph
