#include "core/fake/fake_tensor_impl.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <atomic>
#include <typeinfo>

#include "core/fake/mode_state.h"
#include "core/fake/thread_state.h"
#include "shadowgraph/error.h"

namespace shadowgraph {

namespace {

c10::DispatchKeySet make_key_set(c10::DispatchKey backend_key) {
  using c10::DispatchKeySet;
  const auto backend = c10::toBackendComponent(backend_key);
  return DispatchKeySet(backend) | DispatchKeySet(c10::DispatchKey::Dense) | DispatchKeySet(kFakeKey) |
         c10::getAutogradRelatedKeySetFromBackend(backend) | c10::getAutocastRelatedKeySetFromBackend(backend) |
         DispatchKeySet(c10::DispatchKey::ADInplaceOrView);
}
const c10::DispatchKeySet kCpuKeys = make_key_set(c10::DispatchKey::CPU);
const c10::DispatchKeySet kCudaKeys = make_key_set(c10::DispatchKey::CUDA);
const c10::DispatchKeySet kMetaKeys = make_key_set(c10::DispatchKey::Meta);
const c10::DispatchKeySet kXpuKeys = make_key_set(c10::DispatchKey::XPU);
const c10::DispatchKeySet kMpsKeys = make_key_set(c10::DispatchKey::MPS);
const c10::DispatchKeySet kPrivateUse1Keys = make_key_set(c10::DispatchKey::PrivateUse1);

std::atomic<bool> others_simulated{false};

}  // namespace

bool other_accelerators_are_simulated() noexcept { return others_simulated.load(std::memory_order_relaxed); }

c10::DispatchKeySet fake_key_set(c10::Device device) {
  switch (device.type()) {
    case c10::DeviceType::CUDA:
      return kCudaKeys;
    case c10::DeviceType::CPU:
      return kCpuKeys;
    case c10::DeviceType::Meta:
      return kMetaKeys;
    case c10::DeviceType::XPU:
    case c10::DeviceType::MPS:
    case c10::DeviceType::PrivateUse1:
      if (!others_simulated.load(std::memory_order_relaxed)) others_simulated.store(true, std::memory_order_relaxed);
      return device.type() == c10::DeviceType::XPU   ? kXpuKeys
             : device.type() == c10::DeviceType::MPS ? kMpsKeys
                                                     : kPrivateUse1Keys;
    default:
      throw Error("fake tensors support devices of type cpu, cuda, xpu, mps, privateuseone and meta, not " +
                  device.str());
  }
}

c10::Device with_current_index(c10::DeviceType type) {
  const auto* guard = c10::impl::device_guard_impl_registry[static_cast<size_t>(type)].load();
  return guard != nullptr && guard->deviceCount() > 0 ? guard->getDevice() : c10::Device(type, 0);
}

FakeTensorImpl* as_fake(c10::TensorImpl* impl) {
  // The key is not sufficient: the result of a view kernel inherits its base's keys but is a plain TensorImpl.
  if (!impl->key_set().has(kFakeKey) || typeid(*impl) != typeid(FakeTensorImpl)) return nullptr;
  return static_cast<FakeTensorImpl*>(impl);
}

FakeTensorImpl* as_fake(const at::Tensor& tensor) {
  return tensor.defined() ? as_fake(tensor.unsafeGetTensorImpl()) : nullptr;
}

bool is_fake(const at::Tensor& tensor) { return as_fake(tensor) != nullptr; }

FakeTensorImpl::FakeTensorImpl(c10::Storage&& storage, c10::DispatchKeySet keys, caffe2::TypeMeta dtype,
                               c10::Device device)
    : TensorImpl(std::move(storage), keys, dtype), simulated_device_(device) {
  set_custom_device(true);
}

// Copies the geometry with all properties that libtorch derives from it (such as contiguity), since this runs for every
// result of every call.
FakeTensorImpl::FakeTensorImpl(const c10::TensorImpl& meta, c10::Device device)
    : TensorImpl(fake_key_set(device), meta.dtype(), c10::Device(c10::DeviceType::Meta)), simulated_device_(device) {
  const c10::DispatchKeySet keys = key_set_;  // without autograd's in inference mode
  copy_tensor_metadata(&meta, this, version_counter(), /*allow_tensor_metadata_change=*/true);
  key_set_ = keys;
  set_custom_device(true);
  if (C10_UNLIKELY(meta.is_conj())) _set_conj(true);
  if (C10_UNLIKELY(meta.is_neg())) _set_neg(true);
  if (C10_UNLIKELY(meta._is_zerotensor())) key_set_ = key_set_.add(c10::DispatchKey::ZeroTensor);
}

FakeTensorImpl::FakeTensorImpl(ImplType view, c10::Storage&& storage, c10::DispatchKeySet keys, caffe2::TypeMeta dtype,
                               c10::Device device)
    : TensorImpl(view, std::move(storage), keys, dtype), simulated_device_(device) {
  set_custom_device(true);
}

c10::Storage meta_storage(size_t bytes) {
  static c10::Allocator* const allocator = c10::GetAllocator(c10::DeviceType::Meta);
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes, allocator,
                                               /*resizable=*/true);
}

