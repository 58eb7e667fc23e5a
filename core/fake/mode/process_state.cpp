// Hooks through which libtorch sees simulated devices, and the kind of accelerator that this process reports (isBuilt).
//
// libtorch supports one kind per process: autograd's engine tracks streams of that kind only, and asserts that every
// gradient on an accelerator has one. So the reported kind depends on the context:
//
//   - during a backward over fake tensors, the kind that its graph is on;
//   - otherwise, inside a mode, that of the mode's default device, or CUDA if that is the CPU;
//   - outside, none.
#include "core/fake/mode/process_state.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Generator.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/detail/MPSHooksInterface.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/detail/XPUHooksInterface.h>
#include <ATen/ops/_has_compatible_shallow_copy_type_native.h>
#include <ATen/ops/detach_ops.h>
#include <c10/core/Device.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/FakeGuardImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/fake/dispatch/call.h"
#include "core/fake/dispatch/operand_scan.h"
#include "core/fake/dispatch/unboxed_call.h"
#include "core/fake/fake_tensor_impl.h"
#include "core/fake/mode/modes.h"
#include "core/fake/mode_state.h"
#include "core/fake/simulated_devices.h"
#include "core/fake/storage_context.h"
#include "core/fake/thread_state.h"
#include "core/libtorch/autograd.h"
#include "core/libtorch/process.h"
#include "shadowgraph/error.h"

namespace shadowgraph {

namespace {

using c10::DeviceType;

constexpr DeviceType kNothing = DeviceType::CPU;

bool in_fake_mode() { return thread_state.mode != nullptr && thread_state.mode->kind == ModeKind::kFake; }

// Returns the only kind of accelerator in the graph behind `roots`.
DeviceType find_accelerator(const torch::autograd::edge_list& roots) {
  DeviceType found = kNothing;
  std::vector<torch::autograd::Node*> waiting;
  std::unordered_set<torch::autograd::Node*> seen;
  const auto visit = [&](torch::autograd::Node* node) {
    if (node != nullptr && seen.insert(node).second) waiting.push_back(node);
  };
  for (const auto& edge : roots) visit(edge.function.get());
  while (!waiting.empty()) {
    torch::autograd::Node* node = waiting.back();
    waiting.pop_back();
    for (uint32_t i = 0; i < node->num_inputs(); ++i) {
      const DeviceType type = node->input_metadata(i).device().type();
      // libtorch says that an unregistered PrivateUse1 is none.
      if ((!at::accelerator::isAccelerator(type) && type != DeviceType::PrivateUse1) || type == found) continue;
      if (found != kNothing) {
        throw Error("backward over tensors on " + c10::DeviceTypeName(found, true) + " and on " +
                        c10::DeviceTypeName(type, true) +
                        ": libtorch's autograd engine supports one kind of accelerator per process. Run one "
                        "backward for each kind, with .detach() between them",
                    NodeId(), Error::Fault::kOurs);
      }
      found = type;
    }
    for (const auto& edge : node->next_edges()) visit(edge.function.get());
  }
  return found;
}

// Returns whether our hooks report libtorch as built for `type`, at this point and on this thread.
bool is_reported_as_built(DeviceType type) {
  if (thread_state.backward_on != kNothing) return type == thread_state.backward_on;
  if (!in_fake_mode()) return false;
  const DeviceType standard = thread_state.mode->default_device.type();
  const bool is_other = standard == DeviceType::XPU || standard == DeviceType::MPS;
  return type == (is_other ? standard : DeviceType::CUDA);
}

// Holds a seed and an offset; produces no random numbers.
class SimulatedGenerator final : public c10::GeneratorImpl {
 public:
  explicit SimulatedGenerator(c10::Device device)
      : GeneratorImpl(device, c10::DispatchKeySet(c10::computeDispatchKey({}, {}, device))) {}
  void set_current_seed(uint64_t seed) override { seed_ = seed, offset_ = 0; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
  }
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  // As CUDA's: seed and offset.
  void set_state(const c10::TensorImpl& state) override {
    if (state.is_meta() || state.dtype() != caffe2::TypeMeta::Make<uint8_t>() || state.numel() != kStateBytes) {
      throw Error("the random state of a simulated device is a CPU tensor of 16 bytes, as get_state() returns it");
    }
    std::memcpy(&seed_, state.data(), sizeof(seed_));
    std::memcpy(&offset_, static_cast<const char*>(state.data()) + sizeof(seed_), sizeof(offset_));
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    const at::Tensor state = at::detail::empty_cpu({kStateBytes}, at::kByte, /*pin_memory=*/false, std::nullopt);
    auto* bytes = state.mutable_data_ptr<uint8_t>();
    std::memcpy(bytes, &seed_, sizeof(seed_));
    std::memcpy(bytes + sizeof(seed_), &offset_, sizeof(offset_));
    return state.getIntrusivePtr();
  }

