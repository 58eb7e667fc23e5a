#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/TensorOptions.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>
#include <fmt/format.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <dlfcn.h>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/fake/tensors_in_value.h"
#include "ir/operators/operator_name.h"
#include "kernels/compiler/operator_table.h"
#include "kernels/replay/call_graph.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/libtorch.h"
#include "shadowgraph/kernels/c_kernel.h"
#include "shadowgraph/kernels/kernel.h"
#include "shadowgraph/kernels/program.h"

namespace shadowgraph {
namespace {

// A kernel that may handle a call. Thread-safe.
class EagerKernel {
 public:
  virtual ~EagerKernel() = default;
  // Runs the call, or leaves the stack unchanged. For kOriginal the original kernel runs next, and `original` is
  // notified when it has ended. For other outcomes except kRan the next kernel is tried.
  virtual OperatorKernels::Outcome call(const c10::OperatorHandle& op, torch::jit::Stack& stack,
                                        OperatorKernels::OriginalCall& original) = 0;
};

// The kernels for one operator and device. The boxed kernel that dispatches to them stays registered permanently:
// removing it while another thread runs it would free the running object. Without kernels it calls the original.
class Slot {
 public:
  using Kernels = std::vector<std::shared_ptr<EagerKernel>>;  // the most recent last

  explicit Slot(c10::SafeKernelFunction original) : original_(std::move(original)) {}

  void call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) const {
    if (occupied_.load(std::memory_order_acquire) && !is_calling_on_meta()) {
      const std::shared_ptr<const Kernels> active = active_.load(std::memory_order_acquire);
      for (auto kernel = active->rbegin(); kernel != active->rend(); ++kernel) {
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
  void add(const std::shared_ptr<EagerKernel>& kernel) {
    Kernels active = *active_.load();
    active.push_back(kernel);
    set(std::move(active));
  }
  void remove(const std::shared_ptr<EagerKernel>& kernel) {
    Kernels active = *active_.load();
    std::erase(active, kernel);
    set(std::move(active));
  }

 private:
  void set(Kernels active) {
    const bool occupied = !active.empty();
    if (!occupied) occupied_.store(false, std::memory_order_release);
    active_.store(std::make_shared<const Kernels>(std::move(active)), std::memory_order_release);
    if (occupied) occupied_.store(true, std::memory_order_release);
  }

  const c10::SafeKernelFunction original_;
  std::atomic<bool> occupied_ = false;
  std::atomic<std::shared_ptr<const Kernels>> active_ = std::make_shared<const Kernels>();
};

struct DispatchKernel final : c10::OperatorKernel {
  explicit DispatchKernel(Slot& slot) : slot(slot) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    slot.call(op, keys, stack);
  }
  Slot& slot;
};

// Suppresses libtorch's warning about overriding a kernel, which is intended here.
struct NoWarnings final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

std::mutex slots_mutex;

// Creates the slot of an operator and device once per process. Call under slots_mutex.
Slot& slot_of(const c10::OperatorHandle& op, c10::DispatchKey key) {
  static auto& slots = *new std::map<std::pair<std::string, c10::DispatchKey>, Slot*>();
  const std::string name = toString(op.operator_name());
  Slot*& slot = slots[{name, key}];
  if (slot != nullptr) return *slot;
  slot = new Slot(op.getComputedKernelForDispatchKey(key));
  const std::string space(namespace_of(name));
  auto* const library = new torch::Library(torch::Library::IMPL, space, key, __FILE__, __LINE__);
  NoWarnings silent;
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
  library->impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<DispatchKernel>(*slot)));
  return *slot;
}

// Dispatches calls of some operators to a kernel for its lifetime. Calls in progress at its end finish as they began.
template <class Kernel>
class KernelRegistration {
 public:
  KernelRegistration(std::shared_ptr<Kernel> kernel, const std::vector<c10::OperatorHandle>& operators,
                     c10::DispatchKey key)
      : kernel_(std::move(kernel)) {
    const std::lock_guard lock(slots_mutex);
    for (const c10::OperatorHandle& op : operators) {
      Slot& slot = slot_of(op, key);
      if (std::ranges::find(slots_, &slot) != slots_.end()) continue;  // listed twice
      slot.add(kernel_);
      slots_.push_back(&slot);
    }
  }
  ~KernelRegistration() {
    const std::lock_guard lock(slots_mutex);
    for (Slot* slot : slots_) slot->remove(kernel_);
  }
  C10_DISABLE_COPY_AND_ASSIGN(KernelRegistration);
  const Kernel& kernel() const { return *kernel_; }

