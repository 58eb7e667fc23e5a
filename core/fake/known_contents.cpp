#include "core/fake/known_contents.h"

#include <ATen/ops/scalar_tensor.h>
#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include "core/fake/call_observer.h"
#include "core/fake/fake_tensor_impl.h"
#include "core/fake/mode_state.h"
#include "core/fake/storage_context.h"
#include "core/fake/thread_state.h"
#include "core/libtorch/write_hook.h"

namespace shadowgraph {

c10::Storage zeroed(size_t bytes) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, c10::GetCPUAllocator(), /*resizable=*/false);
  if (bytes != 0) std::memset(storage.mutable_data(), 0, bytes);
  return storage;
}

static at::Tensor strided_view(const c10::Storage& contents, const at::Tensor& like, c10::IntArrayRef strides,
                               int64_t offset) {
  auto view = c10::make_intrusive<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(contents),
                                                   c10::DispatchKeySet(c10::DispatchKey::CPU), like.dtype());
  view->set_sizes_and_strides(like.sizes(), strides, offset);
  at::Tensor tensor(std::move(view));
  tensor._set_conj(like.is_conj());
  tensor._set_neg(like.is_neg());
  return tensor;
}

at::Tensor real_view(const c10::Storage& contents, const at::Tensor& like) {
  return strided_view(contents, like, like.strides(), like.storage_offset());
}

c10::Storage copied(const c10::Storage& from) {
  c10::Storage storage = zeroed(from.nbytes());
  if (from.nbytes() != 0) std::memcpy(storage.mutable_data(), from.data(), from.nbytes());
  return storage;
}

KnownContents* contents_of(const c10::StorageImpl& storage) {
  return has_contents(storage) ? find_storage_context(storage)->contents.get() : nullptr;
}

// Called when the host requests a mutable pointer: from then on its writes are detected.
static void host_requests_pointer(c10::StorageImpl* storage) {
  KnownContents* contents = contents_of(*storage);
  if (contents == nullptr) return;
  contents->host_may_write = true;
  contents->recorded = copied(contents->real);
}

void set_pointer(c10::StorageImpl& storage, void* pointer, c10::DeleterFnPtr deleter) {
  clear_write_hook(storage);
  void* context = raw_data_ptr(storage).release_context();
  storage.set_data_ptr_noswap(c10::DataPtr(pointer, context, deleter, c10::Device(c10::DeviceType::Meta)));
  if (pointer != nullptr) storage.clear_data_ptr_access_error_msg_();
}

void publish(c10::StorageImpl& storage) {
  const KnownContents& contents = *storage_context_of(storage).contents;
  // Reads through a pointer are not observed, so contents derived from assumptions are not readable.
  const bool readable = contents.readable && contents.real && contents.known.empty() && contents.assumed.empty();
  set_pointer(storage, readable ? raw_data_ptr(*contents.real.unsafeGetStorageImpl()).get() : nullptr,
              &delete_storage_context_with_contents);
  if (!readable || contents.host_may_write) return;
  if constexpr (kWriteHooksPersist) {
    set_write_hook(storage, &host_requests_pointer);
  } else {
    host_requests_pointer(&storage);
  }
}

namespace {

bool all_known(const KnownContents& contents, const at::Tensor& tensor) {
  if (contents.known.empty()) return true;
  bool all = true;
  for_each_element(tensor, [&](size_t begin, size_t bytes) {
    for (size_t i = begin; i < begin + bytes; ++i) all = all && contents.known[i];
  });
  return all;
}

c10::impl::PODLocalDispatchKeySet keys_of_real_calls() {
  const auto local = c10::impl::tls_local_dispatch_key_set();
  c10::impl::PODLocalDispatchKeySet keys;
  keys.set_included(local.included_ - c10::DispatchKeySet(kFakeKey) - c10::DispatchKeySet(kCompositeKey));
  keys.set_excluded(local.excluded_ | c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                    c10::autocast_dispatch_keyset);
  return keys;
}

}  // namespace

RealCalls::RealCalls()
    : mode_(std::exchange(thread_state.mode, nullptr)),
      mode_id_(std::exchange(thread_state.mode_id, 0)),
      kernel_depth_(std::exchange(thread_state.kernel_depth, 0)),
      keys_(keys_of_real_calls()) {}

RealCalls::~RealCalls() {
  thread_state.mode = mode_;
  thread_state.mode_id = mode_id_;
  thread_state.kernel_depth = kernel_depth_;
}

