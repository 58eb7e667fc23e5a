#include "core/rules/registry.h"

#include <algorithm>

#include "core/rules/families.h"

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

void internal::add_rule(const std::string& operator_name, ShapeRule rule) {
  RuleRegistry::global().insert(operator_name, std::move(rule), std::source_location());
}

void internal::add_composite_rule(const std::string& operator_name, ShapeRule rule) {
  RuleRegistry::global().insert_composite(operator_name, std::move(rule), std::source_location());
}

std::vector<std::string> operators_with_rule() { return RuleRegistry::global().names(); }

}  // namespace shadowgraph
