// The context of the DataPtr of a fake tensor's meta storage: watchers of its destruction, and its contents if they are
// known (core/fake/known_contents.h). Internal to core/.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>

#include <atomic>
#include <cstdint>
#include <memory>

namespace shadowgraph {

struct KnownContents;

// Destroyed with its storage, on any thread.
class StorageWatcher {
 public:
  virtual ~StorageWatcher() = default;
  StorageWatcher* next = nullptr;
};

struct StorageContext {
  // Watchers are only added, at the front, so iteration needs no lock.
  std::atomic<StorageWatcher*> watchers{nullptr};
  std::shared_ptr<KnownContents> contents;
  std::atomic<uintptr_t> address{0};  // see fake_address(); 0: not assigned yet
  std::atomic<bool> pinned{false};
  // Collectives assume that every rank sends the contents of this one.
  std::atomic<bool> equal_on_all_ranks{false};

  StorageContext();
  ~StorageContext();
  C10_DISABLE_COPY_AND_ASSIGN(StorageContext);

  void watch(StorageWatcher* watcher);
};

// Deleters. They also identify storages that have a context, and known contents.
void delete_storage_context(void* context);
void delete_storage_context_with_contents(void* context);

// Bypasses the checks of libtorch's accessors.
inline c10::DataPtr& raw_data_ptr(const c10::StorageImpl& storage) {
  return const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks();
}

inline bool has_contents(const c10::StorageImpl& storage) {
  return raw_data_ptr(storage).get_deleter() == &delete_storage_context_with_contents;
}

// Returns nullptr if the storage has none.
StorageContext* find_storage_context(const c10::StorageImpl& storage);
StorageContext* find_storage_context(const c10::DataPtr& data);
// Creates the context if needed. The storage must be that of a fake tensor.
StorageContext& storage_context_of(c10::StorageImpl& storage);

// Pinned memory: fake tensors have a flag, and real tensors created inside a mode come from this allocator, which is
// that of the CPU: torch.tensor(data, pin_memory=True) is real until it becomes fake.
c10::Allocator* simulated_pinned_allocator();
bool is_simulated_pinned(const void* pointer);

}  // namespace shadowgraph
