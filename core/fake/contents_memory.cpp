#include "core/fake/contents_memory.h"

#include <c10/core/CPUAllocator.h>

#include <cstring>
#include <utility>

#include "core/fake/known_contents.h"
#include "core/fake/storage_context.h"
#include "core/libtorch/write_hook.h"

namespace shadowgraph {

c10::Storage zeroed(size_t bytes) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, c10::GetCPUAllocator(), /*resizable=*/false);
  if (bytes != 0) std::memset(storage.mutable_data(), 0, bytes);
  return storage;
}

at::Tensor real_view(const c10::Storage& contents, const at::Tensor& like) {
  const c10::TensorImpl& impl = *like.unsafeGetTensorImpl();
  auto view = c10::make_intrusive<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(contents),
                                                   c10::DispatchKeySet(c10::DispatchKey::CPU), impl.dtype());
  view->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  at::Tensor tensor(std::move(view));
  tensor._set_conj(like.is_conj());
  tensor._set_neg(like.is_neg());
  return tensor;
}

c10::Storage copied(const c10::Storage& from) {
  c10::Storage storage = zeroed(from.nbytes());
  if (from.nbytes() != 0) std::memcpy(storage.mutable_data(), from.data(), from.nbytes());
  return storage;
}

KnownContents* contents_of(const c10::StorageImpl& storage) {
  return has_contents(storage) ? find_storage_context(storage)->contents.get() : nullptr;
}

namespace {

// Notes that the host has asked for a pointer to write through: from now on its writes are looked for.
void host_takes_pointer(c10::StorageImpl* storage) {
  KnownContents* contents = contents_of(*storage);
  if (contents == nullptr) return;
  contents->host_may_write = true;
  contents->recorded = copied(contents->real);
}

}  // namespace

void set_pointer(c10::StorageImpl& storage, void* pointer, c10::DeleterFnPtr deleter) {
  clear_write_hook(storage);
  void* context = raw_data_ptr(storage).release_context();
  storage.set_data_ptr_noswap(c10::DataPtr(pointer, context, deleter, c10::Device(c10::DeviceType::Meta)));
  if (pointer != nullptr) storage.clear_data_ptr_access_error_msg_();
}

void publish(c10::StorageImpl& storage) {
  const KnownContents& contents = *storage_context_of(storage).contents;
  // Reads through a pointer are not seen, and what is assumed is not to be read unseen.
  const bool readable = contents.readable && contents.real && contents.known.empty() && contents.assumed.empty();
  set_pointer(storage, readable ? raw_data_ptr(*contents.real.unsafeGetStorageImpl()).get() : nullptr,
              &delete_storage_context_with_contents);
  if (!readable || contents.host_may_write) return;
  if constexpr (kWriteHooksStay) {
    set_write_hook(storage, &host_takes_pointer);
  } else {
    host_takes_pointer(&storage);
  }
}

}  // namespace shadowgraph
