#include "core/fake/converter.h"

#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/as_strided.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "core/fake/fake_tensor_impl.h"
#include "core/fake/known_contents.h"
#include "core/fake/simulated_devices.h"
#include "core/fake/storage_context.h"
#include "core/fake/thread_state.h"
#include "core/libtorch/autograd.h"
#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

// Returns the memo entry for `real` on a device; nullptr if there is none.
template <class Entry, class Real>
Entry* find_entry(std::unordered_multimap<const Real*, Entry>& entries, const Real* real, c10::Device device) {
  const auto [first, last] = entries.equal_range(real);
  const auto found = std::find_if(first, last, [&](const auto& each) { return each.second.device == device; });
  return found == last ? nullptr : &found->second;
}

c10::Storage meta_storage_of(const c10::Storage& storage, ModeState* mode, c10::Device device) {
  if (mode == nullptr) return meta_storage(storage.nbytes());
  const c10::StorageImpl* key = storage.unsafeGetStorageImpl();
  ConversionMemo::StorageEntry* entry = find_entry(mode->memo.storages, key, device);
  if (entry == nullptr) {
    entry = &mode->memo.storages.emplace(key, ConversionMemo::StorageEntry{.device = device})->second;
  }
  // The weak reference keeps the address from being reused, so it is the same storage. A changed size means resize_.
  if (!entry->meta || entry->meta.nbytes() != storage.nbytes()) {
    entry->real = storage.getWeakStorageImpl();
    entry->meta = meta_storage(storage.nbytes());
    if (storage.device_type() == c10::DeviceType::CPU && storage.data() != nullptr &&
        at::detail::getCUDAHooks().isPinnedPtr(storage.data())) {
      storage_context_of(*entry->meta.unsafeGetStorageImpl()).pinned = true;
    }
  }
  return entry->meta;
}

// Returns the default device of a fake: that of the real tensor, unless all fakes on its storage are on another one.
c10::Device device_of_memory(const c10::Storage& storage, ModeState* mode, c10::Device own) {
  if (mode == nullptr) return own;
  const std::lock_guard lock(mode->memo_mutex);
  const auto [first, last] = mode->memo.storages.equal_range(storage.unsafeGetStorageImpl());
  c10::Device found = own;
  for (auto entry = first; entry != last; ++entry) {
    if (entry->second.real.expired()) continue;
    if (entry->second.device == own) return own;
    found = entry->second.device;
  }
  return found;
}

// Throws from within the engine, which passes on only translated exceptions to Python.
[[noreturn]] void refuse_in_backward(const std::string& words) {
  const UnsupportedError error(words);
  translate(error);
  throw error;
}
constexpr const char* kRealHistory =
    "backward reached a real tensor that is not a leaf, so its history consists of real tensors. Detach it before "
    "using it with fake tensors, or run the part that computed it on fake tensors too";

// Replaces the history of a real non-leaf tensor. Gradients that arrive here would flow to real tensors.
class RealHistory final : public torch::autograd::Node {
 public:
  torch::autograd::variable_list apply(torch::autograd::variable_list&&) override { refuse_in_backward(kRealHistory); }
  std::string name() const override { return "RealHistory"; }
};

// Hook before the gradient of a real leaf, or before the history of a real tensor.
class FakeGradientGuard final : public torch::autograd::FunctionPreHook {
 public:
  explicit FakeGradientGuard(std::string leaf) : leaf_(std::move(leaf)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override {
    if (std::none_of(gradients.begin(), gradients.end(), [](const at::Tensor& each) { return is_fake(each); })) {
      return gradients;
    }
    if (leaf_.empty()) refuse_in_backward(kRealHistory);
    refuse_in_backward(
        "backward would give a real tensor (" + leaf_ +
        ") a fake gradient; nothing was changed. Create the module inside the mode, convert the module (fakeify, or "
        "sg.capture and sg.profile in Python) or the tensor (from_real; the result receives the gradient), or compute "
        "only the gradient with torch.autograd.grad");
  }

 private:
  std::string leaf_;  // the leaf's sizes as text; empty for a non-leaf
};

// Runs operators above autograd, as in the program, even inside a kernel.
class ProgramLevel {
 public:
  ProgramLevel() : depth_(std::exchange(thread_state.kernel_depth, 0)), keys_(keys()) {}
  ~ProgramLevel() { thread_state.kernel_depth = depth_; }
  C10_DISABLE_COPY_AND_ASSIGN(ProgramLevel);

