// A callback for the first request of a mutable pointer to a storage, called before the pointer is returned.
//
// Replaces: StorageImpl::set_materializer.
// Since:    2.13. 2.12 only has copy-on-write, which allocates from the storage's allocator at that moment.
// Check:    HostWrites.* and KnownContents.* (tests/core) write through pointers.
#pragma once

#include <c10/core/StorageImpl.h>

#if !__has_include(<c10/core/StorageMaterializer.h>)
#include <c10/core/Allocator.h>
#include <c10/core/impl/COWDeleter.h>

#include <memory>
#include <utility>
#endif

namespace shadowgraph {

using WriteHook = void (*)(c10::StorageImpl*);

#if __has_include(<c10/core/StorageMaterializer.h>)

// True if a hook may remain for the storage's lifetime; otherwise it must be cleared before the storage is freed.
constexpr bool kWriteHooksPersist = true;

inline void set_write_hook(c10::StorageImpl& storage, WriteHook hook) { storage.set_materializer(hook); }
// libtorch clears a hook itself after calling it.
inline void clear_write_hook(c10::StorageImpl& storage) {
  if (storage.has_materializer()) storage.clear_materializer();
}
// Returns the storage's actual pointer while a hook replaces it; nullptr without a hook.
inline c10::DataPtr* hidden_by_write_hook(c10::StorageImpl& /*storage*/) { return nullptr; }

#else

constexpr bool kWriteHooksPersist = false;

// Replaces a storage's allocator. The data pointer is marked as shared, so before a write, copy-on-write requests a
// copy from this allocator.
class CopyOnWriteHook final : public c10::Allocator {
 public:
  CopyOnWriteHook(c10::StorageImpl& storage, WriteHook hook)
      : storage_(storage),
        hook_(hook),
        allocator_(storage.allocator()),
        hidden_(std::move(storage._mutable_data_ptr_no_checks())) {
    shared_->increment_refcount();
    storage.set_allocator(this);
    storage.set_data_ptr_noswap(
        c10::DataPtr(hidden_.get(), shared_, &c10::impl::cow::cow_deleter, c10::Device(c10::DeviceType::Meta)));
  }
  ~CopyOnWriteHook() override {
    storage_.set_allocator(allocator_);
    if (!called_) storage_.set_data_ptr_noswap(std::move(hidden_));
    c10::impl::cow::cow_deleter(shared_);
  }
  static CopyOnWriteHook* of(c10::StorageImpl& storage) { return dynamic_cast<CopyOnWriteHook*>(storage.allocator()); }

  c10::DataPtr* hidden() { return called_ ? nullptr : &hidden_; }
  c10::DataPtr allocate(size_t bytes) override {
    if (called_) return allocator_->allocate(bytes);
    called_ = true;
    // libtorch has released this reference, and holds a lock that a deleter would wait for.
    storage_._mutable_data_ptr_no_checks().release_context();
    storage_.set_data_ptr_noswap(std::move(hidden_));
    hook_(&storage_);
    return std::move(storage_._mutable_data_ptr_no_checks());
  }
  void copy_data(void* /*to*/, const void* /*from*/, size_t /*bytes*/) const override {}  // done by the hook

 private:
  c10::StorageImpl& storage_;
  WriteHook hook_;
  c10::Allocator* allocator_;
  c10::DataPtr hidden_;
  bool called_ = false;
  c10::impl::cow::COWDeleterContext* shared_ =
      new c10::impl::cow::COWDeleterContext(std::unique_ptr<void, c10::DeleterFnPtr>(nullptr, [](void*) {}));
};

inline void set_write_hook(c10::StorageImpl& storage, WriteHook hook) { new CopyOnWriteHook(storage, hook); }
inline void clear_write_hook(c10::StorageImpl& storage) { delete CopyOnWriteHook::of(storage); }
inline c10::DataPtr* hidden_by_write_hook(c10::StorageImpl& storage) {
  CopyOnWriteHook* hook = CopyOnWriteHook::of(storage);
  return hook == nullptr ? nullptr : hook->hidden();
}

#endif

}  // namespace shadowgraph
