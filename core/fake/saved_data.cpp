#include "core/fake/saved_data.h"

#include <torch/csrc/autograd/variable.h>

namespace shadowgraph {

// No inference tensor comes here, for it has no versions: autograd refuses to save one before it asks any hook.
SavedData::SavedData(const at::Tensor& tensor)
    : data_(tensor.tensor_data()),
      version_counter_(torch::autograd::impl::version_counter(tensor)),
      version_(version_counter_.current_version()) {}

const at::Tensor& SavedData::unpack() const {
  TORCH_CHECK(version_counter_.current_version() == version_,
              "one of the variables needed for gradient computation has been modified by an inplace operation: [",
              data_.toString(), " ", data_.sizes(), "] is at version ", version_counter_.current_version(),
              "; expected version ", version_, " instead.");
  return data_;
}

}  // namespace shadowgraph