 private:
  const std::shared_ptr<Kernel> kernel_;
  std::vector<Slot*> slots_;
};

// Composite operators are decomposed above the device kernels, where autograd is; a device kernel would remove the
// gradient.
bool is_composite(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

bool is_compilable(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  if (name.starts_with("aten::_foreach_") || name.starts_with("aten::_fused_adam") ||
      name.starts_with("aten::_fused_sgd")) {
    return element_operator(op).has_value();
  }
  return find_kernel_row(toString(op.operator_name())) != nullptr;
}

// Runs calls of selected operators by compiled kernels.
class CompiledKernels final : public EagerKernel {
 public:
  CompiledKernels(std::shared_ptr<KernelCache> cache, const CompileOperatorsOptions& options, bool measures)
      : kernels(std::move(cache), options.kernels, options.measure), measures_(measures) {}
  OperatorKernels::Outcome call(const c10::OperatorHandle& op, torch::jit::Stack& stack,
                                OperatorKernels::OriginalCall& original) override {
    return kernels.call(op, stack, measures_ ? &original : nullptr);
  }

  OperatorKernels kernels;

 private:
  const bool measures_;
};

c10::OperatorHandle compilable_operator(const std::string& name) {
  const auto op = find_operator(name);
  if (!op) throw UnsupportedError(fmt::format("compile_operators: unknown operator {}", name));
  if (!is_compilable(*op)) {
    throw UnsupportedError(
        fmt::format("compile_operators: no kernel for {}: {}; see compilable_operators() for supported operators", name,
                    why_no_kernel(Target(TargetKind::kOperator, op->schema()))));
  }
  if (is_composite(*op)) {
    throw UnsupportedError(
        fmt::format("compile_operators: {} is a composite operator; give the operators that it calls", name));
  }
  return *op;
}

// A back end for host memory supports the CPU, and custom devices whose memory may be the host's.
void check_device(c10::DispatchKey key, const KernelBackend& backend) {
  const c10::DispatchKey own = c10::computeDispatchKey(std::nullopt, c10::kStrided, c10::Device(backend.device()));
  if (key == own || (backend.device() == c10::kCPU && key == c10::DispatchKey::PrivateUse1)) return;
  std::string wanted = c10::toString(key);
  std::ranges::transform(wanted, wanted.begin(), [](unsigned char c) { return std::tolower(c); });
  throw UnsupportedError(fmt::format(
      "compile_operators: the back end compiles kernels for {}, not for {}; set CompileOperatorsOptions::cache to one "
      "for that device (KernelBackend::device)",
      c10::DeviceTypeName(backend.device(), /*lower_case=*/true), wanted));
}

}  // namespace

class CompiledOperators::State : public KernelRegistration<CompiledKernels> {
  using KernelRegistration::KernelRegistration;
};

CompiledOperators::CompiledOperators(std::unique_ptr<State> state) : state_(std::move(state)) {}
CompiledOperators::CompiledOperators(CompiledOperators&&) noexcept = default;
CompiledOperators& CompiledOperators::operator=(CompiledOperators&&) noexcept = default;
CompiledOperators::~CompiledOperators() = default;

std::vector<OperatorKernels::Report> CompiledOperators::report() const { return state_->kernel().kernels.report(); }
KernelCache& CompiledOperators::cache() const { return state_->kernel().kernels.cache(); }

CompiledOperators compile_operators(const std::vector<std::string>& operators, c10::DispatchKey key,
                                    const CompileOperatorsOptions& options) {
  const auto& cache = options.cache ? options.cache : KernelCache::shared();
  check_device(key, cache->backend());
  std::vector<c10::OperatorHandle> handles;
  for (const std::string& name : operators) handles.push_back(compilable_operator(name));
  // On other devices the original may not exist, or only copy to the host and back.
  auto kernels = std::make_shared<CompiledKernels>(cache, options, key == c10::DispatchKey::CPU);
  return CompiledOperators(std::make_unique<CompiledOperators::State>(std::move(kernels), handles, key));
}

namespace {

// Calls f(name, operator) for all ATen operators.
template <class F>
void for_each_aten_operator(F&& f) {
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!name.name.starts_with("aten::")) continue;
    if (const auto op = c10::Dispatcher::singleton().findSchema(name)) f(toString(name), *op);
  }
}

}  // namespace