bool is_known(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return false;
  const int64_t elements = tensor.unsafeGetTensorImpl()->numel();
  if (elements == 0) return true;
  const KnownContents* contents = contents_of(storage_of(tensor));
  return contents != nullptr && contents->real && elements <= max_known_elements(tensor.scalar_type()) &&
         contents->real.nbytes() == tensor.unsafeGetTensorImpl()->unsafe_storage().nbytes() &&
         all_known(*contents, tensor);
}

bool is_knowable(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return false;
  if (tensor.unsafeGetTensorImpl()->numel() == 0) return true;
  const KnownContents* contents = contents_of(storage_of(tensor));
  if (contents == nullptr || contents->failed) return false;
  if (contents->bytes != tensor.unsafeGetTensorImpl()->unsafe_storage().nbytes()) return false;
  if (contents->uniform) return c10::elementSize(contents->uniform->dtype) == tensor.dtype().itemsize();
  return contents->pending || all_known(*contents, tensor);
}

std::optional<at::Tensor> value_in(KnownContents& contents, const at::Tensor& like) {
  if (contents.pending) contents.pending->resolve(contents);
  if (contents.failed) return std::nullopt;
  if (contents.uniform) return strided_view(contents.uniform->element, like, c10::DimVector(like.sizes().size(), 0), 0);
  return real_view(contents.real, like);
}

std::optional<at::Tensor> known_value(const at::Tensor& tensor) {
  if (!is_knowable(tensor)) return std::nullopt;
  KnownContents* contents = contents_of(storage_of(tensor));
  if (contents == nullptr) return real_view(zeroed(0), tensor);
  return value_in(*contents, tensor);
}

std::optional<c10::Scalar> uniform_value(const at::Tensor& tensor) {
  constexpr int64_t kFew = 4096;
  if (!tensor.defined() || !tensor.has_storage() || tensor.unsafeGetTensorImpl()->numel() == 0) return std::nullopt;
  KnownContents* contents = contents_of(storage_of(tensor));
  if (contents == nullptr || contents->pending || !is_knowable(tensor)) return std::nullopt;
  if (!contents->assumed.empty()) return std::nullopt;
  if (!contents->uniform && tensor.unsafeGetTensorImpl()->numel() > kFew) return std::nullopt;
  const RealCalls real;
  const at::Tensor value = *value_in(*contents, tensor);
  const at::Tensor first = value.flatten()[0];
  if (!contents->uniform && !value.eq(first).all().item<bool>()) return std::nullopt;
  return first.item();
}

namespace {

// Replaces the contents by new ones.
std::shared_ptr<KnownContents>& new_contents(const at::Tensor& fake) {
  c10::StorageImpl& storage = storage_of(fake);
  forget_contents(storage);
  auto contents = std::make_shared<KnownContents>();
  contents->bytes = storage.nbytes();
  contents->readable = as_fake(fake)->simulated_device().is_cpu();
  return storage_context_of(storage).contents = std::move(contents);
}

// Returns the contents as an unshared buffer; nullptr if unavailable.
KnownContents* own_buffer(c10::StorageImpl& storage) {
  if (contents_of(storage) == nullptr) return nullptr;
  std::shared_ptr<KnownContents>& held = storage_context_of(storage).contents;
  if (held->bytes != storage.nbytes()) return nullptr;
  if (held->pending) held->pending->resolve(*held);
  if (held->failed) return nullptr;
  if (held->uniform) {
    auto contents = std::make_shared<KnownContents>();
    contents->bytes = held->bytes;
    contents->readable = held->readable;
    contents->assumed = held->assumed;
    contents->real = zeroed(held->bytes);
    const size_t item = held->uniform->element.nbytes();
    for (size_t at = 0; at + item <= held->bytes; at += item) {
      std::memcpy(static_cast<char*>(contents->real.mutable_data()) + at, held->uniform->element.data(), item);
    }
    held = std::move(contents);
    publish(storage);
  } else if (held.use_count() > 1) {
    auto contents = std::make_shared<KnownContents>(*held);
    contents->real = copied(held->real);
    held = std::move(contents);
    publish(storage);
  }
  return held.get();
}

}  // namespace

void make_readable(const at::Tensor& fake) {
  if (fake.numel() == 0 || !is_knowable(fake)) return;
  c10::StorageImpl& storage = storage_of(fake);
  KnownContents* const own = own_buffer(storage);
  if (own == nullptr) return;
  note_read(std::exchange(own->assumed, {}));
  publish(storage);
}

Assumptions assumptions_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return {};
  const KnownContents* contents = contents_of(storage_of(tensor));
  return contents != nullptr ? contents->assumed : Assumptions();
}

void mark_assumed(const at::Tensor& fake, const Assumptions& assumed) {
  if (assumed.empty() || !fake.defined() || as_fake(fake) == nullptr) return;
  c10::StorageImpl& storage = storage_of(fake);
  KnownContents* contents = contents_of(storage);
  if (contents == nullptr) return;
  add_assumptions(contents->assumed, assumed);
  publish(storage);
}