at::Tensor FakeTensorImpl::empty(c10::IntArrayRef sizes, caffe2::TypeMeta dtype, c10::MemoryFormat format,
                                 c10::Device device) {
  at::detail::check_size_nonnegative(sizes);
  const size_t bytes = at::detail::computeStorageNbytesContiguous(sizes, dtype.itemsize());
  auto fake = c10::make_intrusive<FakeTensorImpl>(meta_storage(bytes), fake_key_set(device), dtype, device);
  // New tensors already have sizes [0].
  if (sizes.size() != 1 || sizes[0] != 0) fake->set_sizes_contiguous(sizes);
  if (format != c10::MemoryFormat::Contiguous) fake->empty_tensor_restride(format);
  fake->fresh_ = true;
  return at::Tensor(std::move(fake));
}

at::Tensor FakeTensorImpl::empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides, caffe2::TypeMeta dtype,
                                         c10::Device device) {
  at::detail::check_size_nonnegative(sizes);
  const size_t bytes = at::detail::computeStorageNbytes(sizes, strides, dtype.itemsize());
  auto fake = c10::make_intrusive<FakeTensorImpl>(meta_storage(bytes), fake_key_set(device), dtype, device);
  fake->set_sizes_and_strides(sizes, strides);
  fake->fresh_ = true;
  return at::Tensor(std::move(fake));
}

at::Tensor FakeTensorImpl::view(c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset) const {
  auto fake =
      c10::make_intrusive<FakeTensorImpl>(VIEW, c10::Storage(unsafe_storage()), key_set(), dtype(), simulated_device_);
  fake->set_sizes_and_strides(sizes, strides, offset);
  fake->fresh_ = true;
  fake->view_of_real_ = version_of_real_;
  return at::Tensor(std::move(fake));
}

at::Tensor FakeTensorImpl::wrap(const c10::TensorImpl& meta, c10::Device device) {
  if (C10_UNLIKELY(meta.layout() != c10::Layout::Strided)) {
    throw NoRuleError(
        "the result has layout " + c10::str(meta.layout()) +
        ", but fake tensors are dense and strided. For gradients of torch.nn.Embedding and EmbeddingBag, use "
        "sparse=False and an optimizer of dense gradients (Adam for SparseAdam). Leave other sparse tensors out of the "
        "captured program, or run this part on real tensors under an UnfakeGuard (in Python shadowgraph.unfake())");
  }
  return at::Tensor(c10::make_intrusive<FakeTensorImpl>(meta, device));
}

void FakeTensorImpl::move_to(c10::Device device) {
  simulated_device_ = device;
  c10::DispatchKeySet keys = fake_key_set(device);
  if (_is_zerotensor()) keys = keys.add(c10::DispatchKey::ZeroTensor);
  if (is_inference()) keys = keys - c10::autograd_dispatch_keyset_with_ADInplaceOrView;
  key_set_ = keys;
}