 private:
  static c10::impl::PODLocalDispatchKeySet keys() {
    const auto local = c10::impl::tls_local_dispatch_key_set();
    c10::impl::PODLocalDispatchKeySet keys;
    keys.set_included(local.included_);
    keys.set_excluded(local.excluded_ - c10::autograd_dispatch_keyset_with_ADInplaceOrView);
    return keys;
  }
  uint32_t depth_;
  c10::impl::ForceDispatchKeyGuard keys_;
};

// Returns the same view of the base's fake, tracked by autograd as a view. Undefined if libtorch cannot create it from
// the base in one step because the dtype differs.
at::Tensor view_of_fake_base(const at::Tensor& real, ModeState* mode, c10::Device device) {
  if (mode == nullptr || real.is_inference() || !real.is_view()) return {};
  const at::Tensor base(real._base());
  if (base.dtype() != real.dtype() || base.is_conj() || base.is_neg()) return {};
  // The base of another mode's fake is also a fake, and is converted.
  const at::Tensor fake_base = is_fake(real) ? new_fake_of(base, mode, device) : fake_of_real(base, mode, device);
  const Unobserved unobserved(mode);
  const ProgramLevel level;
  const c10::InferenceMode no_inference(false);
  const c10::AutoGradMode grad(torch::autograd::impl::get_view_autograd_meta(real)->get_creation_meta() ==
                               torch::autograd::CreationMeta::DEFAULT);
  return at::as_strided(fake_base, real.sizes(), real.strides(), real.storage_offset());
}

at::Tensor detached_fake(const at::Tensor& real, ModeState* mode, c10::Device device) {
  // Inference tensors become inference tensors and others do not, regardless of the current inference mode.
  const c10::InferenceMode inference(real.is_inference());
  auto fake = c10::make_intrusive<FakeTensorImpl>(meta_storage_of(real.storage(), mode, device), fake_key_set(device),
                                                  real.dtype(), device);
  fake->set_sizes_and_strides(real.sizes(), real.strides(), real.storage_offset());
  return at::Tensor(std::move(fake));
}

bool should_copy_contents(const at::Tensor& real, const ModeState* mode) {
  if (mode == nullptr || is_fake(real) || !real.device().is_cpu()) return false;
  if (real.storage().nbytes() > kMaxKnownBytes || real.storage().data() == nullptr) return false;
  return real.numel() == 1 ||
         (mode->real_tensors() == RealTensors::kConstant && real.numel() <= max_known_elements(real.scalar_type()));
}

// Like should_copy_contents, but without a dtype: keeps one number, or the number of elements kept for the widest dtype.
bool keeps_contents_of(const c10::Storage& real, const ModeState& mode) {
  if (!real.device().is_cpu() || real.nbytes() == 0 || real.data() == nullptr) return false;
  const auto bytes = static_cast<int64_t>(sizeof(double));
  const int64_t most = mode.real_tensors() == RealTensors::kConstant ? max_known_elements(at::kDouble) : 1;
  return static_cast<int64_t>(real.nbytes()) <= most * bytes;
}

at::Tensor flat_view(const c10::Storage& storage, caffe2::TypeMeta dtype, int64_t elements, c10::DispatchKeySet keys) {
  auto view = c10::make_intrusive<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(storage), keys, dtype);
  view->set_sizes_contiguous({elements});
  return at::Tensor(std::move(view));
}
at::Tensor flat_fake(const c10::Storage& meta, caffe2::TypeMeta dtype, int64_t elements, c10::Device device) {
  const at::Tensor plain = flat_view(meta, dtype, elements, fake_key_set(device));
  return at::Tensor(c10::make_intrusive<FakeTensorImpl>(*plain.unsafeGetTensorImpl(), device));
}

void copy_contents(const at::Tensor& fake, const at::Tensor& real) {
  const c10::Storage& storage = real.storage();
  const auto elements = static_cast<int64_t>(storage.nbytes() / real.dtype().itemsize());
  if (static_cast<size_t>(elements) * real.dtype().itemsize() != storage.nbytes()) return;
  const RealCalls calls;
  // Read the whole storage, for its other views.
  const c10::Device device = as_fake(fake)->simulated_device();
  set_contents(flat_fake(fake.storage(), fake.dtype(), elements, device),
               flat_view(storage, real.dtype(), elements, c10::DispatchKeySet(c10::DispatchKey::CPU)));
}

std::vector<int64_t> geometry_of(const at::Tensor& real) {
  std::vector<int64_t> geometry = real.sizes().vec();
  geometry.insert(geometry.end(), real.strides().begin(), real.strides().end());
  geometry.push_back(real.storage_offset());
  geometry.push_back(static_cast<int64_t>(real.scalar_type()));
  return geometry;
}