std::vector<std::string> compilable_operators() {
  std::vector<std::string> names;
  for_each_aten_operator([&](const std::string& name, const c10::OperatorHandle& op) {
    if (is_compilable(op) && !is_composite(op)) names.push_back(name);
  });
  std::ranges::sort(names);
  return names;
}

std::map<std::string, std::string> operators_without_kernels() {
  std::map<std::string, std::string> reasons;
  for_each_aten_operator([&](const std::string& name, const c10::OperatorHandle& op) {
    const bool compilable = is_compilable(op);
    if (compilable && !is_composite(op)) return;
    const std::string_view why = why_no_kernel(Target(TargetKind::kOperator, op.schema()));
    reasons[name] = compilable || (why == kNoRow && is_composite(op)) ? "it is a composite operator" : std::string(why);
  });
  return reasons;
}

namespace {

struct ExpectedResult {
  bool tensor = false;  // otherwise a number or similar, which is not checked, or an undefined tensor
  int argument = -1;    // the position of the argument that it aliases; -1: a new tensor
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<int64_t> sizes, strides;
};
using ExpectedResults = std::shared_ptr<const std::vector<ExpectedResult>>;

bool is_strided(const c10::IValue& argument) {
  return !argument.isTensor() || !argument.toTensor().defined() || argument.toTensor().layout() == c10::kStrided;
}

// Maximum number of cached calls per operator; beyond that the cache is cleared.
constexpr size_t kMaxCachedCalls = 4096;

// Everything about a call except contents; empty for arguments without a short text.
std::string text_of(std::span<const c10::IValue> arguments) {
  std::string text = c10::str(c10::get_default_dtype_as_scalartype());
  for (const c10::IValue& argument : arguments) {
    if (argument.isTensorList() || argument.isOptionalTensorList() || argument.isGenerator()) return "";
    if (!argument.isTensor()) {
      text += c10::str("|", argument.tagKind(), " ", argument);
    } else if (argument.toTensor().defined()) {
      const at::Tensor& tensor = argument.toTensor();
      text += c10::str("|", tensor.key_set(), tensor.scalar_type(), tensor.sizes(), tensor.strides(),
                       tensor.unsafeGetTensorImpl()->is_wrapped_number());
    } else {
      text += "|-";
    }
  }
  return text;
}

ExpectedResults compute_expected(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments) {
  std::vector<std::pair<at::Tensor, at::Tensor>> metas;  // tensors and their meta tensors, each once
  const auto meta_of = [&metas](const at::Tensor& tensor) {
    const auto found = std::ranges::find_if(metas, [&](const auto& known) { return known.first.is_same(tensor); });
    return found != metas.end() ? found->second : metas.emplace_back(tensor, meta_like(tensor)).second;
  };
  torch::jit::Stack stack;
  bool any_tensor = false;
  for (const c10::IValue& argument : arguments) {
    if (!is_strided(argument)) return nullptr;
    any_tensor = any_tensor || argument.isTensor() || argument.isTensorList() || argument.isOptionalTensorList();
    stack.push_back(argument.isDevice() ? c10::IValue(c10::Device(c10::kMeta)) : with_tensors(argument, meta_of));
  }
  // A factory without a device would allocate real memory, and draw from the generator.
  const auto device = op.schema().argumentIndexWithName("device");
  if (device && !any_tensor) stack[static_cast<size_t>(*device)] = c10::Device(c10::kMeta);
  const torch::jit::Stack given = stack;
  try {
    call_on_meta(op, stack);
  } catch (const c10::NotImplementedError&) {
    return nullptr;
  } catch (const c10::Error&) {
    throw;
  } catch (const std::exception&) {  // data-dependent according to the shape rule, or a Meta kernel in Python
    return nullptr;
  }
  std::vector<ExpectedResult> expected;
  for (const c10::IValue& result : stack) {
    ExpectedResult& made = expected.emplace_back();
    if (!result.isTensor() || !result.toTensor().defined()) continue;
    const at::Tensor& tensor = result.toTensor();
    const auto same = std::ranges::find_if(
        given, [&](const c10::IValue& argument) { return argument.isTensor() && argument.toTensor().is_same(tensor); });
    made = {.tensor = true,
            .argument = same == given.end() ? -1 : static_cast<int>(same - given.begin()),
            .dtype = tensor.scalar_type(),
            .sizes = tensor.sizes().vec(),
            .strides = tensor.strides().vec()};
  }
  return std::make_shared<const std::vector<ExpectedResult>>(std::move(expected));
}

// Arguments for the C function. Lists of sizes refer to the tensors.
class CArguments {
 public:
  // Returns false for unsupported arguments.
  bool add(const c10::IValue& argument, bool takes_tensor) {
    if (argument.isTensor() || (takes_tensor && argument.isNone())) {
      if (argument.isTensor() && argument.toTensor().defined()) return add_tensor(argument.toTensor(), inputs);
      inputs.push_back({.data = nullptr, .dtype = 0, .dims = -1, .sizes = nullptr, .strides = nullptr});
      return true;
    }
    if (argument.isNone()) {
      numbers.push_back(std::numeric_limits<double>::quiet_NaN());
    } else if (argument.isInt()) {
      numbers.push_back(static_cast<double>(argument.toInt()));
    } else if (argument.isDouble()) {
      numbers.push_back(argument.toDouble());
    } else if (argument.isBool()) {
      numbers.push_back(argument.toBool() ? 1 : 0);
    } else if (argument.isIntList()) {
      for (const int64_t i : argument.toIntVector()) numbers.push_back(static_cast<double>(i));
    } else if (argument.isDoubleList()) {
      for (const double d : argument.toDoubleVector()) numbers.push_back(d);
    } else if (argument.isBoolList()) {
      for (const bool flag : argument.toBoolList()) numbers.push_back(flag ? 1 : 0);
    } else {
      return false;
    }
    return true;
  }