 private:
  static constexpr int64_t kStateBytes = sizeof(uint64_t) + sizeof(uint64_t);
  GeneratorImpl* clone_impl() const override {
    auto* copy = new SimulatedGenerator(device());
    copy->seed_ = seed_;
    copy->offset_ = offset_;
    return copy;
  }
  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t offset_ = 0;
};

at::Generator new_simulated_generator(c10::Device device) { return at::make_generator<SimulatedGenerator>(device); }

// Returns this thread's default generator of a simulated device.
const at::Generator& simulated_generator(c10::Device device) {
  const auto [entry, added] = thread_objects().generators.try_emplace(device);
  if (added) entry->second = new_simulated_generator(device);
  return entry->second;
}

c10::Device xpu_device(c10::DeviceIndex index) {
  const c10::Device device = index < 0 ? with_current_index(DeviceType::XPU) : c10::Device(DeviceType::XPU, index);
  check_exists_for_libtorch(device);
  return device;
}
c10::Device mps_device(c10::DeviceIndex index) {
  const c10::Device device(DeviceType::MPS, std::max(index, c10::DeviceIndex{0}));
  check_exists_for_libtorch(device);
  return device;
}

// Common base of XPU and MPS hooks.
template <class Interface, DeviceType type, c10::Device (*device_of)(c10::DeviceIndex)>
class SimulatedHooks : public Interface {
 public:
  void init() const override {}
  bool isBuilt() const override { return is_reported_as_built(type); }
  bool isAvailable() const override { return deviceCount() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return isBuilt(); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return isBuilt() ? simulated_generator(device_of(index)) : Interface::getDefaultGenerator(index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return isBuilt() ? new_simulated_generator(device_of(index)) : Interface::getNewGenerator(index);
  }
  c10::DeviceIndex deviceCount() const override { return isBuilt() ? simulated_devices_of(type) : c10::DeviceIndex{0}; }
};

class SimulatedXpuHooks final : public SimulatedHooks<at::XPUHooksInterface, DeviceType::XPU, xpu_device> {
 public:
  bool hasXPU() const override { return deviceCount() > 0; }
  c10::DeviceIndex getNumGPUs() const override { return deviceCount(); }
  void deviceSynchronize(c10::DeviceIndex) const override {}
};

class SimulatedMpsHooks final : public SimulatedHooks<at::MPSHooksInterface, DeviceType::MPS, mps_device> {
 public:
  bool hasMPS() const override { return deviceCount() > 0; }
  void deviceSynchronize() const override {}
};

class SimulatedPrivateUse1Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return in_fake_mode(); }
  bool isAvailable() const override { return simulated_devices_of(DeviceType::PrivateUse1) > 0; }
  bool hasPrimaryContext(c10::DeviceIndex index) const override { return in_fake_mode(); }
};

// Registers our hooks unless the backend has registered its own, which happens when it is loaded.
void ensure_privateuse1_hooks() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (!at::isPrivateUse1HooksRegistered()) at::RegisterPrivateUse1HooksInterface(new SimulatedPrivateUse1Hooks);
  });
}

// Registers XPU and MPS hooks where there are none. Must run before libtorch queries and caches them.
void register_accelerator_hooks() {
  register_missing_hooks<SimulatedXpuHooks, at::XPUHooksInterface>(*at::XPUHooksRegistry(), "XPUHooks");
  register_missing_hooks<SimulatedMpsHooks, at::MPSHooksInterface>(*at::MPSHooksRegistry(), "MPSHooks");
}

