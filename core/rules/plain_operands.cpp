// The common case of operators whose Meta kernels are right but slow: operands of one floating dtype, laid out row by
// row.
//
// TensorIterator answers what the result of an add looks like for any operands. For two of the same shape and dtype
// without gaps the answer is "like either of them", and a training step is made of those. Each function here checks
// that its operands are of that kind. It refers everything else, errors included, to the Meta kernel.
#include <ATen/Operators.h>

#include "core/fake/meta_kernel.h"
#include "core/libtorch/kernels.h"
#include "core/rules/families.h"
#include "core/rules/registry.h"
#include "shadowgraph/shape_rules.h"

namespace shadowgraph::rules {
namespace {

using at::Scalar;
using at::Tensor;
using c10::MemoryFormat;
using c10::ScalarType;

// Strides as a fresh tensor has them. Not is_contiguous(): TensorIterator sorts dimensions by their strides, those of
// size 1 included, and the strides of these are anything in a contiguous tensor.
bool is_row_major(const Tensor& x) {
  const auto sizes = x.sizes();
  const auto strides = x.strides();
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    if (strides[d] != stride || sizes[d] == 0) return false;
    stride *= sizes[d];
  }
  return true;
}

bool is_plain(const Tensor& x) {
  if (!x.defined() || x.unsafeGetTensorImpl()->is_wrapped_number()) return false;
  switch (x.scalar_type()) {
    case ScalarType::Float:
    case ScalarType::Double:
    case ScalarType::Half:
    case ScalarType::BFloat16:
      return is_row_major(x);
    default:
      return false;
  }
}

bool are_alike(const Tensor& x, const Tensor& y) {
  return is_plain(x) && y.defined() && y.scalar_type() == x.scalar_type() && y.sizes() == x.sizes() && is_plain(y);
}

// Whether writing `x` can be told from reading `y`: partial overlap is an error.
bool is_apart(const Tensor& x, const Tensor& y) {
  return x.is_same(y) ||
         !x.unsafeGetTensorImpl()->unsafe_storage().is_alias_of(y.unsafeGetTensorImpl()->unsafe_storage());
}

// A number that does not change a floating result's dtype.
bool is_real(const Scalar& number) { return number.isFloatingPoint() || number.isIntegral(/*includeBool=*/false); }
// Other arguments do not matter for the result.
template <class T>
bool is_real(const T&) {
  return true;
}

bool is_real(std::string_view approximate) {  // of gelu: the one operator here that takes a word
  TORCH_CHECK(approximate == "none" || approximate == "tanh", "approximate argument must be either none or tanh.");
  return true;
}

Tensor like(const Tensor& x) { return rules::empty(x.sizes(), x.scalar_type()); }

// The CPU has no kernel, where TensorIterator promotes operands to it all the same.
void check_has_kernel(const char* name, const Tensor& result) {
  TORCH_CHECK_NOT_IMPLEMENTED(!is_bcomplex32(result.scalar_type()) || !pretended_device().is_cpu(), '"', name,
                              "\" not implemented for 'BComplex32'");
}

// ---- One, two and three operands

template <class Operator, class... Extra>
Tensor unary(const Tensor& x, Extra... extra) {
  if (is_plain(x) && (is_real(extra) && ...)) return like(x);
  Tensor result = OnMeta<Operator>::call(x, extra...);
  check_has_kernel(Operator::name, result);
  return result;
}
template <class Operator, class... Extra>
Tensor& unary_(Tensor& x, Extra... extra) {
  if (is_plain(x) && (is_real(extra) && ...)) return x;
  return OnMeta<Operator>::call(x, extra...);
}
template <class Operator, class... Extra>
Tensor binary(const Tensor& x, const Tensor& y, Extra... extra) {
  if (are_alike(x, y) && (is_real(extra) && ...)) return like(x);
  Tensor result = OnMeta<Operator>::call(x, y, extra...);
  check_has_kernel(Operator::name, result);
  return result;
}
template <class Operator, class... Extra>
Tensor& binary_(Tensor& x, const Tensor& y, Extra... extra) {
  if (are_alike(x, y) && is_apart(x, y) && (is_real(extra) && ...)) return x;
  return OnMeta<Operator>::call(x, y, extra...);
}
template <class Operator>
Tensor& ternary_(Tensor& x, const Tensor& y, const Tensor& z, const Scalar& value) {
  if (are_alike(x, y) && are_alike(x, z) && is_apart(x, y) && is_apart(x, z) && is_real(value)) return x;
  TORCH_CHECK_NOT_IMPLEMENTED(x.scalar_type() != c10::kBool || !pretended_device().is_cpu(), '"', Operator::name,
                              "\" not implemented for 'Bool'");
  return OnMeta<Operator>::call(x, y, z, value);
}

// ---- Fresh tensors

bool is_dense_here(std::optional<c10::Layout> layout, std::optional<c10::Device> device, std::optional<bool> pinned) {
  return layout.value_or(c10::Layout::Strided) == c10::Layout::Strided && (!device || device->is_meta()) &&
         !pinned.value_or(false);
}

Tensor empty_of(c10::IntArrayRef sizes, std::optional<ScalarType> dtype, std::optional<c10::Layout> layout,
                std::optional<c10::Device> device, std::optional<bool> pinned, std::optional<MemoryFormat> format) {
  const MemoryFormat wanted = format.value_or(MemoryFormat::Contiguous);
  // A kernel may ask for a small tensor on the host.
  if (is_dense_here(layout, device, pinned) && wanted != MemoryFormat::Preserve) {
    return rules::empty(sizes, dtype ? *dtype : c10::get_default_dtype_as_scalartype(), wanted);
  }
  return OnMeta<at::_ops::empty_memory_format>::call(c10::fromIntArrayRefSlow(sizes), dtype, layout, device, pinned,
                                                     format);
}

template <class Operator>
Tensor fresh_like(const Tensor& x, std::optional<ScalarType> dtype, std::optional<c10::Layout> layout,
                  std::optional<c10::Device> device, std::optional<bool> pinned, std::optional<MemoryFormat> format) {
  const MemoryFormat wanted = format.value_or(MemoryFormat::Preserve);
  if (is_dense_here(layout, device, pinned) && is_row_major(x) &&
      (wanted == MemoryFormat::Preserve || wanted == MemoryFormat::Contiguous)) {
    return rules::empty(x.sizes(), dtype.value_or(x.scalar_type()));
  }
  return OnMeta<Operator>::call(x, dtype, layout, device, pinned, format);
}

Tensor clone(const Tensor& x, std::optional<MemoryFormat> format) {
  const MemoryFormat wanted = format.value_or(MemoryFormat::Preserve);
  if (is_row_major(x) && (wanted == MemoryFormat::Preserve || wanted == MemoryFormat::Contiguous)) return like(x);
  return OnMeta<at::_ops::clone>::call(x, format);
}

// ---- Joining and picking

Tensor cat(const at::ITensorListRef& tensors, int64_t dim) {
  const auto refer = [&] { return OnMeta<at::_ops::cat>::call(tensors, dim); };
  if (tensors.size() == 0) return refer();
  const Tensor& first = *tensors.begin();
  // 1-dimensional empty tensors are skipped, whatever the others look like.
  if (!is_row_major(first) || first.dim() == 0 || dim < -first.dim() || dim >= first.dim()) return refer();
  const auto d = static_cast<size_t>(dim < 0 ? dim + first.dim() : dim);
  c10::DimVector sizes(first.sizes());
  sizes[d] = 0;
  for (const Tensor& tensor : tensors) {
    if (tensor.scalar_type() != first.scalar_type() || tensor.dim() != first.dim() || !is_row_major(tensor)) {
      return refer();
    }
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (i == d) {
        sizes[d] += tensor.sizes()[d];
      } else if (tensor.sizes()[i] != sizes[i]) {
        return refer();
      }
    }
  }
  // One whose strides look like channels-last may decide the result's format.
  if (first.suggest_memory_format() != MemoryFormat::Contiguous) return refer();
  return rules::empty(sizes, first);
}

