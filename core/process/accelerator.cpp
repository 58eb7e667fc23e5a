#include "core/process/accelerator.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/detail/MPSHooksInterface.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/detail/XPUHooksInterface.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/fake/fake_tensor_impl.h"
#include "core/fake/mode_state.h"
#include "core/fake/pretended_devices.h"
#include "core/fake/thread_state.h"
#include "core/libtorch/cached_hooks.h"
#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

using c10::DeviceType;

constexpr DeviceType kNothing = DeviceType::CPU;

bool in_fake_mode() { return thread_state.mode != nullptr && thread_state.mode->kind == ModeKind::kFake; }

// Returns the one kind of accelerator that the graph behind `roots` is on.
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
      if (!at::accelerator::isAccelerator(type) || type == found) continue;
      if (found != kNothing) {
        throw EnvironmentError("backward over tensors on " + c10::DeviceTypeName(found, true) + " and on " +
                               c10::DeviceTypeName(type, true) +
                               ": libtorch's autograd engine knows one kind of accelerator in a process. Run one "
                               "backward for each kind, with .detach() between them");
      }
      found = type;
    }
    for (const auto& edge : node->next_edges()) visit(edge.function.get());
  }
  return found;
}

// ---- What programs and backwards ask an accelerator

// Has seeds and offsets, no random numbers: for programs that seed every device.
class PretendedGenerator final : public c10::GeneratorImpl {
 public:
  explicit PretendedGenerator(c10::Device device)
      : GeneratorImpl(device, c10::DispatchKeySet(c10::computeDispatchKey({}, {}, device))) {}
  void set_current_seed(uint64_t seed) override { seed_ = seed, offset_ = 0; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override { return seed_ = c10::detail::getNonDeterministicRandom(); }
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  void set_state(const c10::TensorImpl& state) override { refuse(); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { refuse(); }

 private:
  [[noreturn]] static void refuse() {
    throw Error("a pretended device has no random state that could be saved or restored; it has a seed");
  }
  GeneratorImpl* clone_impl() const override {
    auto* copy = new PretendedGenerator(device());
    copy->seed_ = seed_;
    copy->offset_ = offset_;
    return copy;
  }
  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t offset_ = 0;
};

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

class PretendedXpuHooks final : public at::XPUHooksInterface {
 public:
  void init() const override {}
  bool isBuilt() const override { return seems_built_for(DeviceType::XPU); }
  bool isAvailable() const override { return deviceCount() > 0; }
  bool hasXPU() const override { return deviceCount() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex index) const override { return isBuilt(); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return isBuilt() ? pretended_generator(xpu_device(index)) : XPUHooksInterface::getDefaultGenerator(index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return isBuilt() ? new_pretended_generator(xpu_device(index)) : XPUHooksInterface::getNewGenerator(index);
  }
  c10::DeviceIndex getNumGPUs() const override { return deviceCount(); }
  c10::DeviceIndex deviceCount() const override {
    return isBuilt() ? pretended_devices_of(DeviceType::XPU) : c10::DeviceIndex{0};
  }
  void deviceSynchronize(c10::DeviceIndex index) const override {}
};

class PretendedMpsHooks final : public at::MPSHooksInterface {
 public:
  void init() const override {}
  bool isBuilt() const override { return seems_built_for(DeviceType::MPS); }
  bool isAvailable() const override { return deviceCount() > 0; }
  bool hasMPS() const override { return deviceCount() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex index) const override { return isBuilt(); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return isBuilt() ? pretended_generator(mps_device(index)) : MPSHooksInterface::getDefaultGenerator(index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return isBuilt() ? new_pretended_generator(mps_device(index)) : MPSHooksInterface::getNewGenerator(index);
  }
  c10::DeviceIndex deviceCount() const override {
    return isBuilt() ? pretended_devices_of(DeviceType::MPS) : c10::DeviceIndex{0};
  }
  void deviceSynchronize() const override {}
};

class PretendedPrivateUse1Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return in_fake_mode(); }
  bool isAvailable() const override { return pretended_devices_of(DeviceType::PrivateUse1) > 0; }
  bool hasPrimaryContext(c10::DeviceIndex index) const override { return in_fake_mode(); }
};

// Registers hooks. The engine asks the backend's, which a backend registers when it is loaded; ours serve if nobody did
// until now.
void ensure_privateuse1_hooks() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (!at::isPrivateUse1HooksRegistered()) at::RegisterPrivateUse1HooksInterface(new PretendedPrivateUse1Hooks);
  });
}

