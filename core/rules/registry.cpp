#include "core/rules/registry.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>

#include "core/rules/families.h"
#include "ir/operators/operator_name.h"
#include "shadowgraph/error.h"

namespace shadowgraph {

std::atomic<uint64_t> RuleRegistry::generation_{0};

RuleRegistry& RuleRegistry::global() {
  static RuleRegistry* registry = [] {
    auto* fresh = new RuleRegistry;  // never destroyed: fake tensors may outlive static destruction
    rules::register_all(*fresh);
    return fresh;
  }();
  return *registry;
}

void RuleRegistry::insert_into(Table& table, const std::string& operator_name, ShapeRule rule,
                               std::source_location place) {
  const std::lock_guard lock(mutex_);
  table[operator_name] = {std::make_shared<const ShapeRule>(std::move(rule)), place};
  generation_.fetch_add(1, std::memory_order_release);
}

std::shared_ptr<const ShapeRule> RuleRegistry::find_in(const Table& table, const std::string& operator_name) const {
  const std::lock_guard lock(mutex_);
  const auto found = table.find(operator_name);
  return found == table.end() ? nullptr : found->second.rule;
}

std::source_location RuleRegistry::place_in(const Table& table, const std::string& operator_name) const {
  const std::lock_guard lock(mutex_);
  const auto found = table.find(operator_name);
  return found == table.end() ? std::source_location() : found->second.place;
}

std::vector<std::string> RuleRegistry::names() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [name, rule] : rules_) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

std::shared_ptr<const OperatorDevices> RuleRegistry::devices(const std::string& operator_name) const {
  const std::lock_guard lock(mutex_);
  const auto found = devices_.find(operator_name);
  return found == devices_.end() ? nullptr : found->second;
}

void RuleRegistry::set_devices(const std::string& operator_name, OperatorDevices devices) {
  const std::lock_guard lock(mutex_);
  devices_[operator_name] = std::make_shared<const OperatorDevices>(std::move(devices));
  generation_.fetch_add(1, std::memory_order_release);
}

void check_devices(const OperatorDevices& devices, const c10::FunctionSchema& schema) {
  const auto refuse = [&](const std::string& why) {
    throw Error("register_devices(\"" + toString(schema.operator_name()) + "\"): " + why + ": " + toString(schema));
  };
  if (!devices.results.empty() && devices.results.size() != schema.returns().size()) {
    refuse(c10::str("names ", devices.results.size(), " results, and the operator has ", schema.returns().size()));
  }
  for (const ResultDevice& result : devices.results) {
    const auto* name = std::get_if<std::string>(&result);
    if (name == nullptr) continue;
    const auto position = schema.argumentIndexWithName(*name);
    if (!position) refuse("a result is where '" + *name + "' is, and no argument has this name");
    const std::string type = schema.arguments()[static_cast<size_t>(*position)].type()->repr_str();
    if (type.find("Tensor") == std::string::npos && type.find("Device") == std::string::npos) {
      refuse("a result is where '" + *name + "' is, which is neither a tensor nor a device");
    }
  }
}

void register_devices(const std::string& operator_name, OperatorDevices devices) {
  const size_t space = operator_name.find("::");
  if (space == std::string::npos || space == 0 || space + 2 == operator_name.size()) {
    throw Error("register_devices: '" + operator_name +
                "' is no operator's name, such as \"my::op\" or \"my::op.out\"");
  }
  if (namespace_of(operator_name) == "aten") {
    throw Error("register_devices: the devices of libtorch's own operators (" + operator_name + ") are known");
  }
  const auto op = c10::Dispatcher::singleton().findOp(
      {std::string(without_overload(operator_name)), std::string(overload_of(operator_name))});
  if (op && op->hasSchema()) check_devices(devices, op->schema());
  RuleRegistry::global().set_devices(operator_name, std::move(devices));
}

namespace {
std::atomic<HasFakeKernel> fake_kernel_finder{nullptr};
}  // namespace

void set_fake_kernel_finder(HasFakeKernel finder) { fake_kernel_finder.store(finder, std::memory_order_release); }

bool has_fake_kernel(const std::string& operator_name) {
  const HasFakeKernel find = fake_kernel_finder.load(std::memory_order_acquire);
  return find != nullptr && find(operator_name);
}

void internal::add_rule(const std::string& operator_name, ShapeRule rule) {
  rule.sees_devices = true;
  RuleRegistry::global().insert(operator_name, std::move(rule), std::source_location());
}

void internal::add_composite_rule(const std::string& operator_name, ShapeRule rule) {
  RuleRegistry::global().insert_composite(operator_name, std::move(rule), std::source_location());
}

std::vector<std::string> operators_with_rule() { return RuleRegistry::global().names(); }

}  // namespace shadowgraph
