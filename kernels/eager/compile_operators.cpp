// Puts boxed kernels into libtorch's tables, before those that were there.
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>

#include "kernels/compiler/no_kernel.h"
#include "kernels/compiler/operator_table.h"
#include "kernels/replay/list_calls.h"
#include "shadowgraph/kernels/eager.h"

namespace shadowgraph {
namespace {

std::string name_of(const c10::OperatorName& name) {
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

// libtorch splits such a call above the devices' kernels, where autograd is. A device's kernel would take its gradient
// away.
bool is_made_of_others(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

bool is_compilable(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  if (name.starts_with("aten::_foreach_") || name.starts_with("aten::_fused_adam") ||
      name.starts_with("aten::_fused_sgd")) {
    return element_operator(op).has_value();
  }
  return find_kernel_row(name_of(op.operator_name())) != nullptr;
}

// Lists who is asked at an operator's kernel of one device. The boxed kernel that asks stays in libtorch's table for
// good. Taking it out while another thread runs it would free the object that it runs. With nobody to ask it passes on.
class Slot {
 public:
  struct Asking {
    std::shared_ptr<OperatorKernels> kernels;
    bool measures = false;
  };
  using Asked = std::vector<Asking>;  // the latest last

  explicit Slot(c10::SafeKernelFunction original) : original_(std::move(original)) {}

  void call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) const {
    if (occupied_.load(std::memory_order_acquire)) {
      const std::shared_ptr<const Asked> asked = asked_.load(std::memory_order_acquire);
      for (auto asking = asked->rbegin(); asking != asked->rend(); ++asking) {
        OperatorKernels::OriginalCall original;
        const auto outcome = asking->kernels->call(op, *stack, asking->measures ? &original : nullptr);
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
  void add(const Asking& asking) {
    Asked asked = *asked_.load();
    asked.push_back(asking);
    set(std::move(asked));
  }
  void remove(const std::shared_ptr<OperatorKernels>& kernels) {
    Asked asked = *asked_.load();
    std::erase_if(asked, [&](const Asking& asking) { return asking.kernels == kernels; });
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
  const std::string name = name_of(op.operator_name());
  Slot*& slot = slots[{name, key}];
  if (slot != nullptr) return *slot;
  slot = new Slot(op.getComputedKernelForDispatchKey(key));
  auto* const library = new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
  NoWarnings silent;
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
  library->impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<AskingKernel>(*slot)));
  return *slot;
}

c10::OperatorHandle find_operator(const std::string& name) {
  const size_t dot = name.find('.', name.find("::") == std::string::npos ? 0 : name.find("::"));
  const c10::OperatorName wanted(name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1));
  const auto op = c10::Dispatcher::singleton().findSchema(wanted);
  if (!op) throw KernelError(fmt::format("compile_operators: there is no operator {}", name));
  if (!is_compilable(*op)) {
    throw KernelError(fmt::format(
        "compile_operators: no kernel is made of {}: {}; compilable_operators() lists what they are made of", name,
        why_no_kernel(Target(TargetKind::kOperator, op->schema()))));
  }
  if (is_made_of_others(*op)) {
    throw KernelError(fmt::format("compile_operators: libtorch makes {} of other operators; name those", name));
  }
  return *op;
}

}  // namespace

class CompiledOperators::State {
 public:
  explicit State(std::shared_ptr<OperatorKernels> kernels) : kernels_(std::move(kernels)) {}
  ~State() {
    const std::lock_guard lock(slots_mutex);
    for (Slot* slot : slots_) slot->remove(kernels_);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void add(const std::vector<c10::OperatorHandle>& operators, c10::DispatchKey key) {
    const std::lock_guard lock(slots_mutex);
    for (const c10::OperatorHandle& op : operators) {
      Slot& slot = slot_of(op, key);
      if (std::ranges::find(slots_, &slot) != slots_.end()) continue;  // named twice
      // Another device may have nothing else to run, or only copies to the host and back.
      slot.add({kernels_, key == c10::DispatchKey::CPU});
      slots_.push_back(&slot);
    }
  }
  const OperatorKernels& kernels() const { return *kernels_; }

 private:
  const std::shared_ptr<OperatorKernels> kernels_;
  std::vector<Slot*> slots_;
};

CompiledOperators::CompiledOperators(std::unique_ptr<State> state) : state_(std::move(state)) {}
CompiledOperators::CompiledOperators(CompiledOperators&&) noexcept = default;
CompiledOperators& CompiledOperators::operator=(CompiledOperators&&) noexcept = default;
CompiledOperators::~CompiledOperators() = default;

std::vector<OperatorKernels::Report> CompiledOperators::report() const { return state_->kernels().report(); }
KernelCache& CompiledOperators::cache() const { return state_->kernels().cache(); }

CompiledOperators compile_operators(const std::vector<std::string>& operators, c10::DispatchKey key,
                                    const CompileOperatorsOptions& options) {
  if (key != c10::DispatchKey::CPU && key != c10::DispatchKey::PrivateUse1) {
    throw KernelError(fmt::format(
        "compile_operators: kernels run on the host's memory: give CPU or PrivateUse1, not {}", c10::toString(key)));
  }
  std::vector<c10::OperatorHandle> handles;
  for (const std::string& name : operators) handles.push_back(find_operator(name));
  auto kernels = std::make_shared<OperatorKernels>(options.cache ? options.cache : KernelCache::shared(),
                                                   options.kernels, options.measure);
  auto state = std::make_unique<CompiledOperators::State>(std::move(kernels));
  state->add(handles, key);
  return CompiledOperators(std::move(state));
}

std::vector<std::string> compilable_operators() {
  std::vector<std::string> names;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    std::string text = name_of(name);
    if (!text.starts_with("aten::")) continue;
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (op && is_compilable(*op) && !is_made_of_others(*op)) names.push_back(std::move(text));
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace shadowgraph