  static bool add_tensor(const at::Tensor& tensor, std::vector<shadowgraph_tensor>& to) {
    if (tensor.layout() != c10::kStrided || tensor.is_conj() || tensor.is_neg()) return false;
    to.push_back({.data = const_cast<void*>(tensor.const_data_ptr()),
                  .dtype = static_cast<int32_t>(tensor.scalar_type()),
                  .dims = static_cast<int32_t>(tensor.dim()),
                  .sizes = tensor.sizes().data(),
                  .strides = tensor.strides().data()});
    return true;
  }

  std::vector<shadowgraph_tensor> inputs, outputs;
  std::vector<double> numbers;
};

bool is_of_tensors(const c10::Argument& formal) {
  c10::TypePtr type = formal.type();
  if (type->kind() == c10::TypeKind::OptionalType) type = type->expectRef<c10::OptionalType>().getElementType();
  return type->kind() == c10::TypeKind::TensorType;
}

// Caches expected results by the geometry and numbers of calls. Thread-safe.
class KnownResults {
 public:
  // By shadowgraph's shape rule or libtorch's Meta kernel. nullptr if the results are data-dependent, or for arguments
  // that cannot be converted to meta. Throws c10::Error for calls that the operator rejects.
  ExpectedResults of(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments) {
    const std::string text = text_of(arguments);
    if (text.empty()) return compute_expected(op, arguments);
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = known_.find(text); found != known_.end()) return found->second;
    }
    ExpectedResults made = compute_expected(op, arguments);
    const std::lock_guard lock(mutex_);
    if (known_.size() >= kMaxCachedCalls) known_.clear();
    return known_.try_emplace(text, std::move(made)).first->second;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<std::string, ExpectedResults> known_;
};