[[maybe_unused]] const bool kAcceleratorHooksRegistered = (register_accelerator_hooks(), true);

// Called after a failed backward. Throws Error if the cause is that its fake tensors are on an accelerator that exists
// only inside a mode.
void explain_missing_accelerator(const torch::autograd::edge_list& roots) {
  if (in_fake_mode()) return;
  const DeviceType type = find_accelerator(roots);
  if (type == kNothing || at::accelerator::getAccelerator(/*checked=*/false) == type) return;
  throw Error("backward over fake tensors on " + c10::DeviceTypeName(type, true) +
                  " outside a mode: libtorch's autograd engine finds no such device in this process. Run it inside "
                  "the mode (FakeTensorModeScope re-enters one)",
              NodeId(), Error::Fault::kOurs);
}

// Active while the engine runs a backward from `roots`. Throws Error if the graph is on several kinds of accelerator,
// or on one that libtorch cannot use in this process.
class AcceleratorScope {
 public:
  explicit AcceleratorScope(const torch::autograd::edge_list& roots) : outer_(thread_state.backward_on) {
    if (!in_fake_mode() || !other_accelerators_are_simulated()) return;
    const DeviceType type = find_accelerator(roots);
    if (type == kNothing) return;
    if (type == DeviceType::PrivateUse1) {
      if (c10::get_privateuse1_backend() == "privateuseone") {
        throw Error(
            "backward on privateuseone: libtorch's autograd engine supports it only under a registered name, which is "
            "permanent in the process. Load the backend, or call c10::register_privateuse1_backend(\"name\") first (in "
            "Python: torch.utils.backend_registration._setup_privateuseone_for_python_backend(\"name\"))",
            NodeId(), Error::Fault::kOurs);
      }
      ensure_privateuse1_hooks();
    }
    thread_state.backward_on = type;
    std::optional<DeviceType> reported;
    try {
      reported = at::accelerator::getAccelerator(/*checked=*/false);
    } catch (const c10::Error&) {  // "Cannot have both": there is a real one of another kind
    }
    if (reported == type) return;
    thread_state.backward_on = outer_;
    throw Error("backward on fake " + c10::DeviceTypeName(type, true) +
                    ": libtorch's autograd engine supports one kind of accelerator per process, and here that is " +
                    (reported ? c10::DeviceTypeName(*reported, true) : "a real device of another kind") +
                    ". Run it in a process without that device",
                NodeId(), Error::Fault::kOurs);
  }

  ~AcceleratorScope() { thread_state.backward_on = outer_; }
  C10_DISABLE_COPY_AND_ASSIGN(AcceleratorScope);

 private:
  c10::DeviceType outer_;
};

// For hooks that libtorch has already queried and cached as missing.
void replace_missing_accelerator_hooks() {
  replace_missing_hooks(at::detail::getXPUHooks(), SimulatedXpuHooks());
  replace_missing_hooks(at::detail::getMPSHooks(), SimulatedMpsHooks());
}

}  // namespace

// `tensor` is never an inference tensor, which has no version: autograd refuses to save those before calling hooks.
SavedData::SavedData(const at::Tensor& tensor)
    : data_(tensor.tensor_data()),
      version_counter_(torch::autograd::impl::version_counter(tensor)),
      version_(version_counter_.current_version()) {}

const at::Tensor& SavedData::unpack() const {
  TORCH_CHECK(version_counter_.current_version() == version_,
              "one of the variables needed for gradient computation has been modified by an inplace operation: [",
              data_.toString(), " ", data_.sizes(), "] is at version ", version_counter_.current_version(),
              "; expected version ", version_, " instead.");
  return data_;
}

