// Says which storage is which, and when it dies, by a context in the DataPtr of every meta storage that a capture
// meets.
//
// The context holds one binding per session that met the storage (nearly always one). When the storage is destroyed, on
// whatever thread, each session still running is told. Sessions are reference-counted through their link, so a storage
// may outlive the session that met it. The next session takes the binding of a closed one over, so that captures of one
// model leave nothing at its parameters.
#pragma once

#include <c10/core/Storage.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <mutex>
#include <vector>

#include "shadowgraph/graph/ids.h"

namespace shadowgraph {

struct StorageContext;

// What storages hold of a session: the list of deaths not yet seen by the recorder.
class SessionLink : public c10::intrusive_ptr_target {
 public:
  explicit SessionLink(uint32_t session) : session_(session) {}

  uint32_t session() const { return session_; }
  // May be called on any thread. Ignored after close().
  void storage_died(StorageId id) noexcept;
  // Moves the deaths since the last call into `deaths` (appended).
  void take_deaths(std::vector<StorageId>& deaths);
  bool has_deaths() const { return pending_.load(std::memory_order_acquire); }
  void close();
  bool is_closed() const { return closed_.load(std::memory_order_acquire); }
  // Says whether somebody asks for the link (find_link) once it is closed.
  virtual bool outlives_session() const { return false; }

 private:
  const uint32_t session_;
  std::mutex mutex_;
  std::vector<StorageId> deaths_;
  std::atomic<bool> pending_{false};
  std::atomic<bool> closed_{false};
};

// Returns the storage's id in `session`, or an invalid id if the session has not met it.
StorageId find_storage_id(const c10::StorageImpl& storage, uint32_t session);
StorageId find_storage_id(const StorageContext& storage, uint32_t session);
// Returns the link of the session with the highest number for which `wanted` holds; nullptr if there is none.
SessionLink* find_link(const c10::StorageImpl& storage, bool (*wanted)(const SessionLink& link));
// Lets the storage keep `kept` alive as long as it lives, for the session that has met it.
void attach_to_storage(c10::StorageImpl& storage, uint32_t session, c10::Storage kept);
// Returns what is attached, or an empty storage.
c10::Storage attached_to_storage(const c10::StorageImpl& storage, uint32_t session);
// Enters the storage, which must be one of a fake tensor (no data). An invalid id says that the session will name it at
// its first use; its death is nobody's.
void bind_storage(c10::StorageImpl& storage, StorageId id, c10::intrusive_ptr<SessionLink> link);
// Says whether the session has entered the storage, under whatever id.
bool is_bound(const c10::StorageImpl& storage, uint32_t session);
// Gives a storage that the session has entered another id.
void rename_storage(c10::StorageImpl& storage, uint32_t session, StorageId id);

}  // namespace shadowgraph