KernelOverride::Results call_library(shadowgraph_kernel function, KnownResults& known, const c10::OperatorHandle& op,
                                     std::span<const c10::IValue> arguments) {
  const ExpectedResults expected = known.of(op, arguments);
  if (expected == nullptr) return std::nullopt;
  CArguments given;
  std::optional<c10::Device> device;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& argument = arguments[i];
    if (!given.add(argument, is_of_tensors(op.schema().arguments()[i]))) return std::nullopt;
    if (argument.isTensor() && argument.toTensor().defined() && !device) device = argument.toTensor().device();
    if (argument.isDevice()) device = argument.toDevice();
  }
  std::vector<c10::IValue> results;
  for (const ExpectedResult& like : *expected) {
    if (!like.tensor) return std::nullopt;
    if (like.argument >= 0) {
      results.push_back(arguments[static_cast<size_t>(like.argument)]);
      // Counts as written, as with the operator's own kernel.
      static_cast<void>(results.back().toTensor().mutable_data_ptr());
    } else {
      results.emplace_back(at::empty_strided(like.sizes, like.strides,
                                             at::TensorOptions().dtype(like.dtype).device(device.value_or(c10::kCPU))));
    }
    if (!CArguments::add_tensor(results.back().toTensor(), given.outputs)) return std::nullopt;
  }
  const int outcome = function(given.inputs.data(), static_cast<int32_t>(given.inputs.size()), given.outputs.data(),
                               static_cast<int32_t>(given.outputs.size()), given.numbers.data(),
                               static_cast<int32_t>(given.numbers.size()));
  return outcome == 0 ? KernelOverride::Results(std::move(results)) : std::nullopt;
}

}  // namespace

KernelOverride library_kernel(const std::string& op, const std::string& library, const std::string& symbol) {
  void* const handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw UnsupportedError(fmt::format("cannot load '{}': {}", library, ::dlerror()));
  void* const found = ::dlsym(handle, symbol.c_str());
  if (found == nullptr) {
    ::dlclose(handle);
    throw UnsupportedError(fmt::format("'{}' does not define the function {}", library, symbol));
  }
  const auto function = reinterpret_cast<shadowgraph_kernel>(found);
  return {.op = op,
          .run = [function, known = std::make_shared<KnownResults>()](const c10::OperatorHandle& handle_of_op,
                                                                      std::span<const c10::IValue> arguments) {
            return call_library(function, *known, handle_of_op, arguments);
          }};
}

namespace {

class UserKernelCalls final : public EagerKernel {
 public:
  UserKernelCalls(KernelOverride kernel, c10::DispatchKey key) : kernel_(std::move(kernel)), key_(key) {}

  OperatorKernels::Outcome call(const c10::OperatorHandle& op, torch::jit::Stack& stack,
                                OperatorKernels::OriginalCall& /*original*/) override {
    using Outcome = OperatorKernels::Outcome;
    if (std::ranges::find(under_way, this) != under_way.end()) return Outcome::kUnsupported;
    const size_t count = op.schema().arguments().size();
    const std::span<const c10::IValue> arguments(stack.data() + stack.size() - count, count);
    ExpectedResults expected;
    try {
      expected = known_.of(op, arguments);
    } catch (const c10::Error&) {  // the operator itself reports what is wrong with the call
      ++passed_on_;
      return Outcome::kUnsupported;
    }
    KernelOverride::Results results;
    {
      under_way.push_back(this);
      const auto leave = c10::make_scope_exit([] { under_way.pop_back(); });
      results = kernel_.run(op, arguments);
    }
    if (!results) {
      ++passed_on_;
      return Outcome::kUnsupported;
    }
    check(op, arguments, expected.get(), *results);
    ++(expected ? ran_ : unchecked_);
    stack.erase(stack.end() - static_cast<std::ptrdiff_t>(count), stack.end());
    std::ranges::move(*results, std::back_inserter(stack));
    return Outcome::kRan;
  }