namespace {

c10::DeviceIndex& current_device(c10::DeviceType type) {
  return thread_state.current_device[static_cast<size_t>(type)];
}

// Device types that can be simulated and need a guard.
constexpr c10::DeviceType kSimulatedDeviceTypes[] = {c10::DeviceType::CUDA, c10::DeviceType::XPU, c10::DeviceType::MPS,
                                                     c10::DeviceType::PrivateUse1};

class SimulatedDeviceGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  explicit SimulatedDeviceGuard(c10::DeviceType type) : type_(type) {}
  c10::DeviceType type() const override { return type_; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device old = getDevice();
    setDevice(device);
    return old;
  }
  c10::Device getDevice() const override { return {type_, current_device(type_)}; }
  void setDevice(c10::Device device) const override {
    check_exists_for_libtorch(device);
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) current_device(type_) = device.index();
  }
  c10::Stream getStream(c10::Device device) const override {
    return current_stream(device.has_index() ? device : getDevice());
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device.has_index() ? device : getDevice());
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return new_stream(device.has_index() ? device : getDevice());
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool is_high_priority) const override {
    return getNewStream(device, 0);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return exchange_current_stream(stream); }
  c10::DeviceIndex deviceCount() const noexcept override { return simulated_devices_of(type_); }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex index,
              const c10::EventFlag flag) const override {
    *event = reinterpret_cast<void*>(record_event(stream));  // NOLINT(performance-no-int-to-ptr)
  }
  void block(void* event, const c10::Stream& stream) const override {
    wait_for_event(stream, reinterpret_cast<uint64_t>(event));
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    use_memory_on(data, stream);
  }
  bool queryEvent(void* event) const override { return true; }
  bool queryStream(const c10::Stream& stream) const override { return true; }
  void synchronizeStream(const c10::Stream& stream) const override {}
  void synchronizeEvent(void* event) const override {}
  void synchronizeDevice(const c10::DeviceIndex index) const override {}
  double elapsedTime(void* first, void* second, const c10::DeviceIndex index) const override {
    const DataDependentError error(
        "Event.elapsed_time() is not available on a simulated device, which runs nothing; profile the program with a "
        "device spec (shadowgraph.profile(..., spec=\"h100\")), which estimates its time");
    translate(error);
    throw error;
  }

 private:
  const c10::DeviceType type_;
};

void install_device_guards() {
  for (const c10::DeviceType type : kSimulatedDeviceTypes) {
    auto& slot = c10::impl::device_guard_impl_registry[static_cast<size_t>(type)];
    const auto* present = slot.load();
    if (present == nullptr || present->deviceCount() == 0) slot.store(new SimulatedDeviceGuard(type));
  }
}

// Our CUDA guard, if it is installed.
const c10::impl::DeviceGuardImplInterface* cuda_guard = nullptr;

class SimulatedCudaHooks final : public at::CUDAHooksInterface {
 public:
  explicit SimulatedCudaHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return is_reported_as_built(c10::DeviceType::CUDA); }
  bool isAvailable() const override { return deviceCount() > 0; }
  bool hasCUDA() const override { return deviceCount() > 0; }
  bool hasCUDART() const override { return hasCUDA(); }
  bool hasPrimaryContext(c10::DeviceIndex index) const override { return deviceCount() > 0; }
  c10::DeviceIndex current_device() const override { return shadowgraph::current_device(c10::DeviceType::CUDA); }
  c10::DeviceIndex deviceCount() const override { return simulated_devices_of(c10::DeviceType::CUDA); }
  int getNumGPUs() const override { return deviceCount(); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    if (active_fake_mode() == nullptr) return CUDAHooksInterface::getDefaultGenerator(index);
    return simulated_generator(cuda_device(index));
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    if (active_fake_mode() == nullptr) return CUDAHooksInterface::getNewGenerator(index);
    return new_simulated_generator(cuda_device(index));
  }
  bool hasCuDNN() const override { return compiledWithCuDNN(); }
  bool compiledWithCuDNN() const override {
    const ModeState* mode = active_fake_mode();
    return mode != nullptr && mode->profile().cudnn;
  }
  bool supportsDilatedConvolutionWithCuDNN() const override { return compiledWithCuDNN(); }
  bool supportsDepthwiseConvolutionWithCuDNN() const override { return compiledWithCuDNN(); }
  bool supportsBFloat16ConvolutionWithCuDNNv8() const override {
    const ModeState* mode = active_fake_mode();
    return mode != nullptr && mode->profile().cudnn && mode->profile().sm_major >= 8;
  }
  bool supportsBFloat16RNNWithCuDNN() const override { return supportsBFloat16ConvolutionWithCuDNNv8(); }
  long versionCuDNN() const override {
    const ModeState* mode = active_fake_mode();
    return mode == nullptr ? 0 : mode->profile().cudnn_version;
  }
  long versionRuntimeCuDNN() const override { return versionCuDNN(); }
  bool isPinnedPtr(const void* data) const override { return is_simulated_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return hasCUDA() ? simulated_pinned_allocator() : CUDAHooksInterface::getPinnedMemoryAllocator();
  }
  double batchnormMinEpsilonCuDNN() const override { return 0.0; }  // CUDNN_BN_MIN_EPSILON since cuDNN 7.6
  void deviceSynchronize(c10::DeviceIndex index) const override {}

 private:
  static c10::Device cuda_device(c10::DeviceIndex index) {
    const c10::Device device(c10::DeviceType::CUDA,
                             index < 0 ? shadowgraph::current_device(c10::DeviceType::CUDA) : index);
    check_exists_for_libtorch(device);
    return device;
  }
};

