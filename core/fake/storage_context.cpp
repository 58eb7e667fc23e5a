#include "core/fake/storage_context.h"

#include <c10/core/impl/alloc_cpu.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>

#include "core/fake/known_contents.h"
#include "core/libtorch/write_hook.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/error.h"

namespace shadowgraph {

StorageContext::StorageContext() = default;

StorageContext::~StorageContext() {
  for (StorageWatcher* watcher = watchers.load(); watcher != nullptr;) {
    delete std::exchange(watcher, watcher->next);
  }
}

void StorageContext::watch(StorageWatcher* watcher) {
  watcher->next = watchers.load();
  while (!watchers.compare_exchange_weak(watcher->next, watcher)) {}
}

void delete_storage_context(void* context) { delete static_cast<StorageContext*>(context); }
void delete_storage_context_with_contents(void* context) {
  static_cast<StorageContext*>(context)->contents.reset();
  delete static_cast<StorageContext*>(context);
}

StorageContext* find_storage_context(const c10::StorageImpl& storage) {
  const c10::DataPtr* hidden = hidden_by_write_hook(const_cast<c10::StorageImpl&>(storage));
  return find_storage_context(hidden != nullptr ? *hidden : raw_data_ptr(storage));
}

StorageContext* find_storage_context(const c10::DataPtr& data) {
  const c10::DeleterFnPtr deleter = data.get_deleter();
  const bool ours = deleter == &delete_storage_context || deleter == &delete_storage_context_with_contents;
  return ours ? static_cast<StorageContext*>(data.get_context()) : nullptr;
}

StorageContext& storage_context_of(c10::StorageImpl& storage) {
  if (StorageContext* context = find_storage_context(storage)) return *context;
  static std::mutex attach;
  const std::lock_guard lock(attach);
  if (StorageContext* context = find_storage_context(storage)) return *context;
  auto* context = new StorageContext;
  c10::DataPtr data(nullptr, context, &delete_storage_context, c10::Device(c10::DeviceType::Meta));
  if (c10::DataPtr* hidden = hidden_by_write_hook(storage)) {
    *hidden = std::move(data);
  } else {
    storage.set_data_ptr_noswap(std::move(data));
  }
  return *context;
}

namespace {

// Below 2^63, to fit into a signed integer, and above the range of five-level page tables.
constexpr uintptr_t kFirstAddress = uintptr_t{1} << 57;
constexpr uintptr_t kAddressEnd = uintptr_t{1} << 63;
constexpr uintptr_t kMaxAddressStep = uintptr_t{1} << 40;
constexpr uintptr_t kAlignment = 64;

uintptr_t next_address(size_t bytes) {
  static std::atomic<uintptr_t> next{kFirstAddress};
  const uintptr_t room = (std::min<uintptr_t>(bytes, kMaxAddressStep) / kAlignment + 1) * kAlignment;
  const uintptr_t address = next.fetch_add(room, std::memory_order_relaxed);
  if (address >= kAddressEnd - kMaxAddressStep) throw Error("out of simulated addresses for storages of fake tensors");
  return address;
}

}  // namespace

uintptr_t fake_address(const c10::Storage& storage) {
  if (storage.nbytes() == 0) return 0;
  if (storage.device_type() != c10::DeviceType::Meta) {
    throw Error("expected the storage of a fake tensor, but this one has memory; use its data pointer");
  }
  StorageContext& context = storage_context_of(*storage.unsafeGetStorageImpl());
  uintptr_t address = context.address.load(std::memory_order_acquire);
  if (address != 0) return address;
  const uintptr_t made = next_address(storage.nbytes());
  return context.address.compare_exchange_strong(address, made) ? made : address;
}

namespace {

class SimulatedPinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* block = c10::alloc_cpu(bytes);  // nullptr for 0 bytes
    if (block != nullptr) {
      const std::lock_guard lock(mutex_);
      blocks_[reinterpret_cast<uintptr_t>(block)] = bytes;
    }
    return {block, block, &free_block, c10::Device(c10::DeviceType::CPU)};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
  bool contains(const void* pointer) const {
    const std::lock_guard lock(mutex_);
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    const auto next = blocks_.upper_bound(address);
    return next != blocks_.begin() && address < std::prev(next)->first + std::prev(next)->second;
  }
  static SimulatedPinnedAllocator& instance() {
    static auto* allocator = new SimulatedPinnedAllocator;  // tensors may outlive static destruction
    return *allocator;
  }

 private:
  static void free_block(void* block) {
    {
      SimulatedPinnedAllocator& self = instance();
      const std::lock_guard lock(self.mutex_);
      self.blocks_.erase(reinterpret_cast<uintptr_t>(block));
    }
    c10::free_cpu(block);
  }

  mutable std::mutex mutex_;
  std::map<uintptr_t, size_t> blocks_;  // bytes by address
};

}  // namespace

c10::Allocator* simulated_pinned_allocator() { return &SimulatedPinnedAllocator::instance(); }
bool is_simulated_pinned(const void* pointer) { return SimulatedPinnedAllocator::instance().contains(pointer); }

bool has_fake_address(const c10::Storage& storage) {
  return storage.device_type() == c10::DeviceType::Meta &&
         find_storage_context(*storage.unsafeGetStorageImpl()) != nullptr;
}

}  // namespace shadowgraph
