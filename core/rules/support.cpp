#include "core/rules/support.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/TensorIterator.h>

#include "core/fake/mode_state.h"
#include "core/fake/thread_state.h"

namespace shadowgraph::rules {

c10::Device pretended_device() { return thread_state.kernel_device(); }

const DeviceProfile& device_profile() {
  static const DeviceProfile standard;
  return thread_state.mode != nullptr ? thread_state.mode->profile : standard;
}

at::Tensor empty(c10::IntArrayRef sizes, c10::ScalarType dtype, c10::MemoryFormat format) {
  return at::detail::empty_meta(sizes, dtype, format);
}

at::Tensor empty(c10::IntArrayRef sizes, const at::Tensor& dtype_of, c10::MemoryFormat format) {
  return empty(sizes, dtype_of.scalar_type(), format);
}

at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype) {
  return at::detail::empty_strided_meta(sizes, strides, dtype);
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

at::Tensor elementwise(std::initializer_list<std::reference_wrapper<const at::Tensor>> inputs, const Elementwise& how) {
  at::TensorIteratorConfig config;
  config.set_check_mem_overlap(false).allow_cpu_scalars(true);
  if (how.output) {
    config.declare_static_dtype_and_device(*how.output, c10::Device(c10::DeviceType::Meta));
    config.check_all_same_dtype(false);
  } else {
    config.promote_inputs_to_common_dtype(how.promote)
        .promote_integer_inputs_to_float(how.integer_to_float)
        .cast_common_dtype_to_outputs(how.cast_output)
        .enforce_safe_casting_to_output(true);
  }
  config.add_owned_output(at::Tensor());
  for (const at::Tensor& input : inputs) config.add_const_input(input);
  return config.build().output();
}

}  // namespace shadowgraph::rules