uint32_t version_of(const at::Tensor& real) { return real.is_inference() ? 0 : static_cast<uint32_t>(real._version()); }

bool has_same_memory(const ConversionMemo::TensorEntry& entry, const at::Tensor& real) {
  return entry.storage == real.storage().unsafeGetStorageImpl() && entry.geometry == geometry_of(real);
}

bool still_describes(const ConversionMemo::TensorEntry& entry, const at::Tensor& real) {
  return entry.fake.defined() && has_same_memory(entry, real) &&
         (!entry.has_contents || entry.version == version_of(real));
}

// Occasionally removes entries of freed real tensors.
void sweep(ConversionMemo& memo) {
  static constexpr size_t kLeast = 64;
  if (memo.tensors.size() < kLeast || (memo.tensors.size() & (memo.tensors.size() - 1)) != 0) return;
  std::erase_if(memo.tensors, [&](const auto& entry) {
    const bool gone = entry.second.real.expired();
    if (gone) memo.origins.erase(entry.second.fake.unsafeGetTensorImpl());
    return gone;
  });
  std::erase_if(memo.storages, [](const auto& entry) { return entry.second.real.expired(); });
}

}  // namespace

at::Tensor fake_of_real(const at::Tensor& real, ModeState* mode, std::optional<c10::Device> device) {
  if (is_fake(real)) return real;
  return new_fake_of(real, mode, device);
}

at::Tensor new_fake_of(const at::Tensor& real, ModeState* mode, std::optional<c10::Device> device) {
  if (!device && mode != nullptr && mode->maps_devices()) device = mode->default_device;
  if (real.layout() != c10::Layout::Strided || real.is_quantized() || real.is_nested()) {
    throw UnsupportedError("only dense strided tensors can be converted to fake tensors, not layout " +
                           c10::str(real.layout()) + (real.is_quantized() ? " (quantized)" : ""));
  }
  if (!real.has_storage() || real.unsafeGetTensorImpl()->key_set().has_any(c10::functorch_batched_ks) ||
      real.key_set().has(c10::DispatchKey::FuncTorchGradWrapper) ||
      real.key_set().has(c10::DispatchKey::Functionalize)) {
    throw UnsupportedError(
        "a tensor inside a functorch transform (vmap, grad, functionalize) cannot be converted to a fake tensor: it is "
        "a wrapper with sizes other than those of its data. Convert the tensors before applying the transform");
  }
  const FakeTensorImpl* other = as_fake(real);
  const c10::Device own = other != nullptr ? other->simulated_device() : real.device();
  const c10::Device pretended = with_index(device ? *device : device_of_memory(real.storage(), mode, own));
  check_exists(pretended, mode);
  if (mode == nullptr) {
    at::Tensor fake = detached_fake(real, nullptr, pretended);
    fake._set_conj(real.is_conj());
    fake._set_neg(real.is_neg());
    if (real.is_leaf() && real.requires_grad()) fake.set_requires_grad(true);
    return fake;
  }
  const std::lock_guard lock(mode->memo_mutex);
  {
    const c10::TensorImpl* key = real.unsafeGetTensorImpl();
    const auto* known = find_entry(mode->memo.tensors, key, pretended);
    if (known != nullptr && still_describes(*known, real)) return known->fake;
  }
  at::Tensor fake = view_of_fake_base(real, mode, pretended);
  if (!fake.defined()) fake = detached_fake(real, mode, pretended);
  fake._set_conj(real.is_conj());
  fake._set_neg(real.is_neg());
  if (real.requires_grad() && !fake.requires_grad()) {
    if (real.is_leaf()) {
      fake.set_requires_grad(true);
    } else {
      auto history = make_node<RealHistory>();
      history->add_input_metadata(fake);
      torch::autograd::impl::set_gradient_edge(fake, torch::autograd::Edge(std::move(history), 0));
    }
  }
  if (mode->watch_size_reads) as_fake(fake)->watch_size_reads();
  const bool has_contents = copy_contents_if_kept(fake, real, *mode);
  sweep(mode->memo);
  ConversionMemo::TensorEntry entry{.device = pretended};
  entry.real = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>(real.getIntrusivePtr());
  entry.fake = fake;
  entry.storage = real.storage().unsafeGetStorageImpl();
  entry.geometry = geometry_of(real);
  entry.version = version_of(real);
  entry.has_contents = has_contents;
  const c10::TensorImpl* key = real.unsafeGetTensorImpl();
  mode->memo.origins[fake.unsafeGetTensorImpl()] = key;
  if (auto* older = find_entry(mode->memo.tensors, key, pretended)) {
    *older = std::move(entry);
  } else {
    mode->memo.tensors.emplace(key, std::move(entry));
  }
  return fake;
}

