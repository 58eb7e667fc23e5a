#include "core/fake/literals.h"

#include <sys/mman.h>

#include <cstring>
#include <mutex>
#include <utility>

#include "core/fake/call_observer.h"
#include "core/fake/contents_memory.h"
#include "core/fake/fake_tensor_impl.h"
#include "core/fake/known_contents.h"
#include "core/fake/mode_state.h"
#include "core/libtorch/write_hook.h"

namespace shadowgraph {

namespace {

// Memory to be read as uninitialised, as much as a literal can have. It costs nothing until it is read.
constexpr size_t kLargestLiteral = size_t{1} << 30;
void* uninitialised_memory() {
  static void* const memory = [] {
    void* mapped = mmap(nullptr, kLargestLiteral, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
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
  void* memory = uninitialised_memory();
  if (memory == nullptr || storage.nbytes() == 0 || storage.nbytes() > kLargestLiteral) return;
  set_pointer(storage, memory, raw_data_ptr(storage).get_deleter());
  set_write_hook(storage, &literal_is_written);
  auto impl = fake.getIntrusivePtr();
  thread_state.literal = impl.release();
}

// ---- Printing

namespace {

// While the thread has a refused storage (ThreadBelongings), thread_state.literal is this, which no tensor of a program
// is.
c10::TensorImpl* const kRefused = c10::UndefinedTensorImpl::singleton();
std::mutex refusing;  // a storage may be printed by two threads

void stop_refusing() {
  thread_state.literal = nullptr;
  const auto storage = std::exchange(thread_belongings().refused,
                                     c10::weak_intrusive_ptr<c10::StorageImpl>(c10::intrusive_ptr<c10::StorageImpl>()))
                           .lock();
  if (!storage) return;
  const std::lock_guard lock(refusing);
  storage->clear_data_ptr_access_error_msg_();
}

}  // namespace

void refuse_to_print(const at::Tensor& fake) {
  if (as_fake(fake) == nullptr || fake.scalar_type() != at::kDouble || fake.unsafeGetTensorImpl()->numel() == 0) return;
  if (!as_fake(fake)->pretended_device().is_cpu() || is_known(fake)) return;
  close_open_literal();
  static const std::string words = c10::str(
      kPrintedFake,
      ": shadowgraph::to_string(tensor) describes it; known contents (literals, and what is computed from them) can be "
      "printed, and real tensors, under an UnfakeGuard");
  const auto& storage = fake.unsafeGetTensorImpl()->unsafe_storage();
  {
    const std::lock_guard lock(refusing);
    storage.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(words);
  }
  thread_belongings().refused = storage.getWeakStorageImpl();
  thread_state.literal = kRefused;
}

bool is_refused_to_print(const at::Tensor& fake) {
  return thread_state.literal == kRefused && as_fake(fake) != nullptr &&
         thread_belongings().refused._unsafe_get_target() ==
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
  contents.readable = as_fake(fake)->pretended_device().is_cpu();
  contents.recorded = copied(contents.real);
  if (CallObserver* observer = thread_state.mode != nullptr ? thread_state.mode->observer : nullptr) {
    at::Tensor value;
    {
      const RealCalls real;
      value = real_view(contents.real, fake).clone();
    }
    observer->host_wrote(fake, value);
  }
  if (storage.nbytes() > kMostKnownBytes) {
    forget_contents(storage);
  } else {
    publish(storage);
  }
}

// Shows what the host wrote since the observer last saw this tensor.
void show_host_writes(const at::Tensor& fake, CallObserver& observer) {
  KnownContents* contents = contents_of(storage_of(fake));
  if (contents == nullptr || !contents->host_may_write) return;
  if (!contents->recorded) {
    contents->recorded = zeroed(contents->real.nbytes());
  }
  const auto* now = static_cast<const uint8_t*>(contents->real.data());
  auto* shown = static_cast<uint8_t*>(contents->recorded.mutable_data());
  bool changed = false;
  for_each_element(fake, [&](size_t begin, size_t bytes) {
    changed = changed || std::memcmp(now + begin, shown + begin, bytes) != 0;
    std::memcpy(shown + begin, now + begin, bytes);
  });
  if (!changed) return;
  at::Tensor value;
  {
    const RealCalls real;
    value = real_view(contents->real, fake).clone();
  }
  observer.host_wrote(fake, value);
}

}  // namespace shadowgraph