std::unique_ptr<at::CUDAHooksInterface> make_hooks(at::CUDAHooksArgs arguments) {
  return std::make_unique<SimulatedCudaHooks>(arguments);
}

bool machine_has_a_gpu() {
  const auto* guard = c10::impl::device_guard_impl_registry[static_cast<size_t>(c10::DeviceType::CUDA)].load();
  return guard != nullptr && guard->deviceCount() > 0;
}

// Registers our CUDA hooks. getCUDAHooks() caches the first result for the life of the process, so this cannot wait for
// the first mode. A CUDA build of libtorch also registers hooks, before or after ours depending on the load order. With
// a GPU they must take precedence; without one ours must, because theirs throw for every device query.
void register_hooks() {
  auto& registry = *at::CUDAHooksRegistry();
  if (!registry.Has("CUDAHooks")) {
    registry.Register("CUDAHooks", &make_hooks, "", c10::REGISTRY_FALLBACK);
  } else if (!machine_has_a_gpu()) {
    static std::once_flag once;
    std::call_once(once, [&] { registry.Register("CUDAHooks", &make_hooks, "", c10::REGISTRY_PREFERRED); });
  }
}

[[maybe_unused]] const bool kHooksRegistered = (register_hooks(), true);

// Forwards to the previous default engine and adds saved-tensor hooks where the program has set none.
class ObservingEngine final : public ForwardingEngine {
 public:
  using ForwardingEngine::ForwardingEngine;
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    if (auto theirs = ForwardingEngine::get_default_saved_variable_hooks()) return theirs;
    SavedTensorObserver* scoped = thread_state.saved_tensors;
    SavedTensorObserver* observer = scoped != nullptr ? scoped : saved_tensor_observer_of_mode();
    return observer == nullptr ? nullptr : observer->hooks_for_saved_tensor();
  }
  torch::autograd::variable_list execute(const torch::autograd::edge_list& roots,
                                         const torch::autograd::variable_list& inputs, bool keep_graph,
                                         bool create_graph, bool accumulate_grad,
                                         const torch::autograd::edge_list& outputs) override {
    const AcceleratorScope scope(roots);
    try {
      return ForwardingEngine::execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
    } catch (const c10::Error&) {
      explain_missing_accelerator(roots);
      throw;
    }
  }
  static ObservingEngine& instance() {
    static auto* engine = new ObservingEngine(engine_before());  // its threads may outlive static destruction
    return *engine;
  }

 private:
  // Python's engine in a Python process; nullptr for libtorch's.
  static torch::autograd::Engine* engine_before() {
    torch::autograd::Engine& before = get_default_engine();
    return &before == &get_base_engine() ? nullptr : &before;
  }
};