void convert_gradient(const at::Tensor& fake, const at::Tensor& real, ModeState& mode) {
  if (!real.is_leaf() || !real.requires_grad()) return;
  const std::lock_guard lock(mode.memo_mutex);
  auto* entry = find_entry(mode.memo.tensors, real.unsafeGetTensorImpl(), fake.device());
  if (entry == nullptr || std::exchange(entry->has_gradient, true) || fake.grad().defined()) return;
  const at::Tensor gradient = real.grad();
  if (!gradient.defined() || gradient.layout() != c10::Layout::Strided) return;
  fake.mutable_grad() = fake_of_real(gradient, &mode, fake.device());
  convert_gradient(fake.grad(), gradient, mode);
}

bool copy_contents_if_kept(const at::Tensor& fake, const at::Tensor& real, const ModeState& mode) {
  if (!should_copy_contents(real, &mode)) return false;
  forget_contents(*fake.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());  // older ones
  copy_contents(fake, real);
  return true;
}

at::Tensor real_of_fake(const FakeTensorImpl& fake, const ModeState& mode) {
  const auto origin = mode.memo.origins.find(&fake);
  if (origin == mode.memo.origins.end()) return {};
  const auto [first, last] = mode.memo.tensors.equal_range(origin->second);
  const auto entry =
      std::find_if(first, last, [&](const auto& each) { return each.second.fake.unsafeGetTensorImpl() == &fake; });
  if (entry == last) return {};
  auto locked = entry->second.real.lock();
  if (!locked.defined()) return {};
  // Another memory may have been assigned to it since.
  at::Tensor real(std::move(locked));
  return has_same_memory(entry->second, real) ? real : at::Tensor();
}

c10::Storage fake_storage_of(const c10::Storage& real, ModeState* mode, c10::Device device) {
  if (mode == nullptr) return meta_storage(real.nbytes());
  const std::lock_guard lock(mode->memo_mutex);
  const c10::StorageImpl* key = real.unsafeGetStorageImpl();
  const ConversionMemo::StorageEntry* before = find_entry(mode->memo.storages, key, device);
  const c10::StorageImpl* known = before != nullptr ? before->meta.unsafeGetStorageImpl() : nullptr;
  c10::Storage meta = meta_storage_of(real, mode, device);
  // Only on creation: later the fake's contents may differ or be unknown.
  if (meta.unsafeGetStorageImpl() != known && keeps_contents_of(real, *mode)) {
    // As bytes, independent of the dtype that they are read as.
    const auto byte = caffe2::TypeMeta::Make<uint8_t>();
    const auto bytes = static_cast<int64_t>(real.nbytes());
    copy_contents(flat_fake(meta, byte, bytes, device),
                  flat_view(real, byte, bytes, c10::DispatchKeySet(c10::DispatchKey::CPU)));
  }
  return meta;
}

void forget_fakes_of(const c10::TensorImpl* real, ModeState& mode) {
  const std::lock_guard lock(mode.memo_mutex);
  const auto [first, last] = mode.memo.tensors.equal_range(real);
  std::vector<at::Tensor> fakes;  // freed after the table is consistent
  for (auto entry = first; entry != last; ++entry) {
    mode.memo.origins.erase(entry->second.fake.unsafeGetTensorImpl());
    fakes.push_back(std::move(entry->second.fake));
  }
  mode.memo.tensors.erase(first, last);
}

void block_gradients_into(const at::Tensor& real) {
  if (!real.requires_grad()) return;
  const bool leaf = real.is_leaf();
  const auto node = leaf ? torch::autograd::impl::try_get_grad_accumulator(real) : real.grad_fn();
  if (!node) return;
  static std::mutex mutex;  // threads share real tensors
  const std::lock_guard lock(mutex);
  const auto is_ours = [](const auto& hook) { return dynamic_cast<const FakeGradientGuard*>(hook.get()) != nullptr; };
  if (std::ranges::any_of(std::as_const(*node).pre_hooks(), is_ours)) return;
  node->add_pre_hook(std::make_unique<FakeGradientGuard>(leaf ? c10::str(real.sizes()) : ""));
}

}  // namespace shadowgraph
