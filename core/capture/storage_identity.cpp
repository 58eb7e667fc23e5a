#include "core/capture/storage_identity.h"

#include "core/fake/storage_context.h"

namespace shadowgraph {
namespace {

struct Binding final : StorageWatcher {
  Binding(uint32_t known_session, StorageId known_id, c10::intrusive_ptr<SessionLink> known_link)
      : session(known_session), id(known_id), link(std::move(known_link)) {}
  ~Binding() override { link->storage_freed(id); }

  // Changes when another session reuses the binding, which neither then looks up. `id` and `link` are set first.
  std::atomic<uint32_t> session;
  StorageId id;
  c10::intrusive_ptr<SessionLink> link;  // protected by `links()`, except within the session itself
  c10::Storage kept;
};

// Protects lookups across sessions and the reuse of bindings.
std::mutex& links() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

constexpr uint32_t kNoSession = 0xFFFFFFFFU;

Binding* find_binding(const StorageContext* context, uint32_t session) {
  if (context == nullptr) return nullptr;
  for (StorageWatcher* w = context->watchers.load(std::memory_order_acquire); w != nullptr; w = w->next) {
    auto* binding = static_cast<Binding*>(w);  // the only kind of watcher
    if (binding->session.load(std::memory_order_acquire) == session) return binding;
  }
  return nullptr;
}

Binding* find_binding(const c10::StorageImpl& storage, uint32_t session) {
  return find_binding(find_storage_context(storage), session);
}

}  // namespace

void SessionLink::storage_bound() {
  const std::lock_guard lock(mutex_);
  if (freed_.capacity() <= bound_) freed_.reserve(2 * bound_ + 1);
  ++bound_;
}

void SessionLink::storage_freed(StorageId id) noexcept {
  if (!id.valid()) return;
  const std::lock_guard lock(mutex_);
  if (is_closed()) return;
  freed_.push_back(id);
  pending_.store(true, std::memory_order_release);
}

void SessionLink::take_frees(std::vector<StorageId>& freed) {
  const std::lock_guard lock(mutex_);
  freed.insert(freed.end(), freed_.begin(), freed_.end());
  bound_ -= freed_.size();
  freed_.clear();
  pending_.store(false, std::memory_order_release);
}

void SessionLink::close() {
  const std::lock_guard lock(mutex_);
  closed_.store(true, std::memory_order_release);
  freed_.clear();
}

StorageId find_storage_id(const c10::StorageImpl& storage, uint32_t session) {
  const Binding* binding = find_binding(storage, session);
  return binding != nullptr ? binding->id : StorageId();
}

StorageId find_storage_id(const StorageContext& storage, uint32_t session) {
  const Binding* binding = find_binding(&storage, session);
  return binding != nullptr ? binding->id : StorageId();
}

bool is_bound(const c10::StorageImpl& storage, uint32_t session) { return find_binding(storage, session) != nullptr; }

void rename_storage(c10::StorageImpl& storage, uint32_t session, StorageId id) {
  if (Binding* binding = find_binding(storage, session)) binding->id = id;
}

SessionLink* find_link(const c10::StorageImpl& storage, bool (*wanted)(const SessionLink& link)) {
  const StorageContext* context = find_storage_context(storage);
  if (context == nullptr) return nullptr;
  SessionLink* found = nullptr;
  const std::lock_guard lock(links());
  for (const StorageWatcher* w = context->watchers.load(std::memory_order_acquire); w != nullptr; w = w->next) {
    const auto* binding = static_cast<const Binding*>(w);
    if (wanted(*binding->link) && (found == nullptr || found->session() < binding->link->session())) {
      found = binding->link.get();
    }
  }
  return found;
}

void attach_to_storage(c10::StorageImpl& storage, uint32_t session, c10::Storage kept) {
  if (Binding* binding = find_binding(storage, session)) binding->kept = std::move(kept);
}

c10::Storage attached_to_storage(const c10::StorageImpl& storage, uint32_t session) {
  const Binding* binding = find_binding(storage, session);
  return binding != nullptr ? binding->kept : c10::Storage();
}

void bind_storage(c10::StorageImpl& storage, StorageId id, c10::intrusive_ptr<SessionLink> link) {
  const uint32_t session = link->session();
  link->storage_bound();
  if (const StorageContext* context = find_storage_context(storage)) {
    for (StorageWatcher* w = context->watchers.load(std::memory_order_acquire); w != nullptr; w = w->next) {
      auto* binding = static_cast<Binding*>(w);
      const std::lock_guard lock(links());
      if (!binding->link->is_closed() || binding->link->outlives_session()) continue;
      binding->session.store(kNoSession, std::memory_order_release);
      binding->id = id;
      binding->link = std::move(link);
      binding->session.store(session, std::memory_order_release);
      return;
    }
  }
  storage_context_of(storage).watch(new Binding(session, id, std::move(link)));
}

}  // namespace shadowgraph
