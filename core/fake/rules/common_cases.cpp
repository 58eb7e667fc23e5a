// Fast paths for frequent operators.
//
// Views: the Meta kernels are correct but take several dispatcher calls (t -> transpose -> as_strided) and return a
// tensor that must be wrapped. These rules create the fake directly. Errors are left to libtorch's kernel.
#include <ATen/ExpandUtils.h>
#include <ATen/InferSize.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/Operators.h>
#include <ATen/TensorUtils.h>
#include <ATen/native/Resize.h>
#include <c10/core/WrapDimMinimal.h>

#include <limits>

#include "core/fake/converter.h"
#include "core/fake/fake_tensor_impl.h"
#include "core/fake/mode_state.h"
#include "core/fake/rules/registry.h"
#include "core/fake/thread_state.h"
#include "core/libtorch/kernels.h"
#include "shadowgraph/error.h"

namespace shadowgraph::rules {
namespace {

// The sizes, strides and offset of a view, modified in place.
struct EditedView {
  DimVector sizes;
  DimVector strides;
  int64_t offset;

  explicit EditedView(const Tensor& base)
      : sizes(base.sizes()), strides(base.strides()), offset(base.storage_offset()) {}
  void drop(size_t d) {
    sizes.erase(sizes.begin() + static_cast<std::ptrdiff_t>(d));
    strides.erase(strides.begin() + static_cast<std::ptrdiff_t>(d));
  }
  Tensor of(const Tensor& base) const { return alias(base, sizes, strides, offset); }
};

Tensor same_tensor(const Tensor& self) { return alias(self, self.sizes(), self.strides(), self.storage_offset()); }

// Unlike the Meta kernel, checks that the storage is large enough.
Tensor as_strided(const Tensor& self, IntArrayRef sizes, IntArrayRef strides, std::optional<int64_t> offset) {
  const int64_t start = offset.value_or(self.storage_offset());
  at::native::checkAsStridedArgs<int64_t>(sizes, strides, start);
  at::native::checkInBoundsForStorage<int64_t>(sizes, strides, start, self.dtype(),
                                               self.unsafeGetTensorImpl()->unsafe_storage());
  return alias(self, sizes, strides, start);
}

Tensor transposed(const Tensor& self, int64_t dim0, int64_t dim1) {
  const auto d0 = static_cast<size_t>(c10::maybe_wrap_dim(dim0, self.dim()));
  const auto d1 = static_cast<size_t>(c10::maybe_wrap_dim(dim1, self.dim()));
  EditedView view(self);
  if (!view.sizes.empty()) {
    std::swap(view.sizes[d0], view.sizes[d1]);
    std::swap(view.strides[d0], view.strides[d1]);
  }
  return view.of(self);
}

Tensor t(const Tensor& self) {
  if (self.dim() > 2) return OnMeta<at::_ops::t>::call(self);
  return self.dim() < 2 ? transposed(self, 0, 0) : transposed(self, 0, 1);
}

template <class Operator>
Tensor view(const Tensor& self, IntArrayRef sizes) {
  const DimVector inferred = at::infer_size_dv(sizes, self.numel());
  const auto strides = at::detail::computeStride(self.sizes(), self.strides(), inferred);
  if (!strides) return OnMeta<Operator>::call(self, c10::fromIntArrayRefSlow(sizes));
  return alias(self, inferred, *strides, self.storage_offset());
}

Tensor reshape_alias(const Tensor& self, IntArrayRef sizes, IntArrayRef strides) {
  if (sizes.size() != strides.size()) {
    return OnMeta<at::_ops::_reshape_alias>::call(self, c10::fromIntArrayRefSlow(sizes),
                                                  c10::fromIntArrayRefSlow(strides));
  }
  return alias(self, sizes, strides, self.storage_offset());
}

Tensor expand(const Tensor& self, IntArrayRef sizes, bool implicit) {
  if (static_cast<int64_t>(sizes.size()) < self.dim()) {
    return OnMeta<at::_ops::expand>::call(self, c10::fromIntArrayRefSlow(sizes), implicit);
  }
  const auto expanded = at::inferExpandGeometry_dimvector(self.sizes(), self.strides(), sizes);
  return alias(self, expanded.sizes, expanded.strides, self.storage_offset());
}

Tensor permute(const Tensor& self, IntArrayRef dims) {
  const auto rank = static_cast<size_t>(self.dim());
  uint64_t seen = 0;
  if (dims.size() != rank || rank > 64) return OnMeta<at::_ops::permute>::call(self, dims);
  EditedView view(self);
  for (size_t i = 0; i < rank; ++i) {
    const auto d = static_cast<size_t>(c10::maybe_wrap_dim(dims[i], self.dim()));
    if ((seen >> d & 1) != 0) return OnMeta<at::_ops::permute>::call(self, dims);
    seen |= uint64_t{1} << d;
    view.sizes[i] = self.sizes()[d];
    view.strides[i] = self.strides()[d];
  }
  return view.of(self);
}

Tensor slice(const Tensor& self, int64_t dim, std::optional<int64_t> start, std::optional<int64_t> end, int64_t step) {
  if (self.dim() == 0 || step <= 0) return OnMeta<at::_ops::slice_Tensor>::call(self, dim, start, end, step);
  const auto d = static_cast<size_t>(c10::maybe_wrap_dim(dim, self.dim()));
  EditedView view(self);
  const int64_t size = view.sizes[d];
  const auto bounded = [&](int64_t position) {
    return std::clamp<int64_t>(position < 0 ? position + size : position, 0, size);
  };
  const int64_t first = bounded(start.value_or(0));
  const int64_t last = std::max(bounded(end.value_or(std::numeric_limits<int64_t>::max())), first);
  view.offset += first * view.strides[d];
  view.sizes[d] = (last - first + step - 1) / step;
  view.strides[d] *= step;
  return view.of(self);
}

Tensor select(const Tensor& self, int64_t dim, int64_t index) {
  const auto refer = [&] { return OnMeta<at::_ops::select_int>::call(self, dim, index); };
  if (self.dim() == 0) return refer();
  const auto d = static_cast<size_t>(c10::maybe_wrap_dim(dim, self.dim()));
  EditedView view(self);
  if (index < -view.sizes[d] || index >= view.sizes[d]) return refer();
  view.offset += (index < 0 ? index + view.sizes[d] : index) * view.strides[d];
  view.drop(d);
  return view.of(self);
}

Tensor unsqueeze(const Tensor& self, int64_t dim) {
  const auto d = static_cast<size_t>(c10::maybe_wrap_dim(dim, self.dim() + 1));
  EditedView view(self);
  const int64_t stride = d < view.sizes.size() ? view.sizes[d] * view.strides[d] : 1;
  view.sizes.insert(view.sizes.begin() + static_cast<std::ptrdiff_t>(d), 1);
  view.strides.insert(view.strides.begin() + static_cast<std::ptrdiff_t>(d), stride);
  return view.of(self);
}

Tensor squeeze(const Tensor& self, int64_t dim) {
  const auto d = static_cast<size_t>(c10::maybe_wrap_dim(dim, self.dim()));
  EditedView view(self);
  if (!view.sizes.empty() && view.sizes[d] == 1) view.drop(d);
  return view.of(self);
}

// As in eager's resize: unchanged sizes keep their strides.
template <class Set>
Tensor& keeping_strides(Tensor& self, Set&& set) {
  const EditedView before(self);
  set();
  if (self.sizes() == IntArrayRef(before.sizes)) {
    self.unsafeGetTensorImpl()->set_sizes_and_strides(before.sizes, before.strides);
  }
  return self;
}

// The Meta kernel does not check memory that is read and written.
Tensor& copy_(Tensor& self, const Tensor& source, bool non_blocking) {
  const bool alias = self.is_alias_of(source);
  const bool itself = alias && self.storage_offset() == source.storage_offset() && self.sizes() == source.sizes() &&
                      self.strides() == source.strides() && self.scalar_type() == source.scalar_type();
  if (!itself) {
    at::assert_no_internal_overlap(self);
    if (alias) at::assert_no_partial_overlap(self, source);
  }
  return OnMeta<at::_ops::copy_>::call(self, source, non_blocking);
}

Tensor& set_nothing(Tensor& self) {
  return keeping_strides(self, [&] { OnMeta<at::_ops::set_>::call(self); });
}

// Converts a storage of real memory like a tensor on it. deepcopy and pickle create tensors this way.
c10::Storage storage_for(const Tensor& self, const c10::Storage& source) {
  const FakeTensorImpl* fake = as_fake(self);
  if (fake == nullptr || source.device_type() == c10::DeviceType::Meta) return source;
  ModeState* mode = thread_state.mode;
  const c10::Device device = fake->simulated_device();
  if (device != source.device() && !(mode != nullptr && mode->maps_devices())) {
    throw Error("Attempted to set the storage of a tensor on device \"" + device.str() +
                "\" to a storage on different device \"" + source.device().str() +
                "\". This is no longer allowed; the devices must match. Create the tensor on " + source.device().str() +
                ", and move it afterwards with .to()");
  }
  return fake_storage_of(source, mode, device);
}

Tensor& set_storage(Tensor& self, c10::Storage source) {
  source = storage_for(self, source);
  return keeping_strides(self, [&] { OnMeta<at::_ops::set__source_Storage>::call(self, source); });
}

Tensor& set_part_of_storage(Tensor& self, c10::Storage source, int64_t offset, IntArrayRef sizes, IntArrayRef strides) {
  source = storage_for(self, source);
  return OnMeta<at::_ops::set__source_Storage_storage_offset>::call(
      self, source, offset, c10::fromIntArrayRefSlow(sizes), c10::fromIntArrayRefSlow(strides));
}

// ---- Operators whose Meta kernels are correct but slow, for contiguous operands of one floating-point dtype.
//
// TensorIterator computes the result of an add for any operands. For two of the same shape and dtype without gaps the
// result is like either of them, which is the common case in a training step. Each function here checks for that case
// and forwards everything else, errors included, to the Meta kernel.

// Strides of a new tensor. Not is_contiguous(): TensorIterator sorts all dimensions by stride, including those of size
// 1, whose strides are arbitrary in a contiguous tensor.
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
  const ScalarType dtype = x.scalar_type();
  return (dtype == at::kFloat || dtype == at::kDouble || dtype == at::kHalf || dtype == at::kBFloat16) &&
         is_row_major(x);
}

bool are_alike(const Tensor& x, const Tensor& y) {
  return is_plain(x) && y.defined() && y.scalar_type() == x.scalar_type() && y.sizes() == x.sizes() && is_plain(y);
}

// Returns whether `x` can be written while `y` is read; partial overlap is an error.
bool is_apart(const Tensor& x, const Tensor& y) {
  return x.is_same(y) ||
         !x.unsafeGetTensorImpl()->unsafe_storage().is_alias_of(y.unsafeGetTensorImpl()->unsafe_storage());
}

// A number that does not change a floating-point result's dtype.
bool is_real(const Scalar& number) { return number.isFloatingPoint() || number.isIntegral(/*includeBool=*/false); }
// Other arguments do not affect the result.
template <class T>
bool is_real(const T&) {
  return true;
}

bool is_real(std::string_view approximate) {  // gelu's argument
  TORCH_CHECK(approximate == "none" || approximate == "tanh", "approximate argument must be either none or tanh.");
  return true;
}

Tensor like(const Tensor& x) { return rules::empty(x.sizes(), x.scalar_type()); }

// The CPU has no such kernel, although TensorIterator promotes operands to the dtype.
void check_has_kernel(const char* name, const Tensor& result) {
  TORCH_CHECK_NOT_IMPLEMENTED(!is_bcomplex32(result.scalar_type()) || !simulated_device().is_cpu(), '"', name,
                              "\" not implemented for 'BComplex32'");
}

// One, two and three operands, new results and in place.
template <class Operator, class Signature = typename Operator::schema>
struct Pointwise;
template <class Operator, class... Extra>
struct Pointwise<Operator, Tensor(const Tensor&, Extra...)> {
  static Tensor run(const Tensor& x, Extra... extra) {
    if (is_plain(x) && (is_real(extra) && ...)) return like(x);
    Tensor result = OnMeta<Operator>::call(x, extra...);
    check_has_kernel(Operator::name, result);
    return result;
  }
};
template <class Operator, class... Extra>
struct Pointwise<Operator, Tensor&(Tensor&, Extra...)> {
  static Tensor& run(Tensor& x, Extra... extra) {
    return is_plain(x) && (is_real(extra) && ...) ? x : OnMeta<Operator>::call(x, extra...);
  }
};
template <class Operator, class... Extra>
struct Pointwise<Operator, Tensor(const Tensor&, const Tensor&, Extra...)> {
  static Tensor run(const Tensor& x, const Tensor& y, Extra... extra) {
    if (are_alike(x, y) && (is_real(extra) && ...)) return like(x);
    Tensor result = OnMeta<Operator>::call(x, y, extra...);
    check_has_kernel(Operator::name, result);
    return result;
  }
};
template <class Operator, class... Extra>
struct Pointwise<Operator, Tensor&(Tensor&, const Tensor&, Extra...)> {
  static Tensor& run(Tensor& x, const Tensor& y, Extra... extra) {
    const bool plain = are_alike(x, y) && is_apart(x, y) && (is_real(extra) && ...);
    return plain ? x : OnMeta<Operator>::call(x, y, extra...);
  }
};
template <class Operator>
struct Pointwise<Operator, Tensor&(Tensor&, const Tensor&, const Tensor&, const Scalar&)> {
  static Tensor& run(Tensor& x, const Tensor& y, const Tensor& z, const Scalar& value) {
    if (are_alike(x, y) && are_alike(x, z) && is_apart(x, y) && is_apart(x, z) && is_real(value)) return x;
    TORCH_CHECK_NOT_IMPLEMENTED(x.scalar_type() != c10::kBool || !simulated_device().is_cpu(), '"', Operator::name,
                                "\" not implemented for 'Bool'");
    return OnMeta<Operator>::call(x, y, z, value);
  }
};

template <class... Operators>
void add_pointwise(RuleRegistry& registry, std::source_location place = std::source_location::current()) {
  (add_for<Operators>(registry, &Pointwise<Operators>::run, place), ...);
}

bool is_dense_here(OptionalLayout layout, OptionalDevice device, OptionalBool pinned) {
  return layout.value_or(c10::Layout::Strided) == c10::Layout::Strided && (!device || device->is_meta()) &&
         !pinned.value_or(false);
}

Tensor empty_of(IntArrayRef sizes, OptionalDtype dtype, OptionalLayout layout, OptionalDevice device,
                OptionalBool pinned, OptionalFormat format) {
  const MemoryFormat wanted = format.value_or(MemoryFormat::Contiguous);
  // A kernel may allocate a small tensor on the host.
  if (is_dense_here(layout, device, pinned) && wanted != MemoryFormat::Preserve) {
    return rules::empty(sizes, dtype ? *dtype : c10::get_default_dtype_as_scalartype(), wanted);
  }
  return OnMeta<at::_ops::empty_memory_format>::call(c10::fromIntArrayRefSlow(sizes), dtype, layout, device, pinned,
                                                     format);
}

template <class Operator>
Tensor fresh_like(const Tensor& x, OptionalDtype dtype, OptionalLayout layout, OptionalDevice device,
                  OptionalBool pinned, OptionalFormat format) {
  const MemoryFormat wanted = format.value_or(MemoryFormat::Preserve);
  if (is_dense_here(layout, device, pinned) && is_row_major(x) &&
      (wanted == MemoryFormat::Preserve || wanted == MemoryFormat::Contiguous)) {
    return rules::empty(x.sizes(), dtype.value_or(x.scalar_type()));
  }
  return OnMeta<Operator>::call(x, dtype, layout, device, pinned, format);
}

Tensor clone(const Tensor& x, OptionalFormat format) {
  const MemoryFormat wanted = format.value_or(MemoryFormat::Preserve);
  if (is_row_major(x) && (wanted == MemoryFormat::Preserve || wanted == MemoryFormat::Contiguous)) return like(x);
  return OnMeta<at::_ops::clone>::call(x, format);
}

Tensor cat(const at::ITensorListRef& tensors, int64_t dim) {
  const auto refer = [&] { return OnMeta<at::_ops::cat>::call(tensors, dim); };
  if (tensors.size() == 0) return refer();
  const Tensor& first = *tensors.begin();
  // Empty 1-D tensors are skipped, whatever the others are.
  if (!is_row_major(first) || first.dim() == 0 || dim < -first.dim() || dim >= first.dim()) return refer();
  const auto d = static_cast<size_t>(dim < 0 ? dim + first.dim() : dim);
  DimVector sizes(first.sizes());
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
  // A tensor whose strides look like channels-last may determine the result's format.
  if (first.suggest_memory_format() != MemoryFormat::Contiguous) return refer();
  return rules::empty(sizes, first);
}

// Adjacent indices of one shape: their shape replaces the dimensions they index. For others the indexed dimensions come
// first and TensorIterator determines the memory format; a mask's number of results depends on data.
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
  DimVector sizes(x.sizes().slice(0, begin));
  sizes.append(shape->sizes().begin(), shape->sizes().end());
  sizes.append(x.sizes().begin() + end, x.sizes().end());
  return rules::empty(sizes, x);
}

