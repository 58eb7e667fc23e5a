// Says who has a shape rule, and where it was registered. Internal to core/; users register theirs with register_rule (shadowgraph/shape_rules.h).
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <source_location>
#include <string>
#include <unordered_map>
#include <vector>

#include "shadowgraph/shape_rules.h"

namespace shadowgraph {

using internal::ShapeRule;

class RuleRegistry {
 public:
  // The process-wide registry, with the built-in rules of this folder.
  static RuleRegistry& global();

  template <class Return, class... Args>
  void add(const std::string& operator_name, Return (*function)(Args...),
           std::source_location place = std::source_location::current()) {
    insert(operator_name, ShapeRule::of(function), place);
  }
  template <class Return, class... Args>
  void add_composite(const std::string& operator_name, Return (*function)(Args...),
                     std::source_location place = std::source_location::current()) {
    insert_composite(operator_name, ShapeRule::of(function), place);
  }
  void insert(const std::string& operator_name, ShapeRule rule,
              std::source_location place = std::source_location::current()) {
    insert_into(rules_, operator_name, std::move(rule), place);
  }
  void insert_composite(const std::string& operator_name, ShapeRule rule,
                        std::source_location place = std::source_location::current()) {
    insert_into(composites_, operator_name, std::move(rule), place);
  }

  // nullptr if there is none.
  std::shared_ptr<const ShapeRule> find(const std::string& operator_name) const {
    return find_in(rules_, operator_name);
  }
  std::shared_ptr<const ShapeRule> find_composite(const std::string& operator_name) const {
    return find_in(composites_, operator_name);
  }
  // Returns where a rule was registered: line 0 if there is none, or if a user did it.
  std::source_location place(const std::string& operator_name) const { return place_in(rules_, operator_name); }
  std::source_location place_of_composite(const std::string& operator_name) const {
    return place_in(composites_, operator_name);
  }
  std::vector<std::string> names() const;
  // What register_devices said of it; nullptr: nothing.
  std::shared_ptr<const OperatorDevices> devices(const std::string& operator_name) const;
  void set_devices(const std::string& operator_name, OperatorDevices devices);
  // Changes whenever a rule is added; facts derived from the registry are stale then.
  static uint64_t generation() { return generation_.load(std::memory_order_acquire); }

 private:
  struct Entry {
    std::shared_ptr<const ShapeRule> rule;
    std::source_location place;
  };
  using Table = std::unordered_map<std::string, Entry>;
  void insert_into(Table& table, const std::string& operator_name, ShapeRule rule, std::source_location place);
  std::shared_ptr<const ShapeRule> find_in(const Table& table, const std::string& operator_name) const;
  std::source_location place_in(const Table& table, const std::string& operator_name) const;

  mutable std::mutex mutex_;
  Table rules_;
  Table composites_;
  std::unordered_map<std::string, std::shared_ptr<const OperatorDevices>> devices_;
  static std::atomic<uint64_t> generation_;  // one registry, one count
};

// Throws Error unless `devices` fits the operator.
void check_devices(const OperatorDevices& devices, const c10::FunctionSchema& schema);
// Says whether a binding to another language has a fake kernel of it.
bool has_fake_kernel(const std::string& operator_name);

}  // namespace shadowgraph
