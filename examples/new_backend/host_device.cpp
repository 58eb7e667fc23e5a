#include "host_device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/TensorUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <mutex>
#include <utility>
#include <vector>

namespace host {
namespace {

const c10::Device kDevice(c10::DeviceType::PrivateUse1, 0);
const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

// ---- Allocator, device guard and accelerator hooks

struct Allocator final : c10::Allocator {
  // Returns the memory of `storage` for another device; keeps the storage alive.
  static c10::DataPtr share(c10::Storage storage, c10::Device device) {
    void* data = storage.mutable_data();
    return {data, new c10::Storage(std::move(storage)), [](void* owner) { delete static_cast<c10::Storage*>(owner); },
            device};
  }
  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr memory = c10::GetCPUAllocator()->allocate(bytes);
    void* data = memory.get();
    const auto free = memory.get_deleter();
    return {data, memory.release_context(), free, kDevice};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
} allocator;

// One device with one synchronous stream.
struct Guard final : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::PrivateUse1> {
  c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
  c10::Device getDevice() const override { return kDevice; }
  c10::Stream getStream(c10::Device) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, kDevice); }
  c10::Stream getNewStream(c10::Device, int) const override { return c10::Stream(c10::Stream::DEFAULT, kDevice); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, kDevice); }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    c10::DataPtr memory = allocator.allocate(bytes);
    allocator.copy_data(memory.get(), storage.data(), std::min(bytes, storage.nbytes()));
    storage.set_data_ptr_noswap(std::move(memory));
    storage.set_nbytes(bytes);
  }
};

// ---- Sharing memory between the device and the CPU

void count(const c10::OperatorHandle& op);

// Maps storages between device and CPU for one call. Tensors that share a storage on one side share one on the other.
class StorageMap {
 public:
  at::Tensor to_cpu(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.device().is_privateuseone()) return tensor;
    at::Tensor out = view(tensor, cpu_storage(tensor.storage()), c10::DispatchKey::CPU);
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) out.unsafeGetTensorImpl()->set_wrapped_number(true);
    return out;
  }
  at::Tensor to_device(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.device().is_cpu()) return tensor;
    return view(tensor, device_storage(tensor.storage()), c10::DispatchKey::PrivateUse1);
  }
  // Applies metadata and storage changes of `cpu`, the CPU view of `tensor`, to `tensor`.
  void write_back(const at::Tensor& cpu, const at::Tensor& tensor) {
    c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    const c10::Storage storage = device_storage(cpu.storage());
    if (!storage.is_alias_of(tensor.storage())) impl->set_storage_keep_dtype(storage);
    if (storage.data() != cpu.storage().data()) {
      storage.set_data_ptr_noswap(Allocator::share(own(cpu.storage()), kDevice));
    }
    storage.set_nbytes(cpu.storage().nbytes());
    if (tensor.sizes() != cpu.sizes() || tensor.strides() != cpu.strides() ||
        tensor.storage_offset() != cpu.storage_offset()) {
      impl->set_sizes_and_strides(cpu.sizes(), cpu.strides(), cpu.storage_offset());
    }
  }

 private:
  static at::Tensor view(const at::Tensor& of, c10::Storage storage, c10::DispatchKey key) {
    auto keys = c10::DispatchKeySet(key);
    for (const auto bit : {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor}) {
      if (of.key_set().has(bit)) keys = keys.add(bit);
    }
    at::Tensor out = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, of.dtype());
    out.unsafeGetTensorImpl()->set_sizes_and_strides(of.sizes(), of.strides(), of.storage_offset());
    return out;
  }
  // Moves the memory of a storage to a new one; the old one gets an empty allocation.
  static c10::Storage own(const c10::Storage& storage) {
    const size_t bytes = storage.nbytes();
    return {c10::Storage::use_byte_size_t(), bytes, storage.set_data_ptr(allocator.allocate(0)), nullptr, false};
  }
  c10::Storage cpu_storage(const c10::Storage& device) {
    for (const auto& [on_device, on_cpu] : pairs_) {
      if (on_device.is_alias_of(device)) return on_cpu;
    }
    pairs_.emplace_back(device, c10::Storage(c10::Storage::use_byte_size_t(), device.nbytes(),
                                             Allocator::share(device, at::kCPU), c10::GetCPUAllocator(), true));
    return pairs_.back().second;
  }
  c10::Storage device_storage(const c10::Storage& cpu) {
    for (const auto& [on_device, on_cpu] : pairs_) {
      if (on_cpu.is_alias_of(cpu)) return on_device;
    }
    pairs_.emplace_back(
        c10::Storage(c10::Storage::use_byte_size_t(), cpu.nbytes(), Allocator::share(cpu, kDevice), &allocator, true),
        cpu);
    return pairs_.back().first;
  }

  std::vector<std::pair<c10::Storage, c10::Storage>> pairs_;
};

// Applies `change` to every tensor of a value, including lists.
template <class Change>
c10::IValue with_tensors(const c10::IValue& value, const Change& change) {
  if (value.isTensor()) return change(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> out;
    for (const at::Tensor& tensor : value.toTensorVector()) out.push_back(change(tensor));
    return out;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> out;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      out.push_back(tensor ? std::optional(change(*tensor)) : std::nullopt);
    }
    return out;
  }
  return value;
}

// ---- CPU fallback

