#include "core/capture/storage_identity.h"

namespace shadowgraph {
namespace {

struct Binding {
  uint32_t session;
  StorageId id;
  c10::intrusive_ptr<SessionLink> link;
  c10::Storage kept;
  Binding* next;
};

// Bindings are only ever added at the front, so walking needs no lock.
struct StorageContext {
  std::atomic<Binding*> first{nullptr};
};

void delete_context(void* pointer) {
  auto* context = static_cast<StorageContext*>(pointer);
  for (Binding* binding = context->first.load(); binding != nullptr;) {
    binding->link->storage_died(binding->id);
    delete std::exchange(binding, binding->next);
  }
  delete context;
}

StorageContext* context_of(const c10::StorageImpl& storage) {
  const c10::DataPtr& data = storage.data_ptr();
  return data.get_deleter() == &delete_context ? static_cast<StorageContext*>(data.get_context()) : nullptr;
}

}  // namespace

void SessionLink::storage_died(StorageId id) noexcept {
  const std::lock_guard lock(mutex_);
  if (!open_) return;
  deaths_.push_back(id);
  pending_.store(true, std::memory_order_release);
}

void SessionLink::take_deaths(std::vector<StorageId>& deaths) {
  const std::lock_guard lock(mutex_);
  deaths.insert(deaths.end(), deaths_.begin(), deaths_.end());
  deaths_.clear();
  pending_.store(false, std::memory_order_release);
}

void SessionLink::close() {
  const std::lock_guard lock(mutex_);
  open_ = false;
  deaths_.clear();
}

StorageId find_storage_id(const c10::StorageImpl& storage, uint32_t session) {
  const StorageContext* context = context_of(storage);
  if (context == nullptr) return {};
  for (const Binding* b = context->first.load(std::memory_order_acquire); b != nullptr; b = b->next) {
    if (b->session == session) return b->id;
  }
  return {};
}

SessionLink* find_link(const c10::StorageImpl& storage, bool (*wanted)(const SessionLink& link)) {
  const StorageContext* context = context_of(storage);
  if (context == nullptr) return nullptr;
  SessionLink* found = nullptr;
  for (const Binding* b = context->first.load(std::memory_order_acquire); b != nullptr; b = b->next) {
    if (wanted(*b->link) && (found == nullptr || found->session() < b->session)) found = b->link.get();
  }
  return found;
}

namespace {

Binding* find_binding(const c10::StorageImpl& storage, uint32_t session) {
  const StorageContext* context = context_of(storage);
  if (context == nullptr) return nullptr;
  for (Binding* b = context->first.load(std::memory_order_acquire); b != nullptr; b = b->next) {
    if (b->session == session) return b;
  }
  return nullptr;
}

}  // namespace

void attach_to_storage(c10::StorageImpl& storage, uint32_t session, c10::Storage kept) {
  if (Binding* binding = find_binding(storage, session)) binding->kept = std::move(kept);
}

c10::Storage attached_to_storage(const c10::StorageImpl& storage, uint32_t session) {
  const Binding* binding = find_binding(storage, session);
  return binding != nullptr ? binding->kept : c10::Storage();
}

void bind_storage(c10::StorageImpl& storage, StorageId id, c10::intrusive_ptr<SessionLink> link) {
  StorageContext* context = context_of(storage);
  if (context == nullptr) {
    static std::mutex attach;
    const std::lock_guard lock(attach);
    context = context_of(storage);
    if (context == nullptr) {
      context = new StorageContext;
      storage.set_data_ptr_noswap(c10::DataPtr(nullptr, context, &delete_context, c10::Device(c10::DeviceType::Meta)));
    }
  }
  const uint32_t session = link->session();
  auto* binding = new Binding{session, id, std::move(link), {}, context->first.load()};
  while (!context->first.compare_exchange_weak(binding->next, binding)) {}
}

}  // namespace shadowgraph
