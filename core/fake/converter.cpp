#include "core/fake/converter.h"

#include <c10/core/CPUAllocator.h>

#include "core/fake/errors.h"
#include "core/fake/fake_tensor_impl.h"

namespace shadowgraph {
namespace {

c10::Storage meta_storage(size_t bytes) {
  return c10::Storage(c10::Storage::use_byte_size_t(), bytes, c10::DataPtr(nullptr, c10::Device(c10::DeviceType::Meta)),
                      c10::GetAllocator(c10::DeviceType::Meta), /*resizable=*/true);
}

c10::Storage meta_storage_of(const at::Tensor& real, ModeState* mode) {
  const c10::Storage& storage = real.storage();
  if (mode == nullptr) return meta_storage(storage.nbytes());
  auto& entry = mode->memo.storages[storage.unsafeGetStorageImpl()];
  // The address may have been reused since: the weak reference tells.
  if (!entry.meta || entry.real.expired()) {
    entry.real = storage.getWeakStorageImpl();
    entry.meta = meta_storage(storage.nbytes());
  }
  return entry.meta;
}

}  // namespace

at::Tensor fake_of_real(const at::Tensor& real, ModeState* mode, std::optional<c10::Device> device) {
  if (is_fake(real)) return real;
  if (!device && mode != nullptr && mode->map_devices_to_default) device = mode->default_device;
  if (real.layout() != c10::Layout::Strided || real.is_quantized() || real.is_nested()) {
    throw RealTensorError("only dense strided tensors can be made fake, not one with layout " +
                          c10::str(real.layout()) + (real.is_quantized() ? " (quantized)" : ""));
  }
  ConversionMemo::TensorEntry* entry = nullptr;
  if (mode != nullptr) {
    entry = &mode->memo.tensors[real.unsafeGetTensorImpl()];
    if (entry->fake.defined() && !entry->real.expired()) return entry->fake;
  }
  const c10::Device pretended = with_index(device.value_or(real.device()));
  auto fake = c10::make_intrusive<FakeTensorImpl>(meta_storage_of(real, mode), fake_key_set(pretended), real.dtype(),
                                                  pretended);
  fake->set_sizes_and_strides(real.sizes(), real.strides(), real.storage_offset());
  at::Tensor tensor(std::move(fake));
  tensor._set_conj(real.is_conj());
  tensor._set_neg(real.is_neg());
  if (real.is_leaf() && real.requires_grad()) tensor.set_requires_grad(true);
  if (mode != nullptr && mode->watch_size_reads) as_fake(tensor)->watch_size_reads();
  if (entry != nullptr) {
    entry->real = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>(real.getIntrusivePtr());
    entry->fake = tensor;
    mode->memo.origins[tensor.unsafeGetTensorImpl()] = real.unsafeGetTensorImpl();
  }
  return tensor;
}

at::Tensor real_of_fake(const FakeTensorImpl& fake, const ModeState& mode) {
  const auto origin = mode.memo.origins.find(&fake);
  if (origin == mode.memo.origins.end()) return {};
  const auto entry = mode.memo.tensors.find(origin->second);
  if (entry == mode.memo.tensors.end() || entry->second.fake.unsafeGetTensorImpl() != &fake) return {};
  auto real = entry->second.real.lock();
  return real.defined() ? at::Tensor(std::move(real)) : at::Tensor();
}

}  // namespace shadowgraph
