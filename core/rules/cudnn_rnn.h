// How cuDNN numbers recurrent layers and lays out their parameters.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace shadowgraph::rules {

// cuDNN's numbering, which libtorch uses throughout.
enum class RnnMode : int64_t { kRelu = 0, kTanh = 1, kLstm = 2, kGru = 3 };

// Where each parameter lies in cuDNN's buffer, in elements: all matrices, then all biases. A layer's parameters are
// weight_ih, weight_hh, bias_ih, bias_hh, weight_hr as far as they exist; `stride` of them make a layer and direction.
inline std::vector<int64_t> flat_offsets(at::TensorList weights, int64_t* total) {
  std::vector<int64_t> offsets(weights.size());
  int64_t offset = 0;
  for (const int64_t dimensions : {2, 1}) {
    for (size_t i = 0; i < weights.size(); ++i) {
      if (weights[i].dim() != dimensions) continue;
      offsets[i] = offset;
      offset += weights[i].numel();
    }
  }
  *total = offset;
  return offsets;
}

}  // namespace shadowgraph::rules
