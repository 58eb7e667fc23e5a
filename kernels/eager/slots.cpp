// Puts boxed kernels into libtorch's tables, before those that were there.
#include "kernels/eager/slots.h"

#include <c10/util/Exception.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

#include "ir/operators/operator_name.h"

namespace shadowgraph {

// Lists who is asked at an operator's kernel of one device. The boxed kernel that asks stays in libtorch's table for
// good. Taking it out while another thread runs it would free the object that it runs. With nobody to ask it passes on.
class Slot {
 public:
  using Asked = std::vector<std::shared_ptr<AskedKernel>>;  // the latest last

  explicit Slot(c10::SafeKernelFunction original) : original_(std::move(original)) {}

  void call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) const {
    if (occupied_.load(std::memory_order_acquire)) {
      const std::shared_ptr<const Asked> asked = asked_.load(std::memory_order_acquire);
      for (auto kernel = asked->rbegin(); kernel != asked->rend(); ++kernel) {
        OperatorKernels::OriginalCall original;
        const auto outcome = (*kernel)->call(op, *stack, original);
        if (outcome == OperatorKernels::Outcome::kRan) return;
        if (outcome != OperatorKernels::Outcome::kOriginal) continue;
        original_.callBoxed(op, keys, stack);
        original.ended();
        return;
      }
    }
    original_.callBoxed(op, keys, stack);
  }

  // Call both under slots_mutex.
  void add(const std::shared_ptr<AskedKernel>& kernel) {
    Asked asked = *asked_.load();
    asked.push_back(kernel);
    set(std::move(asked));
  }
  void remove(const std::shared_ptr<AskedKernel>& kernel) {
    Asked asked = *asked_.load();
    std::erase(asked, kernel);
    set(std::move(asked));
  }

 private:
  void set(Asked asked) {
    const bool occupied = !asked.empty();
    if (!occupied) occupied_.store(false, std::memory_order_release);
    asked_.store(std::make_shared<const Asked>(std::move(asked)), std::memory_order_release);
    if (occupied) occupied_.store(true, std::memory_order_release);
  }

  const c10::SafeKernelFunction original_;
  std::atomic<bool> occupied_ = false;
  std::atomic<std::shared_ptr<const Asked>> asked_ = std::make_shared<const Asked>();
};

namespace {

struct AskingKernel final : c10::OperatorKernel {
  explicit AskingKernel(Slot& slot) : slot(slot) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    slot.call(op, keys, stack);
  }
  Slot& slot;
};

// Libtorch warns that a kernel covers one that was there, which is the purpose here.
struct NoWarnings final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

std::mutex slots_mutex;

// Makes the slot of an operator and device once, for the rest of the process. Call under slots_mutex.
Slot& slot_of(const c10::OperatorHandle& op, c10::DispatchKey key) {
  static auto& slots = *new std::map<std::pair<std::string, c10::DispatchKey>, Slot*>();
  const std::string name = name_with_overload(op.operator_name());
  Slot*& slot = slots[{name, key}];
  if (slot != nullptr) return *slot;
  slot = new Slot(op.getComputedKernelForDispatchKey(key));
  const std::string space(namespace_of(name));
  auto* const library = new torch::Library(torch::Library::IMPL, space, key, __FILE__, __LINE__);
  NoWarnings silent;
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
  library->impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<AskingKernel>(*slot)));
  return *slot;
}

}  // namespace

AskingSlots::AskingSlots(std::shared_ptr<AskedKernel> kernel, const std::vector<c10::OperatorHandle>& operators,
                         c10::DispatchKey key)
    : kernel_(std::move(kernel)) {
  const std::lock_guard lock(slots_mutex);
  for (const c10::OperatorHandle& op : operators) {
    Slot& slot = slot_of(op, key);
    if (std::ranges::find(slots_, &slot) != slots_.end()) continue;  // named twice
    slot.add(kernel_);
    slots_.push_back(&slot);
  }
}

AskingSlots::~AskingSlots() {
  const std::lock_guard lock(slots_mutex);
  for (Slot* slot : slots_) slot->remove(kernel_);
}

std::string name_with_overload(const c10::OperatorName& name) {
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

std::optional<c10::OperatorHandle> operator_of_name(const std::string& name) {
  const size_t space = name.find("::");
  const size_t dot = name.find('.', space == std::string::npos ? 0 : space);
  return c10::Dispatcher::singleton().findSchema(
      {name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1)});
}

bool is_made_of_others(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

}  // namespace shadowgraph
