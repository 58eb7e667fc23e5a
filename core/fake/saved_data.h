// Stands in for a tensor that autograd saves.
//
// Holding the tensor itself would close a cycle through its grad_fn, so this holds its data. Eager's check against
// in-place changes, which saved-tensor hooks switch off, is repeated here.
#pragma once

#include <ATen/core/Tensor.h>

namespace shadowgraph {

class SavedData {
 public:
  explicit SavedData(const at::Tensor& tensor);
  // Throws c10::Error, as eager does, if the tensor was written to since.
  const at::Tensor& unpack() const;

 private:
  at::Tensor data_;
  c10::VariableVersion version_counter_;
  uint32_t version_ = 0;
};

}  // namespace shadowgraph