void set_contents(const at::Tensor& fake, const at::Tensor& real) {
  c10::StorageImpl& storage = storage_of(fake);
  if (has_contents(storage)) return;  // a view of known contents, or already written
  if (fake.numel() == 0 || fake.numel() > max_known_elements(fake.scalar_type()) || storage.nbytes() > kMaxKnownBytes)
    return;
  if (fake.sizes() != real.sizes() || fake.dtype() != real.dtype()) return;
  auto& contents = new_contents(fake);
  contents->real = zeroed(storage.nbytes());
  real_view(contents->real, fake).copy_(real);
  publish(storage);
}

void set_uniform_contents(const at::Tensor& fake, const c10::Scalar& number) {
  constexpr int64_t kFew = 1024;  // stored as a buffer, so that derived contents are available too
  if (fake.numel() == 0) return;
  const RealCalls calls;
  const at::Tensor element = at::scalar_tensor(number, at::TensorOptions(fake.scalar_type()));
  if (fake.numel() <= kFew) {
    forget_contents(storage_of(fake));
    set_contents(fake, element.expand(fake.sizes()));
    return;
  }
  resolve_to_uniform(*new_contents(fake), element);
  publish(storage_of(fake));
}

std::shared_ptr<KnownContents> set_pending_contents(const at::Tensor& fake, std::shared_ptr<PendingContents> pending) {
  auto& contents = new_contents(fake);
  contents->pending = std::move(pending);
  publish(storage_of(fake));
  return contents;
}

std::shared_ptr<KnownContents> snapshot_of_contents(const at::Tensor& fake) {
  c10::StorageImpl& storage = storage_of(fake);
  KnownContents* contents = contents_of(storage);
  if (contents == nullptr) return nullptr;
  if (contents->host_may_write) {  // at any time, through a pointer
    auto now = std::make_shared<KnownContents>(*contents);
    now->real = copied(contents->real);
    now->host_may_write = false;
    return now;
  }
  return storage_context_of(storage).contents;
}

void settle(KnownContents& contents, c10::Storage real) {
  contents.real = std::move(real);
  contents.pending.reset();
}

void resolve_to_uniform(KnownContents& contents, const at::Tensor& element) {
  auto uniform = std::make_shared<UniformContents>();
  uniform->dtype = element.scalar_type();
  uniform->element = copied(element.contiguous().storage());
  contents.uniform = std::move(uniform);
  contents.pending.reset();
}

void forget_contents(c10::StorageImpl& storage) {
  StorageContext* context = find_storage_context(storage);
  if (context == nullptr || !has_contents(storage)) return;
  // The host may still hold a pointer, so the memory is kept.
  if (!context->contents->host_may_write) context->contents.reset();
  set_pointer(storage, nullptr, &delete_storage_context);
}

at::Tensor contents_to_write(const at::Tensor& fake) {
  c10::StorageImpl& storage = storage_of(fake);
  if (const KnownContents* own = own_buffer(storage)) return real_view(own->real, fake);
  auto& contents = new_contents(fake);
  contents->real = zeroed(storage.nbytes());
  contents->known.assign(storage.nbytes(), false);
  publish(storage);
  return real_view(contents->real, fake);
}

void mark_known(const at::Tensor& fake) {
  c10::StorageImpl& storage = storage_of(fake);
  KnownContents& contents = *contents_of(storage);
  if (contents.host_may_write && contents.recorded) {  // writes by calls need no report
    const auto* now = static_cast<const char*>(contents.real.data());
    auto* shown = static_cast<char*>(contents.recorded.mutable_data());
    for_each_element(fake, [&](size_t begin, size_t bytes) { std::memcpy(shown + begin, now + begin, bytes); });
  }
  if (contents.known.empty()) return;
  for_each_element(fake, [&](size_t begin, size_t bytes) {
    for (size_t i = begin; i < begin + bytes; ++i) contents.known[i] = true;
  });
  if (std::find(contents.known.begin(), contents.known.end(), false) != contents.known.end()) return;
  contents.known.clear();
  publish(storage);
}

