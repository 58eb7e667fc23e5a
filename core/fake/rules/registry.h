// The registry of shape rules. Internal to core/; users call register_rule (shadowgraph/capture/shape_rules.h).
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/ScalarType.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <source_location>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "shadowgraph/capture/fake.h"
#include "shadowgraph/capture/shape_rules.h"

namespace shadowgraph {

using internal::ShapeRule;

class RuleRegistry {
 public:
  // The process-wide registry, including the built-in rules.
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
  // Adds a rule that takes only some of the operators' arguments, as the others do not affect the results: those named,
  // in the schema's order, or the first ones. Called boxed. Does nothing for operators that this libtorch does not have.
  template <class Return, class... Args>
  void add_partial(std::initializer_list<const char*> operators, Return (*function)(Args...),
                   std::initializer_list<const char*> arguments = {},
                   std::source_location place = std::source_location::current()) {
    for (const char* name : operators) insert_partial(name, ShapeRule::of(function), arguments, place);
  }
  // Does nothing if the operator does not exist in this libtorch version.
  void insert_boxed(const char* operator_name, c10::KernelFunction kernel, std::source_location place);

  // Returns nullptr if there is none.
  std::shared_ptr<const ShapeRule> find(const std::string& name) const { return entry_in(rules_, name).rule; }
  std::shared_ptr<const ShapeRule> find_composite(const std::string& operator_name) const {
    return entry_in(composites_, operator_name).rule;
  }
  // Returns where a rule was registered; line 0 if there is none or it is user-defined.
  std::source_location place(const std::string& operator_name) const { return entry_in(rules_, operator_name).place; }
  std::source_location place_of_composite(const std::string& name) const { return entry_in(composites_, name).place; }
  std::vector<std::string> names() const;
  // Returns the devices set by register_devices; nullptr if there are none.
  std::shared_ptr<const OperatorDevices> devices(const std::string& operator_name) const;
  void set_devices(const std::string& operator_name, OperatorDevices devices);
  // Incremented whenever a rule is added, which makes data derived from the registry stale.
  static uint64_t generation() { return generation_.load(std::memory_order_acquire); }

 private:
  struct Entry {
    std::shared_ptr<const ShapeRule> rule;
    std::source_location place;
  };
  using Table = std::unordered_map<std::string, Entry>;
  void insert_into(Table& table, const std::string& operator_name, ShapeRule rule, std::source_location place);
  void insert_partial(const char* operator_name, ShapeRule rule, std::initializer_list<const char*> arguments,
                      std::source_location place);
  Entry entry_in(const Table& table, const std::string& operator_name) const;

