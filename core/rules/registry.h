// Shape rules: what an operator's outputs look like, for operators whose C++ Meta kernel is missing or wrong.
//
// A rule is a plain function with the operator's C++ signature (SymInt arguments as int64_t and IntArrayRef). It gets
// meta tensors and returns meta tensors with the sizes, dtype, strides and aliasing that eager gives on the pretended
// device; it must not read data. In-place operators return their (possibly resized) self.
//
//     at::Tensor my_op(const at::Tensor& x, int64_t k) { return rules::empty({x.size(0), k}, x); }
//     shadowgraph::register_rule("my::op", &my_op);
//
// Rules are looked up before composite decompositions and Meta kernels, at every depth. Registering replaces an earlier
// rule, built-in ones included; it is safe at any time, but a capture that runs meanwhile on another thread may still
// see the old rule. Throws Error if `function` does not fit the operator's schema (checked when the operator is known).
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/op_registration/infer_schema.h>

#include <memory>
#include <mutex>
#include <string>
#include <typeinfo>
#include <unordered_map>

namespace shadowgraph {

struct ShapeRule {
  c10::KernelFunction kernel;
  std::unique_ptr<c10::FunctionSchema>
      inferred_schema;  // types of the C++ function, to be checked against the operator
  const std::type_info* function_type = nullptr;
};

class RuleRegistry {
 public:
  // The process-wide registry, with the built-in rules of core/rules.
  static RuleRegistry& global();

  template <class Return, class... Args>
  void add(const std::string& operator_name, Return (*function)(Args...)) {
    insert(rules_, operator_name, function);
  }
  // A rule for a composite operator, run in place of its decomposition, above autograd, on fake tensors that pretend to
  // be on a CUDA device: for composites that pick a kernel by asking the device (attention, fused recurrent layers).
  template <class Return, class... Args>
  void add_composite(const std::string& operator_name, Return (*function)(Args...)) {
    insert(composites_, operator_name, function);
  }

  std::shared_ptr<const ShapeRule> find(const std::string& operator_name) const {
    return find_in(rules_, operator_name);
  }
  std::shared_ptr<const ShapeRule> find_composite(const std::string& operator_name) const {
    return find_in(composites_, operator_name);
  }
  // Names of all operators with a rule, sorted.
  std::vector<std::string> names() const;
  // Changes whenever a rule is added; facts derived from the registry are stale then.
  static uint64_t generation() { return generation_.load(std::memory_order_acquire); }

 private:
  using Table = std::unordered_map<std::string, std::shared_ptr<const ShapeRule>>;

  template <class Function>
  void insert(Table& table, const std::string& operator_name, Function* function) {
    auto rule = std::make_shared<ShapeRule>();
    rule->kernel = c10::KernelFunction::makeFromUnboxedRuntimeFunction(function);
    rule->function_type = &typeid(Function);
    rule->inferred_schema = std::make_unique<c10::FunctionSchema>(c10::inferFunctionSchemaFlattenedReturns<Function>());
    insert(table, operator_name, std::move(rule));
  }
  void insert(Table& table, const std::string& operator_name, std::shared_ptr<const ShapeRule> rule);
  std::shared_ptr<const ShapeRule> find_in(const Table& table, const std::string& operator_name) const;

  mutable std::mutex mutex_;
  Table rules_;
  Table composites_;
  static std::atomic<uint64_t> generation_;  // one registry, one count
};

template <class Return, class... Args>
void register_rule(const std::string& operator_name, Return (*function)(Args...)) {
  RuleRegistry::global().add(operator_name, function);
}

}  // namespace shadowgraph