// Indices of one shape, side by side: their shape takes the place of the dimensions they index. Apart, they come first,
// and the memory order of the result is TensorIterator's affair; a mask's number of results depends on data.
Tensor index(const Tensor& x, const c10::List<std::optional<Tensor>>& indices) {
  const auto refer = [&] { return OnMeta<at::_ops::index_Tensor>::call(x, indices); };
  if (!is_row_major(x) || indices.size() > static_cast<size_t>(x.dim())) return refer();
  const Tensor* shape = nullptr;
  size_t begin = 0;
  size_t end = 0;
  const c10::IValue list(indices);
  const auto elements = list.toListRef();
  for (size_t i = 0; i < elements.size(); ++i) {
    if (!elements[i].isTensor() || !elements[i].toTensor().defined()) continue;
    const Tensor& one = elements[i].toTensor();
    if (one.scalar_type() != ScalarType::Long || !is_row_major(one)) return refer();
    if (shape == nullptr) {
      shape = &one;
      begin = i;
    } else if (end != i || one.sizes() != shape->sizes()) {
      return refer();
    }
    end = i + 1;
  }
  if (shape == nullptr) return refer();
  c10::DimVector sizes(x.sizes().slice(0, begin));
  sizes.append(shape->sizes().begin(), shape->sizes().end());
  sizes.append(x.sizes().begin() + end, x.sizes().end());
  return rules::empty(sizes, x);
}