// Must run before the device guards are installed, or the engine would start a worker thread for each simulated device.
void install_engine() {
  ObservingEngine::instance().start_threads();
  torch::autograd::set_default_engine_stub([]() -> torch::autograd::Engine& { return ObservingEngine::instance(); });
}

void check_key_is_free(c10::DispatchKey key) {
  if (c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(key)) {
    throw Error(std::string("another library has registered a fallback for the dispatch key ") + c10::toString(key) +
                    ", which shadowgraph needs. Use the two libraries in separate processes",
                NodeId(), Error::Fault::kOurs);
  }
}

// detach is a view that autograd does not track. A detached real tensor shares the original's version counter, and with
// it the mark (FakeTensorImpl) that rejects writes. Handled above autograd: below it, calls with and without autograd,
// such as torch.nn.Parameter(data), look the same.
at::Tensor detach_kernel(c10::DispatchKeySet keys, const at::Tensor& self) {
  constexpr c10::DispatchKeySet kBelow(c10::DispatchKeySet::FULL_AFTER, kCompositeKey);
  at::Tensor result = at::_ops::detach::redispatch(keys & kBelow, self);
  ModeState* mode = thread_state.mode;
  if (!reports_composites(mode) || c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::ADInplaceOrView)) {
    return result;
  }
  FakeTensorImpl* fake = as_fake(result);
  // Forward-mode AD: a result with a tangent must not be changed.
  if (fake == nullptr || fake->is_inference() || fake->autograd_meta() != nullptr) return result;
  if (is_fake(self)) {
    if (C10_LIKELY(!writes_may_reach_real(self) || !writes_reach_real_tensor(self, mode))) return result;
    fake->set_view_of_real();
  }
  return at::Tensor(fake->shallow_copy_and_detach(fake->version_counter(), fake->allow_tensor_metadata_change()));
}

// The operator that `.data =` (set_data) calls first. Rejects a fake as the data of another tensor, also outside of a
// mode: a real tensor cannot become a fake one, so it would become a plain meta tensor.
bool shallow_copy_kernel(const at::Tensor& self, const at::Tensor& from) {
  static const OperatorInfo& info =
      OperatorInfo::of(c10::Dispatcher::singleton().findSchemaOrThrow("aten::_has_compatible_shallow_copy_type", ""));
  const bool becomes_fake =  // a materialized tensor
      thread_state.mode == nullptr && dynamic_cast<const FakeTensorImpl*>(self.unsafeGetTensorImpl()) != nullptr;
  if (is_fake(self) || becomes_fake || !is_fake(from)) {
    return at::native::_has_compatible_shallow_copy_type(self, from);
  }
  try {
    refuse_write_while_deferring(info, self, thread_state.mode);
    throw UnsupportedError("`.data =`, Module::to or Module::clone would replace the data of a real tensor (" +
                           c10::str(self.sizes()) +
                           ") by that of a fake one; nothing was changed. Create the tensor or module inside the mode "
                           "or deferred_init, materialize deferred tensors first, or run this line under an "
                           "UnfakeGuard, on real tensors");
  } catch (const Error& error) {
    translate(error);
    throw;
  }
}