void run_on_cpu(const c10::OperatorHandle& op, const c10::OperatorHandle& by, torch::jit::Stack* stack) {
  count(op);
  const auto& arguments = op.schema().arguments();
  const auto begin = stack->end() - static_cast<std::ptrdiff_t>(arguments.size());
  const torch::jit::Stack before(begin, stack->end());
  StorageMap storages;
  // Preserve tensor identity, because some operators compare arguments.
  std::vector<std::pair<at::Tensor, at::Tensor>> tensors;
  for (auto argument = begin; argument != stack->end(); ++argument) {
    if (argument->isDevice() && argument->toDevice().is_privateuseone()) *argument = c10::Device(at::kCPU);
    *argument = with_tensors(*argument, [&](const at::Tensor& tensor) {
      for (const auto& [there, here] : tensors) {
        if (there.is_same(tensor)) return here;
      }
      tensors.emplace_back(tensor, storages.to_cpu(tensor));
      return tensors.back().second;
    });
  }
  by.callBoxed(stack);
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::AliasInfo* alias = arguments[i].alias_info();
    if (alias == nullptr || !alias->isWrite()) continue;
    with_tensors(before[i], [&](const at::Tensor& tensor) {
      for (const auto& [there, here] : tensors) {
        if (there.is_same(tensor) && !here.is_same(there)) storages.write_back(here, there);
      }
      return tensor;
    });
  }
  const size_t results = op.schema().returns().size();
  for (auto result = stack->end() - static_cast<std::ptrdiff_t>(results); result != stack->end(); ++result) {
    *result = with_tensors(*result, [&](const at::Tensor& tensor) {
      for (const auto& [there, here] : tensors) {
        if (here.is_same(tensor)) return there;
      }
      TORCH_CHECK_NOT_IMPLEMENTED(!tensor.defined() || tensor.has_storage(), op.schema().operator_name(),
                                  " returns a tensor of layout ", tensor.layout(),
                                  ", which is not supported on this device");
      return storages.to_device(tensor);
    });
  }
}

void fall_back(const c10::OperatorHandle& op, torch::jit::Stack* stack) { run_on_cpu(op, op, stack); }

// PrivateUse1 devices get the *_overrideable variants of convolution, which are mapped to the CPU operators.
const c10::OperatorHandle& operator_named(const char* name) {
  static const auto convolution = c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution", "");
  static const auto backward = c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution_backward", "");
  return std::string_view(name) == "convolution" ? convolution : backward;
}
void convolve(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  run_on_cpu(op, operator_named("convolution"), stack);
}
// The overrideable variant lacks the sizes of the bias, whose gradient libtorch computes separately.
std::tuple<at::Tensor, at::Tensor, at::Tensor> convolve_backward(const at::Tensor& gradient, const at::Tensor& input,
                                                                 const at::Tensor& weight, at::IntArrayRef stride,
                                                                 at::IntArrayRef padding, at::IntArrayRef dilation,
                                                                 bool transposed, at::IntArrayRef output_padding,
                                                                 int64_t groups, std::array<bool, 3> mask) {
  const auto& op = operator_named("backward");
  const std::vector<int64_t> bias = {transposed ? weight.size(1) * groups : weight.size(0)};
  torch::jit::Stack stack = {gradient, input,    weight,     bias,           stride,
                             padding,  dilation, transposed, output_padding, groups};
  stack.emplace_back(c10::List<bool>({mask[0], mask[1], mask[2]}));
  run_on_cpu(op, op, &stack);
  return {stack[0].toTensor(), stack[1].toTensor(), stack[2].toTensor()};
}

// ---- Required operators

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(sizes, &allocator, kKeys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(sizes, strides, &allocator, kKeys, c10::dtype_or_default(dtype));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  StorageMap storages;
  storages.to_cpu(to).copy_(storages.to_cpu(from));
  return to;
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fall_back>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", TORCH_FN(empty));
  library.impl("empty_strided", TORCH_FN(empty_strided));
  library.impl("_copy_from", TORCH_FN(copy_from));
  library.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  library.impl("view", TORCH_FN(at::native::view));
  library.impl("set_.source_Storage", TORCH_FN(at::native::set_));
  library.impl("set_.source_Storage_storage_offset", TORCH_FN(at::native::set_storage_cpu_));
  // libtorch would decompose these, with different rounding, or check the device type.
  for (const char* name : {"native_layer_norm", "native_group_norm", "addr", "addr.out", "silu_backward",
                           "mish_backward", "mode", "conj_physical_"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&fall_back>());
  }
  library.impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolve>());
  library.impl("convolution_backward_overrideable", TORCH_FN(convolve_backward));
}

// copy_from handles lazy conjugation and negation. Resolving them first would call copy_ and recurse infinitely.
TORCH_LIBRARY_IMPL(aten, Conjugate, library) { library.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, library) { library.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

// ---- Counts

std::mutex mutex;
std::map<c10::OperatorName, int64_t, decltype([](const c10::OperatorName& a, const c10::OperatorName& b) {
           return std::tie(a.name, a.overload_name) < std::tie(b.name, b.overload_name);
         })>
    calls;

void count(const c10::OperatorHandle& op) {
  const std::lock_guard lock(mutex);
  ++calls[op.operator_name()];
}

}  // namespace

void register_device() {
  static const bool once = [] {
    c10::register_privateuse1_backend("host");
    at::RegisterPrivateUse1HooksInterface(new Hooks);
    c10::SetAllocator(c10::DeviceType::PrivateUse1, &allocator);
    return true;
  }();
  (void)once;
}

void move(const at::Tensor& tensor) {
  const at::Tensor moved = tensor.detach().to(kDevice);
  tensor.unsafeGetTensorImpl()->shallow_copy_from(moved.getIntrusivePtr());
}

std::map<std::string, int64_t> fallbacks() {
  const std::lock_guard lock(mutex);
  std::map<std::string, int64_t> out;
  for (const auto& [op, n] : calls) out.emplace(c10::toString(op), n);
  return out;
}

void forget_fallbacks() {
  const std::lock_guard lock(mutex);
  calls.clear();
}

}  // namespace host
