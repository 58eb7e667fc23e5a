#include "core/calls/functions.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <array>
#include <map>
#include <mutex>

#include "core/fake/known_contents.h"
#include "core/fake/process_groups.h"
#include "core/fake/tensors_in_value.h"
#include "ir/operators/operator_facts.h"
#include "shadowgraph/capture/functions.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/libtorch.h"

namespace shadowgraph {
namespace {

constexpr int64_t kCudaStateBytes = 16;  // seed and offset, ATen/cuda/CUDAGeneratorImpl.cpp

at::Tensor empty_state(c10::Device device) {
  return at::empty({random_state_bytes(device)}, at::TensorOptions().dtype(at::kByte).device(at::kCPU));
}

Target function(const char* schema) { return {TargetKind::kFunction, std::string(kRandomStateNamespace) + schema}; }

std::shared_ptr<const RegisteredFunction> registered(const Target& target, FunctionKernel rule, FunctionKernel kernel) {
  return std::make_shared<const RegisteredFunction>(
      RegisteredFunction{target.schema_text(), std::move(rule), std::move(kernel)});
}

}  // namespace

const Target& get_random_state(bool own) {
  static const std::array targets{function("::get_state(Device device) -> Tensor"),
                                  function("::get_state.generator(Generator generator) -> Tensor")};
  return targets[own];
}

const Target& exchange_random_state() {
  static const Target target = function("::exchange_state(Tensor state, Device device) -> Tensor");
  return target;
}

const Target& set_random_state(bool own) {
  static const std::array targets{function("::set_state(Tensor state, Device device) -> ()"),
                                  function("::set_state.generator(Tensor state, Generator generator) -> ()")};
  return targets[own];
}

const Target& seed_generator(bool own) {
  static const std::array targets{function("::seed(int seed, Device device) -> ()"),
                                  function("::seed.generator(int seed, Generator generator) -> ()")};
  return targets[own];
}

int64_t random_state_bytes(c10::Device device) {
  if (device.is_cuda()) return kCudaStateBytes;
  if (!device.is_cpu()) {
    throw Error("saving the random state of a generator on " + device.str() +
                " is not supported; only cpu and cuda are");
  }
  static const int64_t bytes = at::detail::getDefaultCPUGenerator().get_state().numel();
  return bytes;
}

at::Tensor state_of(at::Generator generator) {
  const RealCalls real;
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

at::Tensor exchange_state(at::Generator generator, const at::Tensor& state) {
  const RealCalls real;
  const std::lock_guard lock(generator.mutex());
  at::Tensor before = generator.get_state();
  generator.set_state(state);
  return before;
}

// The last argument of the functions is a generator, or the device of a default one.
static at::Generator generator_of(std::span<const c10::IValue> arguments) {
  const c10::IValue& last = arguments.back();
  return last.isGenerator() ? last.toGenerator() : at::globalContext().defaultGenerator(last.toDevice());
}

std::shared_ptr<const RegisteredFunction> random_state_function(const Target& target) {
  using Arguments = std::span<const c10::IValue>;
  constexpr auto new_state = [](Arguments a) {
    return results(empty_state(a.back().isGenerator() ? a.back().toGenerator().device() : a.back().toDevice()));
  };
  constexpr auto nothing = [](Arguments) { return std::vector<c10::IValue>(); };
  constexpr auto get = [](Arguments a) { return results(state_of(generator_of(a))); };
  constexpr auto exchange = [](Arguments a) { return results(exchange_state(generator_of(a), a[0].toTensor())); };
  constexpr auto set = [](Arguments a) {
    exchange_state(generator_of(a), a[0].toTensor());
    return std::vector<c10::IValue>();
  };
  constexpr auto seed = [](Arguments a) {
    at::Generator generator = generator_of(a);
    const std::lock_guard lock(generator.mutex());
    generator.set_current_seed(static_cast<uint64_t>(a[0].toInt()));
    return std::vector<c10::IValue>();
  };
  static const std::array functions = {
      registered(get_random_state(), new_state, get),           registered(get_random_state(true), new_state, get),
      registered(exchange_random_state(), new_state, exchange), registered(set_random_state(), nothing, set),
      registered(set_random_state(true), nothing, set),         registered(seed_generator(), nothing, seed),
      registered(seed_generator(true), nothing, seed),
  };
  for (const auto& function : functions) {
    if (function->schema_text == target.schema_text()) return function;
  }
  return nullptr;
}

namespace {

// "aten::add_" -> "aten__add_"
std::string flat_name(const std::string& qualified) {
  const size_t colons = qualified.find("::");
  return colons == qualified.npos ? qualified : std::string(qualified).replace(colons, 2, "__");
}

// The inverse of flat_name. A namespace may contain "__", so each split is tried.
std::optional<c10::OperatorHandle> operator_behind(const c10::FunctionSchema& schema) {
  const std::string prefix = std::string(kFunctionalCallNamespace) + "::";
  if (!schema.name().starts_with(prefix)) return std::nullopt;
  const std::string flat = schema.name().substr(prefix.size());
  for (size_t at = flat.find("__"); at != std::string::npos; at = flat.find("__", at + 1)) {
    const std::string name = flat.substr(0, at) + "::" + flat.substr(at + 2);
    if (auto op = c10::Dispatcher::singleton().findSchema({name, schema.overload_name()})) return op;
  }
  return std::nullopt;
}

// Returns whether the result at `position` is one of the written arguments; nullopt if it views one that is not
// written.
std::optional<bool> is_written_argument(const OperatorFacts& facts, size_t position) {
  bool found = false;
  for (const OperatorFacts::Alias& alias : facts.aliases) {
    if (alias.result != position) continue;
    if (std::find(facts.written.begin(), facts.written.end(), alias.argument) == facts.written.end()) {
      return std::nullopt;
    }
    found = true;
  }
  return found;
}

at::Tensor without_bits(at::Tensor tensor) {
  if (tensor.is_conj()) tensor = tensor.conj();
  return tensor.is_neg() ? at::_neg_view(tensor) : tensor;
}

// Returns the tensor without lazy bits: a storage is copied as stored.
c10::IValue stored(const c10::IValue& value) { return with_tensors(value, without_bits); }

// Moves operands onto copies of the written storages.
class Copies {
 public:
  void add(const c10::IValue& value) {
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      if (!tensor.defined()) return;
      const void* storage = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
      if (find(storage) == nullptr) copies_.emplace_back(storage, whole_copy(tensor));
    });
  }

  c10::IValue moved(const c10::IValue& value) const {
    return with_tensors(value, [this](const at::Tensor& tensor) { return moved(tensor); });
  }

 private:
  static at::Tensor whole_copy(const at::Tensor& tensor) {
    const at::Tensor plain = without_bits(tensor);
    const auto bytes = static_cast<int64_t>(plain.unsafeGetTensorImpl()->unsafe_storage().nbytes());
    const auto item = static_cast<int64_t>(plain.itemsize());
    if (bytes % item == 0) return at::as_strided(plain, {bytes / item}, {1}, 0).clone();
    // The storage may not be a whole number of elements, such as floats viewed as complex numbers.
    const at::Tensor first = at::as_strided(plain, {bytes < item ? 0 : 1}, {1}, 0).view(at::kByte);
    return at::as_strided(first, {bytes}, {1}, 0).clone();
  }

  static at::Tensor seen_as(const at::Tensor& flat, at::ScalarType dtype) {
    if (flat.scalar_type() == dtype) return flat;
    const auto bytes = static_cast<int64_t>(flat.nbytes());
    const int64_t rest = bytes % static_cast<int64_t>(c10::elementSize(dtype));
    return (rest == 0 ? flat : flat.view(at::kByte).narrow(0, 0, bytes - rest)).view(dtype);
  }

  const at::Tensor* find(const void* storage) const {
    const auto found = std::find_if(copies_.begin(), copies_.end(), [&](const auto& c) { return c.first == storage; });
    return found == copies_.end() ? nullptr : &found->second;
  }

  at::Tensor moved(const at::Tensor& tensor) const {
    const at::Tensor* copy = find(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
    if (copy == nullptr) return tensor;
    const at::Tensor flat = seen_as(*copy, tensor.scalar_type());
    at::Tensor result = at::as_strided(flat, tensor.sizes(), tensor.strides(), tensor.storage_offset());
    if (tensor.is_neg()) result = at::_neg_view(result);
    return tensor.is_conj() ? result.conj() : result;
  }

  std::vector<std::pair<const void*, at::Tensor>> copies_;  // by storage; few
};

}  // namespace

std::optional<Target> functional_call_of(const Target& op) {
  if (op.kind() != TargetKind::kOperator) return std::nullopt;
  const OperatorFacts& facts = op.facts();
  if (facts.written.empty() || facts.unknown) return std::nullopt;
  const c10::FunctionSchema& schema = function_schema(op);
  std::vector<c10::Argument> arguments;
  for (const c10::Argument& a : schema.arguments()) {
    arguments.emplace_back(a.name(), a.type(), a.real_type(), a.N(), a.default_value(), a.kwarg_only());
  }
  std::vector<c10::Argument> returns;
  for (size_t r = 0; r < schema.returns().size(); ++r) {
    const auto written = is_written_argument(facts, r);
    if (!written) return std::nullopt;
    const c10::Argument& a = schema.returns()[r];
    if (!*written) returns.emplace_back(a.name(), a.type(), a.real_type(), a.N());
  }
  for (const uint16_t position : facts.written) {
    const c10::Argument& a = schema.arguments()[position];
    c10::TypePtr type = a.type();
    if (type->kind() == c10::TypeKind::OptionalType)
      type = static_cast<const c10::OptionalType&>(*type).getElementType();
    returns.emplace_back("", type);
  }
  return Target(TargetKind::kFunction,
                c10::FunctionSchema(std::string(kFunctionalCallNamespace) + "::" + flat_name(schema.name()),
                                    schema.overload_name(), std::move(arguments), std::move(returns)));
}

std::optional<Target> operator_of_functional_call(const Target& target) {
  if (target.kind() != TargetKind::kFunction) return std::nullopt;
  const auto op = operator_behind(function_schema(target));
  if (!op) return std::nullopt;
  Target original(TargetKind::kOperator, op->schema());
  const auto derived = functional_call_of(original);
  if (!derived || derived->schema_text() != target.schema_text()) return std::nullopt;
  return original;
}

std::shared_ptr<const RegisteredFunction> functional_call_function(const Target& target) {
  const auto original = operator_of_functional_call(target);
  if (!original) return nullptr;
  const auto op = find_operator(*original);
  const OperatorFacts facts = original->facts();
  std::vector<size_t> fresh;
  for (size_t r = 0; r < op->schema().returns().size(); ++r) {
    if (!is_written_argument(facts, r).value_or(true)) fresh.push_back(r);
  }
  const FunctionKernel kernel = [op = *op, facts, fresh](std::span<const c10::IValue> arguments) {
    const c10::impl::ExcludeDispatchKeyGuard below_autograd(c10::autograd_dispatch_keyset_with_ADInplaceOrView);
    Copies copies;
    for (const uint16_t position : facts.written) copies.add(arguments[position]);
    torch::jit::Stack stack;
    for (const c10::IValue& argument : arguments) stack.push_back(copies.moved(argument));
    std::vector<c10::IValue> written;
    for (const uint16_t position : facts.written) written.push_back(stack[position]);
    op.callBoxed(stack);
    std::vector<c10::IValue> results;
    for (const size_t r : fresh) results.push_back(stack[r]);
    for (const c10::IValue& value : written) results.push_back(stored(value));
    return results;
  };
  return registered(target, kernel, kernel);
}

namespace {

struct FunctionRegistry {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<const RegisteredFunction>> functions;