namespace op = at::_ops;

void register_pointwise(RuleRegistry& registry) {
  registry.add("aten::add.Tensor", &binary<op::add_Tensor, const Scalar&>);
  registry.add("aten::sub.Tensor", &binary<op::sub_Tensor, const Scalar&>);
  registry.add("aten::mul.Tensor", &binary<op::mul_Tensor>);
  registry.add("aten::div.Tensor", &binary<op::div_Tensor>);
  registry.add("aten::add_.Tensor", &binary_<op::add__Tensor, const Scalar&>);
  registry.add("aten::sub_.Tensor", &binary_<op::sub__Tensor, const Scalar&>);
  registry.add("aten::mul_.Tensor", &binary_<op::mul__Tensor>);
  registry.add("aten::div_.Tensor", &binary_<op::div__Tensor>);
  registry.add("aten::addcmul_", &ternary_<op::addcmul_>);
  registry.add("aten::addcdiv_", &ternary_<op::addcdiv_>);
  registry.add("aten::add.Scalar", &unary<op::add_Scalar, const Scalar&, const Scalar&>);
  registry.add("aten::sub.Scalar", &unary<op::sub_Scalar, const Scalar&, const Scalar&>);
  registry.add("aten::mul.Scalar", &unary<op::mul_Scalar, const Scalar&>);
  registry.add("aten::div.Scalar", &unary<op::div_Scalar, const Scalar&>);
  registry.add("aten::pow.Tensor_Scalar", &unary<op::pow_Tensor_Scalar, const Scalar&>);
  registry.add("aten::add_.Scalar", &unary_<op::add__Scalar, const Scalar&, const Scalar&>);
  registry.add("aten::sub_.Scalar", &unary_<op::sub__Scalar, const Scalar&, const Scalar&>);
  registry.add("aten::mul_.Scalar", &unary_<op::mul__Scalar, const Scalar&>);
  registry.add("aten::div_.Scalar", &unary_<op::div__Scalar, const Scalar&>);
  registry.add("aten::fill_.Scalar", &unary_<op::fill__Scalar, const Scalar&>);
  registry.add("aten::neg", &unary<op::neg>);
  registry.add("aten::exp", &unary<op::exp>);
  registry.add("aten::log", &unary<op::log>);
  registry.add("aten::sqrt", &unary<op::sqrt>);
  registry.add("aten::rsqrt", &unary<op::rsqrt>);
  registry.add("aten::reciprocal", &unary<op::reciprocal>);
  registry.add("aten::tanh", &unary<op::tanh>);
  registry.add("aten::sigmoid", &unary<op::sigmoid>);
  registry.add("aten::silu", &unary<op::silu>);
  registry.add("aten::gelu", &unary<op::gelu, std::string_view>);
  registry.add("aten::silu_backward", &binary<op::silu_backward>);
  registry.add("aten::gelu_backward", &binary<op::gelu_backward, std::string_view>);
  registry.add("aten::tanh_backward", &binary<op::tanh_backward>);
  registry.add("aten::sigmoid_backward", &binary<op::sigmoid_backward>);
  registry.add("aten::threshold_backward", &binary<op::threshold_backward, const Scalar&>);
}

}  // namespace

void register_plain_operands(RuleRegistry& registry) {
  register_pointwise(registry);
  registry.add("aten::empty.memory_format", &empty_of);
  registry.add("aten::empty_like", &fresh_like<op::empty_like>);
  registry.add("aten::zeros_like", &fresh_like<op::zeros_like>);
  registry.add("aten::ones_like", &fresh_like<op::ones_like>);
  registry.add("aten::clone", &clone);
  registry.add("aten::cat", &cat);
  registry.add("aten::index.Tensor", &index);
}

}  // namespace shadowgraph::rules