void FakeTensorImpl::watch_size_reads() { set_custom_sizes_strides(SizesStridesPolicy::CustomSizes); }

bool FakeTensorImpl::stop_watching_size_reads() {
  if (!matches_policy(SizesStridesPolicy::CustomSizes)) return false;
  set_custom_sizes_strides(SizesStridesPolicy::Default);
  return true;
}

c10::IntArrayRef FakeTensorImpl::sizes_custom() const {
  if (thread_state.kernel_depth == 0) note_size_read(*this, SizeRead::kSizes, -1);
  return sizes_default();
}

int64_t FakeTensorImpl::size_custom(int64_t dimension) const {
  if (thread_state.kernel_depth == 0) note_size_read(*this, SizeRead::kSize, dimension);
  const auto wrapped = c10::maybe_wrap_dim(dimension, static_cast<int64_t>(sizes_default().size()));
  return sizes_default()[static_cast<size_t>(wrapped)];
}

int64_t FakeTensorImpl::dim_custom() const {
  if (thread_state.kernel_depth == 0) note_size_read(*this, SizeRead::kRank, -1);
  return static_cast<int64_t>(sizes_default().size());
}

template <class Version>
c10::intrusive_ptr<c10::TensorImpl> FakeTensorImpl::copy_and_detach(Version&& version_counter,
                                                                    bool allow_tensor_metadata_change) const {
  if (!key_set().has(kFakeKey)) {
    return TensorImpl::shallow_copy_and_detach(std::forward<Version>(version_counter), allow_tensor_metadata_change);
  }
  auto copy =
      c10::make_intrusive<FakeTensorImpl>(c10::Storage(unsafe_storage()), key_set(), dtype(), simulated_device_);
  copy_tensor_metadata(this, copy.get(), std::forward<Version>(version_counter), allow_tensor_metadata_change);
  copy->set_custom_device(true);
  copy->bind(session_, value_);
  // Autograd passes the counter by reference only for views that it does not track.
  copy->version_of_real_ = view_of_real_ && std::is_lvalue_reference_v<Version>;
  return copy;
}

c10::intrusive_ptr<c10::TensorImpl> FakeTensorImpl::shallow_copy_and_detach(const c10::VariableVersion& version_counter,
                                                                            bool allow_tensor_metadata_change) const {
  return copy_and_detach(version_counter, allow_tensor_metadata_change);
}

c10::intrusive_ptr<c10::TensorImpl> FakeTensorImpl::shallow_copy_and_detach(c10::VariableVersion&& version_counter,
                                                                            bool allow_tensor_metadata_change) const {
  return copy_and_detach(std::move(version_counter), allow_tensor_metadata_change);
}

void FakeTensorImpl::shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& impl) {
  copy_tensor_metadata(impl.get(), this, version_counter(), allow_tensor_metadata_change());
  if (const FakeTensorImpl* fake = as_fake(impl.get())) {
    simulated_device_ = fake->simulated_device_;
    bind(fake->session_, fake->value_);
    set_custom_device(true);
  } else {
    // A real tensor was assigned by `.data =`: this tensor is real from now on.
    simulated_device_ = impl->device();
    set_custom_device(false);
    set_custom_sizes_strides(SizesStridesPolicy::Default);
  }
  recipe_.reset();
}

void FakeTensorImpl::become_real(const c10::intrusive_ptr<TensorImpl>& real,
                                 c10::intrusive_ptr<c10::intrusive_ptr_target> recipe) {
  shallow_copy_from(real);
  recipe_ = std::move(recipe);
}

void FakeTensorImpl::become_fake(const FakeTensorImpl& fake) {
  copy_tensor_metadata(&fake, this, version_counter(), allow_tensor_metadata_change());
  simulated_device_ = fake.simulated_device_;
  bind(fake.session_, fake.value_);
  set_custom_device(true);
  recipe_.reset();
}

}  // namespace shadowgraph