  static FunctionRegistry& global() {
    static auto* registry = new FunctionRegistry;  // runs on other threads may outlive static destruction
    return *registry;
  }
};

// Checks the process group, which collectives on real and on fake tensors need.
std::shared_ptr<const RegisteredFunction> process_group_function(const Target& target) {
  const FunctionKernel kernel = [](std::span<const c10::IValue> arguments) {
    check_process_group(arguments);
    return std::vector<c10::IValue>();
  };
  static const auto function = registered(process_group_target(), kernel, kernel);
  return function->schema_text == target.schema_text() ? function : nullptr;
}

}  // namespace

void register_function(const std::string& schema_text, FunctionKernel shape_rule, FunctionKernel kernel) {
  const Target target(TargetKind::kFunction, schema_text);
  if (!shape_rule) {
    throw Error("function " + target.name() +
                " needs a shape rule that returns its results for fake tensors; see shadowgraph/capture/replay.h");
  }
  auto function = registered(target, std::move(shape_rule), std::move(kernel));
  FunctionRegistry& registry = FunctionRegistry::global();
  const std::lock_guard lock(registry.mutex);
  registry.functions[target.name()] = std::move(function);
}

std::shared_ptr<const RegisteredFunction> find_function(const std::string& name) {
  FunctionRegistry& registry = FunctionRegistry::global();
  const std::lock_guard lock(registry.mutex);
  const auto found = registry.functions.find(name);
  return found == registry.functions.end() ? nullptr : found->second;
}

std::shared_ptr<const RegisteredFunction> find_function(const Target& target) {
  if (target.signature().name.starts_with(kFunctionalCallNamespace)) return functional_call_function(target);
  if (auto function = random_state_function(target)) return function;
  if (auto function = process_group_function(target)) return function;
  auto function = find_function(target.name());
  return function != nullptr && function->schema_text == target.schema_text() ? function : nullptr;
}

}  // namespace shadowgraph
