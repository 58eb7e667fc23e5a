#include "core/replay/replayed_tensor.h"

#include <utility>

namespace shadowgraph {

at::Tensor with_geometry(const at::Tensor& source, c10::Storage storage, caffe2::TypeMeta dtype, c10::IntArrayRef sizes,
                         c10::IntArrayRef strides, int64_t offset) {
  auto impl = source.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0),
                                                                    /*allow_tensor_metadata_change=*/true);
  impl->set_storage_and_dtype(std::move(storage), dtype);
  impl->set_sizes_and_strides(sizes, strides, offset);
  return at::Tensor(std::move(impl));
}

at::Tensor shallow_copy(const at::Tensor& tensor) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(), /*allow_tensor_metadata_change=*/true));
}

namespace {

// Returns the whole storage as bytes.
at::Tensor bytes_of(const at::Tensor& tensor) {
  const auto bytes = static_cast<int64_t>(tensor.storage().nbytes());
  at::Tensor view =
      with_geometry(tensor, tensor.storage(), caffe2::TypeMeta::fromScalarType(at::kByte), {bytes}, {1}, 0);
  view._set_conj(false);
  view._set_neg(false);
  return view;
}

}  // namespace

c10::Storage copy_of_storage(const at::Tensor& tensor) {
  const at::Tensor bytes = bytes_of(tensor);
  at::Tensor copy = bytes.new_empty(bytes.sizes());
  copy.copy_(bytes);
  return copy.storage();
}

void part_from_loose_outs(const c10::FunctionSchema& schema, torch::jit::Stack& stack) {
  for (size_t out = 0; out < stack.size(); ++out) {
    if (!schema.arguments()[out].is_out() || !stack[out].isTensor()) continue;
    const at::Tensor written = stack[out].toTensor();
    if (written.numel() != 0 && written.is_non_overlapping_and_dense()) continue;
    for (size_t i = 0; i < stack.size(); ++i) {
      c10::IValue& operand = stack[i];
      if (schema.arguments()[i].is_out()) continue;
      if (operand.isTensor() && operand.toTensor().is_same(written)) operand = shallow_copy(written);
      if (!operand.isTensorList()) continue;
      c10::List<at::Tensor> parted;
      for (const at::Tensor& tensor : operand.toTensorVector()) {
        parted.push_back(tensor.is_same(written) ? shallow_copy(tensor) : tensor);
      }
      operand = std::move(parted);
    }
  }
}

std::string geometry_text(at::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  return c10::str(dtype, " ", sizes, " with strides ", strides);
}

}  // namespace shadowgraph
