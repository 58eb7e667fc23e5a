// Holds the real memory behind known contents, and puts it behind the pointers of fake storages. Internal to core/.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstdint>

namespace shadowgraph {

struct KnownContents;

// Returns so many bytes of zeros, on the CPU.
c10::Storage zeroed(size_t bytes);
c10::Storage copied(const c10::Storage& from);
// Returns a real CPU tensor on `memory` with the geometry, dtype and lazy bits of `like`.
at::Tensor real_view(const c10::Storage& memory, const at::Tensor& like);

// Returns the storage that a fake tensor is on, and its contents: nullptr if it has none.
inline c10::StorageImpl& storage_of(const at::Tensor& tensor) {
  return *tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}
KnownContents* contents_of(const c10::StorageImpl& storage);

// Replaces pointer and deleter, keeping the context.
void set_pointer(c10::StorageImpl& storage, void* pointer, c10::DeleterFnPtr deleter);
// Lets the storage's pointer say what its contents are: there for the host to read, or not.
void publish(c10::StorageImpl& storage);

// Calls `f` with the position in bytes of every element of the storage that `tensor` sees.
template <class F>
void for_each_element(const at::Tensor& tensor, F&& f) {
  const c10::IntArrayRef sizes = tensor.sizes();
  const c10::IntArrayRef strides = tensor.strides();
  const auto item = static_cast<int64_t>(tensor.dtype().itemsize());
  c10::SmallVector<int64_t, 5> index(sizes.size(), 0);
  int64_t position = tensor.storage_offset();
  for (int64_t left = tensor.numel(); left > 0; --left) {
    f(static_cast<size_t>(position * item), static_cast<size_t>(item));
    for (size_t d = sizes.size(); d-- > 0;) {
      position += strides[d];
      if (++index[d] < sizes[d]) break;
      position -= strides[d] * sizes[d];
      index[d] = 0;
    }
  }
}

}  // namespace shadowgraph
