// What rules are written with: fresh meta tensors, the pretended device, the elementwise rule.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/MemoryFormat.h>
#include <c10/util/DimVector.h>

#include <optional>
#include <tuple>

#include "core/fake/device_profile.h"

namespace shadowgraph::rules {

// The device that the outermost call of this thread pretends to run on, and what it can do.
c10::Device pretended_device();
inline bool on_cuda() { return pretended_device().is_cuda(); }
const DeviceProfile& device_profile();

// A tensor without storage that has `like`'s geometry and dtype and the pretended device's dispatch keys: for functions
// of libtorch that choose a kernel by looking at their operands (select_conv_backend, ...) and never touch data.
at::Tensor stand_in(const at::Tensor& like);
at::Tensor stand_in(c10::IntArrayRef sizes, c10::IntArrayRef strides, const at::Tensor& dtype_of);

// Fresh meta tensors (nothing is allocated): during a call, fakes on the pretended device at once. Sizes and strides in
// elements.
at::Tensor empty(c10::IntArrayRef sizes, c10::ScalarType dtype,
                 c10::MemoryFormat format = c10::MemoryFormat::Contiguous);
at::Tensor empty(c10::IntArrayRef sizes, const at::Tensor& dtype_of,
                 c10::MemoryFormat format = c10::MemoryFormat::Contiguous);
at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype);
// A view of `base`.
at::Tensor alias(const at::Tensor& base, c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset);
c10::DimVector contiguous_strides(c10::IntArrayRef sizes);
// As at::empty_like: dense strides are kept, otherwise TensorIterator's order of dimensions.
at::Tensor empty_like(const at::Tensor& like);
at::Tensor empty_like(const at::Tensor& like, c10::ScalarType dtype);
at::Tensor empty_like(const at::Tensor& like, c10::MemoryFormat format);
// Its sizes and dtype, contiguous whatever its strides.
inline at::Tensor empty_contiguous_like(const at::Tensor& like) { return rules::empty(like.sizes(), like); }

// The elementwise rule: broadcasting, type promotion and stride order exactly as at::TensorIterator gives them.
struct Elementwise {
  bool promote = true;            // inputs to a common dtype
  bool integer_to_float = false;  // and integral ones to the default dtype
  bool cast_output = true;
  std::optional<c10::ScalarType> output;  // a fixed result dtype, e.g. bool for comparisons
};
using Operands = std::initializer_list<std::reference_wrapper<const at::Tensor>>;
at::Tensor elementwise(Operands inputs, const Elementwise& how = {});
// In-place and out= variants: checks that the result may be broadcast and cast into `output`, resizes it as eager does.
at::Tensor& elementwise_into(at::Tensor& output, Operands inputs, const Elementwise& how = {});

// The sizes of a reduction over `dims` (none or empty: all of them).
c10::DimVector reduced_sizes(const at::Tensor& input, at::OptionalIntArrayRef dims, bool keepdim);

// A tensor argument that may be absent.
using OptionalTensor = std::optional<at::Tensor>;
inline bool given(const OptionalTensor& tensor) { return tensor.has_value() && tensor->defined(); }

// What rules with several results return.
using TwoTensors = std::tuple<at::Tensor, at::Tensor>;
using ThreeTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using FourTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using FiveTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

// The next multiple of `to`: kernels pad rows, libraries pad workspaces.
inline int64_t rounded_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

}  // namespace shadowgraph::rules
