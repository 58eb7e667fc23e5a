#include "shadowgraph/addresses.h"

#include <algorithm>
#include <atomic>

#include "core/fake/storage_context.h"
#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

// Below 2^63, so that a signed number holds it, and above what five levels of page tables reach.
constexpr uintptr_t kFirstAddress = uintptr_t{1} << 57;
constexpr uintptr_t kAddressEnd = uintptr_t{1} << 63;
constexpr uintptr_t kMostBetween = uintptr_t{1} << 40;
constexpr uintptr_t kAlignment = 64;

uintptr_t next_address(size_t bytes) {
  static std::atomic<uintptr_t> next{kFirstAddress};
  const uintptr_t room = (std::min<uintptr_t>(bytes, kMostBetween) / kAlignment + 1) * kAlignment;
  const uintptr_t address = next.fetch_add(room, std::memory_order_relaxed);
  if (address >= kAddressEnd - kMostBetween) throw Error("all addresses for storages of fake tensors are used up");
  return address;
}

}  // namespace

uintptr_t pretended_address(const c10::Storage& storage) {
  if (storage.nbytes() == 0) return 0;
  if (storage.device_type() != c10::DeviceType::Meta) {
    throw Error("a storage with memory has an address of its own; pretended_address is for those of fake tensors");
  }
  StorageContext& context = storage_context_of(*storage.unsafeGetStorageImpl());
  uintptr_t address = context.address.load(std::memory_order_acquire);
  if (address != 0) return address;
  const uintptr_t made = next_address(storage.nbytes());
  return context.address.compare_exchange_strong(address, made) ? made : address;
}

bool has_pretended_address(const c10::Storage& storage) {
  return storage.device_type() == c10::DeviceType::Meta &&
         find_storage_context(*storage.unsafeGetStorageImpl()) != nullptr;
}

}  // namespace shadowgraph
