#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/TensorIterator.h>
#include <ATen/WrapDimUtilsMulti.h>

#include "core/fake/fake_tensor_impl.h"
#include "core/fake/kernel_depth.h"
#include "core/fake/mode_state.h"
#include "core/fake/thread_state.h"
#include "shadowgraph/shape_rules.h"

namespace shadowgraph::rules {

c10::Device pretended_device() { return thread_state.kernel_device(); }

const DeviceProfile& device_profile() {
  static const DeviceProfile standard;
  return thread_state.mode != nullptr ? thread_state.mode->profile() : standard;
}

at::Tensor stand_in(c10::IntArrayRef sizes, c10::IntArrayRef strides, const at::Tensor& dtype_of) {
  const c10::Device device = pretended_device();
  const c10::DispatchKey key = device.is_cuda()  ? c10::DispatchKey::CUDA
                               : device.is_cpu() ? c10::DispatchKey::CPU
                                                 : c10::DispatchKey::Meta;
  auto impl = c10::make_intrusive<c10::TensorImpl>(c10::DispatchKeySet(key), dtype_of.dtype(), device);
  impl->set_sizes_and_strides(sizes, strides);
  return at::Tensor(std::move(impl));
}

at::Tensor stand_in(const at::Tensor& like) { return stand_in(like.sizes(), like.strides(), like); }

namespace {
bool in_call() { return thread_state.kernel_depth != 0 || thread_state.in_own_kernel; }
}  // namespace

at::Tensor empty(c10::IntArrayRef sizes, c10::ScalarType dtype, c10::MemoryFormat format) {
  if (!in_call()) return at::detail::empty_meta(sizes, dtype, format);
  return FakeTensorImpl::empty(sizes, c10::scalarTypeToTypeMeta(dtype), format, pretended_device());
}

at::Tensor empty(c10::IntArrayRef sizes, const at::Tensor& dtype_of, c10::MemoryFormat format) {
  return empty(sizes, dtype_of.scalar_type(), format);
}

at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype) {
  if (!in_call()) return at::detail::empty_strided_meta(sizes, strides, dtype);
  return FakeTensorImpl::empty_strided(sizes, strides, c10::scalarTypeToTypeMeta(dtype), pretended_device());
}

at::Tensor alias(const at::Tensor& base, c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset) {
  if (const FakeTensorImpl* fake = as_fake(base)) return fake->view(sizes, strides, offset);
  auto view = c10::make_intrusive<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(base.storage()), base.key_set(),
                                                   base.dtype());
  view->set_sizes_and_strides(sizes, strides, offset);
  return at::Tensor(std::move(view));
}

at::Tensor empty_like(const at::Tensor& like, c10::ScalarType dtype) {
  if (like.is_non_overlapping_and_dense()) return empty_strided(like.sizes(), like.strides(), dtype);
  return empty_strided(like.sizes(), at::infer_dense_strides(like.sizes(), like.strides()), dtype);
}

at::Tensor empty_like(const at::Tensor& like) { return rules::empty_like(like, like.scalar_type()); }

at::Tensor empty_like(const at::Tensor& like, c10::MemoryFormat format) {
  if (format == c10::MemoryFormat::Preserve) return rules::empty_like(like);
  return empty(like.sizes(), like.scalar_type(), format);
}

namespace {

at::Tensor iterate(const at::Tensor& output, Operands inputs, const Elementwise& how) {
  at::TensorIteratorConfig config;
  config.allow_cpu_scalars(true).set_check_mem_overlap(output.defined());
  if (how.output) {
    config.check_all_same_dtype(false);
    if (!output.defined()) config.declare_static_dtype_and_device(*how.output, c10::Device(c10::DeviceType::Meta));
  } else if (how.promote) {
    config.promote_inputs_to_common_dtype(true)
        .promote_integer_inputs_to_float(how.integer_to_float)
        .cast_common_dtype_to_outputs(how.cast_output)
        .enforce_safe_casting_to_output(true);
  }
  config.add_owned_output(output);
  for (const at::Tensor& input : inputs) config.add_const_input(input);
  const bool own = thread_state.in_own_kernel && thread_state.kernel_depth == 0;
  // TensorIterator allocates on the device that its operands say.
  const KernelDepth depth;
  at::Tensor result = config.build().output();
  if (own && !is_fake(result)) {
    result = FakeTensorImpl::wrap(*result.unsafeGetTensorImpl(), pretended_device());
    as_fake(result)->mark_fresh();
  }
  return result;
}

}  // namespace

at::Tensor elementwise(Operands inputs, const Elementwise& how) { return iterate({}, inputs, how); }

at::Tensor& elementwise_into(at::Tensor& output, Operands inputs, const Elementwise& how) {
  iterate(output, inputs, how);
  return output;
}

c10::DimVector reduced_sizes(const at::Tensor& input, at::OptionalIntArrayRef dims, bool keepdim) {
  const auto reduced = at::dim_list_to_bitset(dims.value_or(c10::IntArrayRef{}), static_cast<size_t>(input.dim()));
  const bool all = !dims.has_value() || dims->empty();
  c10::DimVector sizes;
  for (int64_t d = 0; d < input.dim(); ++d) {
    if (!all && !reduced[static_cast<size_t>(d)]) {
      sizes.push_back(input.size(d));
    } else if (keepdim) {
      sizes.push_back(1);
    }
  }
  return sizes;
}

}  // namespace shadowgraph::rules