void install_dispatch_keys() {
  check_key_is_free(kFakeKey);
  check_key_is_free(kCompositeKey);
  using torch::CppFunction;
  using torch::Library;
  static Library fake(Library::IMPL, "_", kFakeKey, __FILE__, __LINE__);
  fake.fallback(CppFunction::makeFromBoxedFunction<&fake_fallback>());
  static Library unboxed(Library::IMPL, "aten", kFakeKey, __FILE__, __LINE__);
  register_unboxed_operators(unboxed);
  static Library through(Library::IMPL, "_", kCompositeKey, __FILE__, __LINE__);
  through.fallback(CppFunction::makeFallthrough());

  static Library unboxed_composites(Library::IMPL, "aten", kCompositeKey, __FILE__, __LINE__);
  register_unboxed_composites(unboxed_composites);
  unboxed_composites.impl("detach", CppFunction(TORCH_FN(detach_kernel)));
  static std::vector<std::unique_ptr<Library>> set_data;
  for (const auto key : {c10::DispatchKey::AutogradCPU, c10::DispatchKey::AutogradCUDA, c10::DispatchKey::AutogradXPU,
                         c10::DispatchKey::AutogradMPS, c10::DispatchKey::AutogradPrivateUse1,
                         c10::DispatchKey::AutogradMeta, kFakeKey}) {
    set_data.push_back(std::make_unique<Library>(Library::IMPL, "aten", key, __FILE__, __LINE__));
    set_data.back()->impl("_has_compatible_shallow_copy_type", CppFunction(TORCH_FN(shallow_copy_kernel)));
  }
  static std::unordered_map<std::string, std::unique_ptr<Library>> composites;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (!op || !op->hasSchema()) continue;
    const bool composite = op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
    if (!composite && !may_resize_output(*op)) continue;
    const std::string space = op->schema().getNamespace() ? std::string(*op->schema().getNamespace()) : "";
    if (space.empty() || space == "prim" || space == "_" || space == "profiler" ||
        (composite && !is_reported_as_region(*op)) || op->hasKernelForDispatchKey(kCompositeKey)) {
      continue;
    }
    auto& library = composites[space];
    if (!library) library = std::make_unique<Library>(Library::IMPL, space, kCompositeKey, __FILE__, __LINE__);
    library->impl(toString(name).substr(space.size() + 2).c_str(),
                  composite ? CppFunction::makeFromBoxedFunction<&composite_kernel>()
                            : CppFunction::makeFromBoxedFunction<&lazy_output_kernel>());
  }
}

// Verifies the installation, which relies on private libtorch APIs that may change.
void verify_installation() {
  require_of_libtorch(&torch::autograd::Engine::get_default_engine() == &ObservingEngine::instance(),
                      "set_default_engine_stub", "the default engine is not the one set");
  require_of_libtorch(machine_has_a_gpu() || typeid(at::detail::getCUDAHooks()) == typeid(SimulatedCudaHooks),
                      "getCUDAHooks", "it does not return the hooks that replaced the cached ones");
  require_of_libtorch(c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA) != nullptr, "device_guard_impl_registry",
                      "the installed guard is missing");
  require_of_libtorch(c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(kFakeKey), "Library::fallback",
                      "the dispatch key of fake tensors has no fallback");
}

}  // namespace

SavedTensorScope::SavedTensorScope(SavedTensorObserver* observer) {
  install_process_state();
  outer_ = std::exchange(thread_state.saved_tensors, observer);
}

SavedTensorScope::~SavedTensorScope() { thread_state.saved_tensors = outer_; }

SavedTensorObserver* saved_tensor_observer_of_mode() {
  const ModeState* mode = thread_state.mode;
  return mode == nullptr ? nullptr : mode->saved_tensors;
}

void install_process_state() {
  static std::once_flag once;
  std::call_once(once, [] {
    check_libtorch_version();
    register_hooks();  // again: libtorch_cuda may have been loaded since static initialization
    install_engine();
    if (!machine_has_a_gpu()) replace_cached_hooks(at::detail::getCUDAHooks(), SimulatedCudaHooks({}));
    replace_missing_accelerator_hooks();
    install_device_guards();
    const auto* guard = c10::impl::device_guard_impl_registry[static_cast<size_t>(c10::DeviceType::CUDA)].load();
    if (dynamic_cast<const SimulatedDeviceGuard*>(guard) != nullptr) cuda_guard = guard;
    install_dispatch_keys();
    install_script_operators();
    verify_installation();
  });
}

void restore_device_guards() {
  auto& slot = c10::impl::device_guard_impl_registry[static_cast<size_t>(c10::DeviceType::CUDA)];
  const auto* present = slot.load();
  if (present == cuda_guard || cuda_guard == nullptr) return;
  using Fake = c10::impl::FakeGuardImpl<c10::DeviceType::CUDA>;
  using NoOp = c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA>;
  if (dynamic_cast<const Fake*>(present) != nullptr || dynamic_cast<const NoOp*>(present) != nullptr) {
    slot.store(cuda_guard);
  }
}

}  // namespace shadowgraph
