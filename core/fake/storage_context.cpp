#include "core/fake/storage_context.h"

#include <mutex>
#include <utility>

#include "core/fake/known_contents.h"
#include "core/libtorch/write_hook.h"

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

}  // namespace shadowgraph
