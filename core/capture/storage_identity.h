// Identifies storages and observes when they are freed, by a context in the DataPtr of every meta storage that a
// capture uses.
//
// The context holds one binding for each session that uses the storage (nearly always one). When the storage is freed,
// on any thread, all active sessions are notified. Sessions are reference-counted through their link, so a storage may
// outlive its session. The next session reuses the binding of a closed one, so that repeated captures of one model do
// not accumulate bindings on its parameters.
#pragma once

#include <c10/core/Storage.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <mutex>

#include "shadowgraph/graph/ids.h"

namespace shadowgraph {

struct StorageContext;

// Connects storages to a session: collects the storages freed since the recorder last looked.
class SessionLink : public c10::intrusive_ptr_target {
 public:
  explicit SessionLink(uint32_t session) : session_(session) {}

  uint32_t session() const { return session_; }
  // Announces a storage to be freed later, for which storage_freed must have memory: it runs in destructors.
  void storage_bound();
  // May be called on any thread. Ignored after close().
  void storage_freed(StorageId id) noexcept;
  // Appends the storages freed since the last call to `freed`.
  void take_frees(std::vector<StorageId>& freed);
  bool has_frees() const { return pending_.load(std::memory_order_acquire); }
  void close();
  bool is_closed() const { return closed_.load(std::memory_order_acquire); }
  // Returns whether the link can still be found (find_link) after it is closed.
  virtual bool outlives_session() const { return false; }

 private:
  const uint32_t session_;
  std::mutex mutex_;
  std::vector<StorageId> freed_;
  size_t bound_ = 0;  // storages that may still be added to `freed_`, and those in it
  std::atomic<bool> pending_{false};
  std::atomic<bool> closed_{false};
};

// Returns the storage's id in `session`; invalid if the session has not bound it.
StorageId find_storage_id(const c10::StorageImpl& storage, uint32_t session);
StorageId find_storage_id(const StorageContext& storage, uint32_t session);
// Returns the link accepted by `wanted` with the highest session number; nullptr if there is none.
SessionLink* find_link(const c10::StorageImpl& storage, bool (*wanted)(const SessionLink& link));
// Keeps `kept` alive as long as the storage, for a session that has bound it.
void attach_to_storage(c10::StorageImpl& storage, uint32_t session, c10::Storage kept);
// Returns the attached storage, or an empty one.
c10::Storage attached_to_storage(const c10::StorageImpl& storage, uint32_t session);
// Binds the storage of a fake tensor (no data). An invalid id is set at the first use (rename_storage); until then the
// storage being freed is not recorded.
void bind_storage(c10::StorageImpl& storage, StorageId id, c10::intrusive_ptr<SessionLink> link);
// Returns whether the session has bound the storage, even under an invalid id.
bool is_bound(const c10::StorageImpl& storage, uint32_t session);
// Changes the id of a storage that the session has bound.
void rename_storage(c10::StorageImpl& storage, uint32_t session, StorageId id);

}  // namespace shadowgraph
