#include "shadowgraph/functions.h"

#include <map>
#include <mutex>

#include "core/calls/functional_call.h"
#include "core/calls/random_state.h"
#include "core/fake/process_groups.h"
#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

struct FunctionRegistry {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<const RegisteredFunction>> functions;

  static FunctionRegistry& global() {
    static auto* registry = new FunctionRegistry;  // runs on other threads may outlive static destruction
    return *registry;
  }
};

// Checks on real and fake tensors alike: no collective finds its way without the group.
std::shared_ptr<const RegisteredFunction> process_group_function(const Target& target) {
  const FunctionKernel kernel = [](std::span<const c10::IValue> arguments) {
    check_process_group(arguments);
    return std::vector<c10::IValue>();
  };
  static const auto function = std::make_shared<const RegisteredFunction>(
      RegisteredFunction{process_group_target().schema_text(), kernel, kernel});
  return function->schema_text == target.schema_text() ? function : nullptr;
}

}  // namespace

void register_function(const std::string& schema_text, FunctionKernel shape_rule, FunctionKernel kernel) {
  const Target target(TargetKind::kFunction, schema_text);
  if (!shape_rule) {
    throw Error("function " + target.name() +
                " needs a shape rule: what its results look like, given fake tensors; see shadowgraph/replay.h");
  }
  auto function = std::make_shared<const RegisteredFunction>(
      RegisteredFunction{target.schema_text(), std::move(shape_rule), std::move(kernel)});
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

std::vector<std::string> registered_functions() {
  FunctionRegistry& registry = FunctionRegistry::global();
  const std::lock_guard lock(registry.mutex);
  std::vector<std::string> names;
  for (const auto& [name, function] : registry.functions) names.push_back(name);
  return names;
}

}  // namespace shadowgraph
