// Holds what shadowgraph keeps in the meta storage of a fake tensor, as the context of its DataPtr. That is who wants
// to know of its death, and its contents if they are known (core/fake/known_contents.h). Internal to core/.
#pragma once

#include <c10/core/Storage.h>

#include <atomic>
#include <cstdint>
#include <memory>

namespace shadowgraph {

struct KnownContents;

// It is destroyed when the storage is, on whatever thread that happens.
class StorageWatcher {
 public:
  virtual ~StorageWatcher() = default;
  StorageWatcher* next = nullptr;
};

struct StorageContext {
  // Watchers are only ever added, at the front: walking needs no lock.
  std::atomic<StorageWatcher*> watchers{nullptr};
  std::shared_ptr<KnownContents> contents;
  std::atomic<uintptr_t> address{0};  // shadowgraph/capture/fake.h; 0: nobody has asked

  StorageContext();
  ~StorageContext();
  StorageContext(const StorageContext&) = delete;
  StorageContext& operator=(const StorageContext&) = delete;

  void watch(StorageWatcher* watcher);
};

// These delete the context. By them a storage is known to have one, and to have contents.
void delete_storage_context(void* context);
void delete_storage_context_with_contents(void* context);

// Avoids libtorch's own accessors, which check first what we need not ask.
inline c10::DataPtr& raw_data_ptr(const c10::StorageImpl& storage) {
  return const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks();
}

inline bool has_contents(const c10::StorageImpl& storage) {
  return raw_data_ptr(storage).get_deleter() == &delete_storage_context_with_contents;
}

// nullptr if the storage has none.
StorageContext* find_storage_context(const c10::StorageImpl& storage);
StorageContext* find_storage_context(const c10::DataPtr& data);
// The storage must be that of a fake tensor.
StorageContext& storage_context_of(c10::StorageImpl& storage);

}  // namespace shadowgraph
