// Views that programs make all the time. Their Meta kernels are right but reach the view through more dispatcher calls
// (t -> transpose -> as_strided) and make a tensor that must then be wrapped. These rules make the fake at once. Errors
// are left to libtorch's own kernel.
#include <ATen/ExpandUtils.h>
#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_ops.h>
#include <ATen/ops/_unsafe_view_ops.h>
#include <ATen/ops/expand_ops.h>
#include <ATen/ops/permute_ops.h>
#include <ATen/ops/select_ops.h>
#include <ATen/ops/set_ops.h>
#include <ATen/ops/slice_ops.h>
#include <ATen/ops/t_ops.h>
#include <ATen/ops/view_ops.h>
#include <c10/core/WrapDimMinimal.h>

#include <limits>

#include "core/fake/converter.h"
#include "core/fake/fake_tensor_impl.h"
#include "core/fake/meta_kernel.h"
#include "core/fake/mode_state.h"
#include "core/fake/thread_state.h"
#include "core/rules/families.h"
#include "core/rules/registry.h"
#include "shadowgraph/error.h"
#include "shadowgraph/shape_rules.h"

namespace shadowgraph::rules {
namespace {

using at::Tensor;
using c10::DimVector;
using c10::IntArrayRef;

// A view to be: a tensor's sizes, strides and offset, to be changed in place.
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

Tensor same(const Tensor& self) { return alias(self, self.sizes(), self.strides(), self.storage_offset()); }

// The Meta kernel does not ask whether the storage is large enough.
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
  if (self.dim() == 0 || step <= 0) {
    return OnMeta<at::_ops::slice_Tensor>::call(self, dim, start, end, step);
  }
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

// As eager's resize: sizes that are there already keep their strides.
template <class Set>
Tensor& keeping_strides(Tensor& self, Set&& set) {
  const EditedView before(self);
  set();
  if (self.sizes() == IntArrayRef(before.sizes)) {
    self.unsafeGetTensorImpl()->set_sizes_and_strides(before.sizes, before.strides);
  }
  return self;
}

Tensor& set_nothing(Tensor& self) {
  return keeping_strides(self, [&] { OnMeta<at::_ops::set_>::call(self); });
}

// A storage of real memory is converted as a tensor on it would be: what deepcopy and pickle make tensors with.
c10::Storage storage_for(const Tensor& self, const c10::Storage& source) {
  const FakeTensorImpl* fake = as_fake(self);
  if (fake == nullptr || source.device_type() == c10::DeviceType::Meta) return source;
  ModeState* mode = thread_state.mode;
  const c10::Device device = fake->pretended_device();
  if (device != source.device() && !(mode != nullptr && mode->maps_devices())) {
    throw DeviceMismatchError("Attempted to set the storage of a tensor on device \"" + device.str() +
                              "\" to a storage on different device \"" + source.device().str() +
                              "\". This is no longer allowed; the devices must match. Make the tensor on " +
                              source.device().str() + ", and move it afterwards with .to()");
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

}  // namespace

void register_views(RuleRegistry& registry) {
  registry.add("aten::as_strided", &as_strided);
  registry.add("aten::transpose.int", &transposed);
  registry.add("aten::t", &t);
  registry.add("aten::detach", &same);
  registry.add("aten::alias", &same);
  registry.add("aten::view", &view<at::_ops::view>);
  registry.add("aten::_unsafe_view", &view<at::_ops::_unsafe_view>);
  registry.add("aten::_reshape_alias", &reshape_alias);
  registry.add("aten::expand", &expand);
  registry.add("aten::permute", &permute);
  registry.add("aten::slice.Tensor", &slice);
  registry.add("aten::select.int", &select);
  registry.add("aten::unsqueeze", &unsqueeze);
  registry.add("aten::squeeze.dim", &squeeze);
  registry.add("aten::set_", &set_nothing);
  registry.add("aten::set_.source_Storage", &set_storage);
  registry.add("aten::set_.source_Storage_storage_offset", &set_part_of_storage);
}

}  // namespace shadowgraph::rules