namespace {

// Read-only zero pages, large enough for any literal; committed only when read.
constexpr size_t kMaxLiteralBytes = size_t{1} << 30;
void* zero_pages() {
  static void* const memory = [] {
    void* mapped = mmap(nullptr, kMaxLiteralBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return mapped == MAP_FAILED ? nullptr : mapped;
  }();
  return memory;
}

void literal_is_written(c10::StorageImpl* storage) {
  auto contents = std::make_shared<KnownContents>();
  contents->bytes = storage->nbytes();
  contents->real = zeroed(storage->nbytes());
  contents->host_may_write = true;
  void* memory = contents->real.mutable_data();
  storage_context_of(*storage).contents = std::move(contents);
  void* context = raw_data_ptr(*storage).release_context();
  storage->set_data_ptr_noswap(
      c10::DataPtr(memory, context, &delete_storage_context_with_contents, c10::Device(c10::DeviceType::Meta)));
}

}  // namespace

void open_for_literal(const at::Tensor& fake) {
  c10::StorageImpl& storage = storage_of(fake);
  void* memory = zero_pages();
  if (memory == nullptr || storage.nbytes() == 0 || storage.nbytes() > kMaxLiteralBytes) return;
  set_pointer(storage, memory, raw_data_ptr(storage).get_deleter());
  set_write_hook(storage, &literal_is_written);
  auto impl = fake.getIntrusivePtr();
  thread_state.literal = impl.release();
}

namespace {

// The value of thread_state.literal while the thread has a refused storage (ThreadObjects).
c10::TensorImpl* const kRefused = c10::UndefinedTensorImpl::singleton();
std::mutex refusing;  // two threads may print the same storage

at::Tensor cloned(const c10::Storage& contents, const at::Tensor& like) {
  const RealCalls real;
  return real_view(contents, like).clone();
}

void stop_refusing() {
  thread_state.literal = nullptr;
  const auto storage = std::exchange(thread_objects().refused,
                                     c10::weak_intrusive_ptr<c10::StorageImpl>(c10::intrusive_ptr<c10::StorageImpl>()))
                           .lock();
  if (!storage) return;
  const std::lock_guard lock(refusing);
  storage->clear_data_ptr_access_error_msg_();
}

}  // namespace

void refuse_to_print(const at::Tensor& fake) {
  if (as_fake(fake) == nullptr || fake.scalar_type() != at::kDouble || fake.unsafeGetTensorImpl()->numel() == 0) return;
  if (!as_fake(fake)->simulated_device().is_cpu() || is_known(fake)) return;
  close_open_literal();
  static const std::string words = c10::str(
      kPrintedFakeError,
      ". Use shadowgraph::to_string(tensor) to describe it. Tensors with known contents (literals, and values computed "
      "from them) can be printed, and real tensors under an UnfakeGuard");
  const auto& storage = fake.unsafeGetTensorImpl()->unsafe_storage();
  {
    const std::lock_guard lock(refusing);
    storage.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(words);
  }
  thread_objects().refused = storage.getWeakStorageImpl();
  thread_state.literal = kRefused;
}

bool is_refused_to_print(const at::Tensor& fake) {
  return thread_state.literal == kRefused && as_fake(fake) != nullptr &&
         thread_objects().refused._unsafe_get_target() ==
             fake.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

void close_literal() {
  if (thread_state.literal == kRefused) {
    stop_refusing();
    return;
  }
  auto impl = c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim(
      std::exchange(thread_state.literal, nullptr));
  c10::StorageImpl& storage = *impl->unsafe_storage().unsafeGetStorageImpl();
  clear_write_hook(storage);
  if (!has_contents(storage)) {
    set_pointer(storage, nullptr, raw_data_ptr(storage).get_deleter());
    return;
  }
  const at::Tensor fake(std::move(impl));
  KnownContents& contents = *contents_of(storage);
  contents.readable = as_fake(fake)->simulated_device().is_cpu();
  contents.recorded = copied(contents.real);
  if (CallObserver* observer = thread_state.mode != nullptr ? thread_state.mode->observer : nullptr) {
    observer->host_wrote(fake, cloned(contents.real, fake));
  }
  if (storage.nbytes() > kMaxKnownBytes) {
    forget_contents(storage);
  } else {
    publish(storage);
  }
}

// Reports what the host wrote since the last report.
void show_host_writes(const at::Tensor& fake, CallObserver& observer) {
  KnownContents* contents = contents_of(storage_of(fake));
  if (contents == nullptr || !contents->host_may_write) return;
  if (!contents->recorded) contents->recorded = zeroed(contents->real.nbytes());
  const auto* now = static_cast<const uint8_t*>(contents->real.data());
  auto* shown = static_cast<uint8_t*>(contents->recorded.mutable_data());
  bool changed = false;
  for_each_element(fake, [&](size_t begin, size_t bytes) {
    changed = changed || std::memcmp(now + begin, shown + begin, bytes) != 0;
    std::memcpy(shown + begin, now + begin, bytes);
  });
  if (changed) observer.host_wrote(fake, cloned(contents->real, fake));
}

}  // namespace shadowgraph