  mutable std::mutex mutex_;
  Table rules_;
  Table composites_;
  std::unordered_map<std::string, std::shared_ptr<const OperatorDevices>> devices_;
  static std::atomic<uint64_t> generation_;  // one registry, one count
};

// Throws Error unless `devices` matches the operator's schema.
void check_devices(const OperatorDevices& devices, const c10::FunctionSchema& schema);
// Returns whether a language binding has a fake kernel for the operator.
bool has_fake_kernel(const std::string& operator_name);

// ---- The built-in rules: one registration function per operator family and file

namespace rules {

using at::OptionalIntArrayRef;
using at::Scalar;
using at::ScalarType;
using at::Tensor;
using at::TensorList;
using c10::DimVector;
using c10::IntArrayRef;
using c10::MemoryFormat;
using OptionalDtype = std::optional<ScalarType>;
using OptionalLayout = std::optional<at::Layout>;
using OptionalDevice = std::optional<at::Device>;
using OptionalBool = std::optional<bool>;
using OptionalFormat = std::optional<MemoryFormat>;

using Registration = void(RuleRegistry& registry);
Registration register_attention, register_collectives, register_common_cases, register_convolution,
    register_elementwise, register_factories, register_indexing, register_linalg, register_loss, register_normalization,
    register_pooling, register_quantization, register_recurrent, register_reduction, register_shape;

// Adds `rule` for the operator of at::_ops that has its signature.
template <class Operator, class Return, class... Args>
void add_for(RuleRegistry& registry, Return (*rule)(Args...), std::source_location place) {
  const std::string overload = Operator::overload_name;
  registry.add(std::string(Operator::name) + (overload.empty() ? "" : "." + overload), rule, place);
}
// Adds boxed rules, for operators whose arguments have no common C++ type.
template <c10::BoxedKernel::BoxedKernelFunction* function>
void add_boxed(RuleRegistry& registry, std::initializer_list<const char*> names,
               std::source_location place = std::source_location::current()) {
  for (const char* name : names)
    registry.insert_boxed(name, c10::KernelFunction::makeFromBoxedFunction<function>(), place);
}
// Adds rules whose results are like arguments, by position: with their strides, or empty_contiguous_like.
void add_like(RuleRegistry& registry, std::initializer_list<const char*> names, const std::vector<size_t>& arguments,
              Tensor (*empty_of)(const Tensor&) = &rules::empty_like,
              std::source_location place = std::source_location::current());

// Allocates a contiguous result with the sizes `allocated` and resizes it: the storage keeps the larger size.
inline Tensor empty_resized(IntArrayRef allocated, IntArrayRef sizes, c10::ScalarType dtype) {
  const bool grows = c10::multiply_integers(sizes) > c10::multiply_integers(allocated);
  Tensor result = rules::empty(grows ? sizes : allocated, dtype);
  if (!grows) result.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return result;
}

inline bool mkldnn_supports(c10::ScalarType dtype, const CpuProfile& cpu) {
  return dtype == c10::kFloat || (dtype == c10::kBFloat16 && cpu.mkldnn_bf16) ||
         (dtype == c10::kHalf && cpu.mkldnn_fp16);
}

// Returns whether libtorch, which queries this machine's processor, gives the right result for the simulated one.
inline bool mkldnn_matches_this_machine(c10::ScalarType dtype, const CpuProfile& simulated) {
  return mkldnn_supports(dtype, simulated) == mkldnn_supports(dtype, CpuProfile::this_machine());
}

}  // namespace rules

// ---- C++ Meta kernels
//
// `import torch` registers some 1,350 Python functions for aten operators on the Meta key, in front of the C++ kernels
// (torch/_meta_registrations.py, torch/_decomp). Their results are the same, but a redispatch to Meta would run Python
// on every call, tens of microseconds each. The hidden C++ kernels stay in the dispatcher's entry of the operator and
// are looked up there once per operator. SHADOWGRAPH_META_KERNELS=python in the environment selects Python's kernels:
// tests/package/test_meta_kernels.py compares the graphs.

// Returns the kernel that a redispatch to Meta would call without registrations from Python: the C++ kernel for Meta or
// else for a composite key; nullptr if there is none. libtorch's kernels stay registered for the life of the process.
const c10::KernelFunction* cpp_meta_kernel(const c10::OperatorHandle& op);
// Returns whether a kernel is registered for Meta itself. For libtorch's operators it must be in C++; for others any
// kernel counts, since shape functions of custom operators are registered that way (torch.library.register_fake).
bool has_dedicated_meta_kernel(const c10::OperatorHandle& op);

// Calls an operator's C++ Meta kernel: OnMeta<at::_ops::clone>::call(x, format).
template <class Operator, class Signature = typename Operator::schema>
struct OnMeta;
template <class Operator, class Return, class... Args>
struct OnMeta<Operator, Return(Args...)> {
  static Return call(Args... args) {
    constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::Meta);
    static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(Operator::name, Operator::overload_name);
    static const c10::KernelFunction* const kernel = cpp_meta_kernel(op);
    if (kernel == nullptr) return Operator::redispatch(kKeys, std::forward<Args>(args)...);
    return kernel->template call<Return, Args...>(op, kKeys, std::forward<Args>(args)...);
  }
};

}  // namespace shadowgraph
