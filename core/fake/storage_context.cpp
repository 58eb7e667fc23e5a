#include "core/fake/storage_context.h"

#include <mutex>
#include <utility>

#include "core/fake/known_contents.h"

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
  return find_storage_context(raw_data_ptr(storage));
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
  storage.set_data_ptr_noswap(
      c10::DataPtr(nullptr, context, &delete_storage_context, c10::Device(c10::DeviceType::Meta)));
  return *context;
}

}  // namespace shadowgraph