[[maybe_unused]] const bool kAcceleratorHooksRegistered = (register_accelerator_hooks(), true);

}  // namespace

const at::Generator& pretended_generator(c10::Device device) {
  const auto [entry, added] = thread_belongings().generators.try_emplace(device);
  if (added) entry->second = new_pretended_generator(device);
  return entry->second;
}

at::Generator new_pretended_generator(c10::Device device) { return at::make_generator<PretendedGenerator>(device); }

bool seems_built_for(DeviceType type) {
  if (thread_state.backward_on != kNothing) return type == thread_state.backward_on;
  if (!in_fake_mode()) return false;
  const DeviceType standard = thread_state.mode->default_device.type();
  const bool is_other = standard == DeviceType::XPU || standard == DeviceType::MPS;
  return type == (is_other ? standard : DeviceType::CUDA);
}

AcceleratorScope::AcceleratorScope(const torch::autograd::edge_list& roots) : outer_(thread_state.backward_on) {
  if (!in_fake_mode() || !other_accelerators_are_pretended()) return;
  const DeviceType type = find_accelerator(roots);
  if (type == kNothing) return;
  if (type == DeviceType::PrivateUse1) {
    if (!c10::is_privateuse1_backend_registered()) {
      throw EnvironmentError(
          "backward on privateuseone: libtorch's autograd engine takes it for an accelerator once it has a name, which "
          "it keeps for the life of the process. Load the backend, or call c10::register_privateuse1_backend(\"name\") "
          "first");
    }
    ensure_privateuse1_hooks();
  }
  thread_state.backward_on = type;
  std::optional<DeviceType> told;
  try {
    told = at::accelerator::getAccelerator(/*checked=*/false);
  } catch (const c10::Error&) {  // "Cannot have both": another one is there for real
  }
  if (told == type) return;
  thread_state.backward_on = outer_;
  throw EnvironmentError("backward on fake " + c10::DeviceTypeName(type, true) +
                         ": libtorch's autograd engine knows one kind of accelerator in a process, and here that is " +
                         (told ? c10::DeviceTypeName(*told, true) : "one that is there for real") +
                         ". Run it in a process without that one");
}

void explain_missing_accelerator(const torch::autograd::edge_list& roots) {
  if (in_fake_mode()) return;
  const DeviceType type = find_accelerator(roots);
  if (type == kNothing || at::accelerator::getAccelerator(/*checked=*/false) == type) return;
  throw EnvironmentError(
      "backward over fake tensors on " + c10::DeviceTypeName(type, true) +
      " outside a mode: libtorch's autograd engine finds no such device in this process. Run it inside "
      "the mode (FakeTensorModeScope enters one again)");
}

AcceleratorScope::~AcceleratorScope() { thread_state.backward_on = outer_; }

void replace_missing_accelerator_hooks() {
  replace_missing_hooks(at::detail::getXPUHooks(), PretendedXpuHooks());
  replace_missing_hooks(at::detail::getMPSHooks(), PretendedMpsHooks());
}

void register_accelerator_hooks() {
  register_missing_hooks<PretendedXpuHooks, at::XPUHooksInterface>(*at::XPUHooksRegistry(), "XPUHooks");
  register_missing_hooks<PretendedMpsHooks, at::MPSHooksInterface>(*at::MPSHooksRegistry(), "MPSHooks");
}

}  // namespace shadowgraph