  ScopedKernelOverride::Report report() const {
    return {.op = kernel_.op, .ran = ran_ + unchecked_, .declined = passed_on_, .unchecked = unchecked_};
  }

 private:
  void check(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments,
             const std::vector<ExpectedResult>* expected, std::vector<c10::IValue>& results) const {
    const size_t wanted = op.schema().returns().size();
    if (results.size() != wanted)
      refuse(fmt::format("{} results, but the operator returns {}", results.size(), wanted));
    for (size_t i = 0; i < wanted; ++i) {
      const bool is_tensor = results[i].isTensor() && results[i].toTensor().defined();
      if (is_tensor && !results[i].toTensor().key_set().has_backend(c10::toBackendComponent(key_))) {
        refuse(fmt::format("result {} on {}, but the operator runs on {}", i, results[i].toTensor().device().str(),
                           c10::toString(key_)));
      }
      if (expected == nullptr) continue;
      const ExpectedResult& like = (*expected)[i];
      if (like.argument >= 0) {
        const at::Tensor& argument = arguments[static_cast<size_t>(like.argument)].toTensor();
        if (!is_tensor || !results[i].toTensor().is_same(argument)) {
          refuse(fmt::format("a result {} that is not the argument written by the operator", i));
        }
        continue;
      }
      if (like.tensor != is_tensor) refuse(fmt::format("result {} that is {}a tensor", i, is_tensor ? "" : "not "));
      if (!like.tensor) continue;
      const at::Tensor& tensor = results[i].toTensor();
      if (tensor.scalar_type() != like.dtype || tensor.sizes() != c10::IntArrayRef(like.sizes)) {
        refuse(c10::str("result ", i, " of ", tensor.scalar_type(), tensor.sizes(), ", but the operator returns ",
                        like.dtype, c10::IntArrayRef(like.sizes)));
      }
    }
  }

  [[noreturn]] void refuse(const std::string& what) const {
    throw UnsupportedError("the kernel for " + kernel_.op + " returned " + what);
  }

  static thread_local std::vector<const UserKernelCalls*> under_way;

  const KernelOverride kernel_;
  const c10::DispatchKey key_;
  KnownResults known_;
  std::atomic<int64_t> ran_ = 0, unchecked_ = 0, passed_on_ = 0;
};

thread_local std::vector<const UserKernelCalls*> UserKernelCalls::under_way;

}  // namespace

class ScopedKernelOverride::State : public KernelRegistration<UserKernelCalls> {
  using KernelRegistration::KernelRegistration;
};

ScopedKernelOverride::ScopedKernelOverride(std::unique_ptr<State> state) : state_(std::move(state)) {}
ScopedKernelOverride::ScopedKernelOverride(ScopedKernelOverride&&) noexcept = default;
ScopedKernelOverride& ScopedKernelOverride::operator=(ScopedKernelOverride&&) noexcept = default;
ScopedKernelOverride::~ScopedKernelOverride() = default;
ScopedKernelOverride::Report ScopedKernelOverride::report() const { return state_->kernel().report(); }

ScopedKernelOverride override_kernel(KernelOverride kernel, c10::DispatchKey key) {
  const auto op = find_operator(kernel.op);
  if (!op) throw UnsupportedError("override_kernel: unknown operator " + kernel.op);
  if (is_composite(*op)) {
    throw UnsupportedError("override_kernel: " + kernel.op +
                           " is a composite operator; give kernels for the operators that it calls");
  }
  if (key == c10::DispatchKey::Meta)
    throw UnsupportedError("override_kernel: kernels for meta tensors are not supported, since they have no data");
  if (c10::toBackendComponent(key) == c10::BackendComponent::InvalidBit || !op->hasComputedKernelForDispatchKey(key)) {
    throw UnsupportedError(
        fmt::format("override_kernel: {} has no kernel for {} to fall back to", kernel.op, c10::toString(key)));
  }
  auto calls = std::make_shared<UserKernelCalls>(std::move(kernel), key);
  return ScopedKernelOverride(
      std::make_unique<ScopedKernelOverride::State>(std::move(calls), std::vector<c10::OperatorHandle>{*op}, key));
}

}  // namespace shadowgraph
