#include "core/calls/fake_values.h"

#include <c10/core/CPUAllocator.h>

#include "core/fake/fake_tensor_impl.h"
#include "core/process/process_state.h"
#include "shadowgraph/text.h"

namespace shadowgraph {
namespace {

at::Tensor fake_of(const Graph& graph, ValueId id, const c10::Storage& storage) {
  const Value& value = graph.value(id);
  return fake_on(storage, value.dtype, graph.sizes(id), graph.strides(id), value.offset, value.device());
}

void check_is_strided_tensor(const Graph& graph, ValueId id) {
  const Value& value = graph.value(id);
  if (value.kind == ValueKind::kTensor && value.layout == c10::Layout::Strided && value.storage.valid()) return;
  throw Error("there is no fake tensor for a value of type " + type_text(graph, id) + ", made by " +
              to_text(graph, value.producer) + ": only strided tensors have one");
}

}  // namespace

c10::Storage fake_storage(int64_t bytes) {
  // Resizable and without memory: resize_ and set_ work on it, and nothing is allocated.
  return c10::Storage(c10::Storage::use_byte_size_t(), static_cast<size_t>(bytes),
                      c10::DataPtr(nullptr, c10::Device(c10::DeviceType::Meta)),
                      c10::GetAllocator(c10::DeviceType::Meta), /*resizable=*/true);
}

at::Tensor fake_on(const c10::Storage& storage, c10::ScalarType dtype, std::span<const int64_t> sizes,
                   std::span<const int64_t> strides, int64_t offset, c10::Device device) {
  // Without it, the first operator on this tensor would find no fake kernels.
  install_process_state();
  auto fake = c10::make_intrusive<FakeTensorImpl>(c10::Storage(storage), fake_key_set(device),
                                                  c10::scalarTypeToTypeMeta(dtype), device);
  fake->set_sizes_and_strides(c10::IntArrayRef(sizes.data(), sizes.size()),
                              c10::IntArrayRef(strides.data(), strides.size()), offset);
  return at::Tensor(std::move(fake));
}

at::Tensor fake_of(const Graph& graph, ValueId value) {
  check_is_strided_tensor(graph, value);
  return fake_of(graph, value, fake_storage(graph.storage(graph.value(value).storage).bytes));
}

const c10::Storage& FakeValues::of(StorageId id) {
  // Values of one storage share it here too, so that aliases are seen as such.
  c10::Storage& storage = storages_[id];
  if (!storage) storage = fake_storage(graph_.storage(id).bytes);
  return storage;
}

const at::Tensor& FakeValues::of(ValueId value) {
  at::Tensor& tensor = tensors_[value];
  if (!tensor.defined()) {
    check_is_strided_tensor(graph_, value);
    tensor = fake_of(graph_, value, of(graph_.value(value).storage));
  }
  return tensor;
}

}  // namespace shadowgraph