namespace op = at::_ops;

}  // namespace

void register_common_cases(RuleRegistry& registry) {
  registry.add("aten::as_strided", &as_strided);
  registry.add("aten::transpose.int", &transposed);
  registry.add("aten::t", &t);
  registry.add("aten::detach", &same_tensor);
  registry.add("aten::alias", &same_tensor);
  registry.add("aten::view", &view<at::_ops::view>);
  registry.add("aten::_unsafe_view", &view<at::_ops::_unsafe_view>);
  registry.add("aten::_reshape_alias", &reshape_alias);
  registry.add("aten::expand", &expand);
  registry.add("aten::permute", &permute);
  registry.add("aten::slice.Tensor", &slice);
  registry.add("aten::select.int", &select);
  registry.add("aten::unsqueeze", &unsqueeze);
  registry.add("aten::squeeze.dim", &squeeze);
  registry.add("aten::copy_", &copy_);
  registry.add("aten::set_", &set_nothing);
  registry.add("aten::set_.source_Storage", &set_storage);
  registry.add("aten::set_.source_Storage_storage_offset", &set_part_of_storage);
  add_pointwise<op::add_Tensor, op::sub_Tensor, op::mul_Tensor, op::div_Tensor, op::add__Tensor, op::sub__Tensor,
                op::mul__Tensor, op::div__Tensor, op::addcmul_, op::addcdiv_, op::add_Scalar, op::sub_Scalar,
                op::mul_Scalar, op::div_Scalar, op::pow_Tensor_Scalar, op::add__Scalar, op::sub__Scalar,
                op::mul__Scalar, op::div__Scalar, op::fill__Scalar, op::neg, op::exp, op::log, op::sqrt, op::rsqrt,
                op::reciprocal, op::tanh, op::sigmoid, op::silu, op::gelu, op::silu_backward, op::gelu_backward,
                op::tanh_backward, op::sigmoid_backward, op::threshold_backward>(registry);
  registry.add("aten::empty.memory_format", &empty_of);
  registry.add("aten::empty_like", &fresh_like<op::empty_like>);
  registry.add("aten::zeros_like", &fresh_like<op::zeros_like>);
  registry.add("aten::ones_like", &fresh_like<op::ones_like>);
  registry.add("aten::clone", &clone);
  registry.add("aten::cat", &cat);
  registry.add("aten::index.Tensor", &index);
}

}  // namespace shadowgraph::rules
