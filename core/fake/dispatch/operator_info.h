// Properties of an operator used by the fallback, derived once from its schema and the registries.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <memory>
#include <source_location>
#include <string>

#include "core/fake/rules/registry.h"
#include "ir/operators/operator_facts.h"
#include "ir/operators/operator_forms.h"
#include "shadowgraph/graph/target.h"

namespace shadowgraph {

// The ways to execute a call, in order of preference.
enum class Route : uint8_t {
  kRule,           // a built-in or user-defined shape rule
  kComposite,      // its decomposition, with the fake key still included
  kMeta,           // the C++ Meta kernel, including CompositeExplicitAutograd kernels
  kDataDependent,  // throws DataDependentError
  kNone,           // throws NoRuleError
};

struct OperatorInfo {
  explicit OperatorInfo(const c10::OperatorHandle& op, uint32_t id);

  c10::OperatorHandle op;
  Target target;        // includes the operator's facts and other forms
  std::string name;     // "aten::add.Tensor"
  const void* key;      // identity of the operator in the dispatcher
  uint32_t id;          // dense, for side tables
  uint64_t generation;  // of the rule registry when this was built
  Route route = Route::kNone;
  ContentsRule contents_rule = ContentsRule::kNone;
  DeviceRule device_rule = DeviceRule::kCommon;
  uint16_t argument_count = 0;
  uint16_t return_count = 0;
  int16_t device_argument = -1;
  int16_t group_argument = -1;  // of a collective: the process group or its name
  bool writes = false;          // some argument is written
  bool bumps_versions = false;  // eager's kernel, not autograd, bumps the versions of the first argument: _foreach_add_
  bool random = false;
  bool depends_on_data = false;  // results or their sizes depend on contents: item, nonzero, index by a mask
  bool copies_operands = false;  // on the CPU, to a common dtype (core/fake/dispatch/run_on_meta.h)
  bool evaluable = false;        // may run for real on operands with known contents
  bool is_view = false;          // results share memory with operands, nothing is written
  bool inplace_view = false;     // t_, squeeze_: changes the geometry of its operand
  bool mixes_cpu_scalars = true;
  bool marks_for_profiler = false;                 // a profiler annotation that computes nothing, as in torch.optim
  bool reads_operands = false;                     // a composite whose decomposition accesses integer data pointers
  bool direct_on_cpu = false;                      // a composite whose CPU kernel without derivatives calls no other
  bool lifts = false;                              // turns a literal into a program tensor: lift_fresh
  bool makes_quantized = false;                    // has results of a quantized dtype, which fakes do not support
  bool refuses_meta = false;                       // OperatorFact::kRefusesMeta
  bool is_user_defined = false;                    // user-defined: not in namespace aten
  bool checks_dtypes = false;                      // operands may be refused for their dtypes
  c10::SmallVector<uint16_t, 8> tensor_arguments;  // positions that may hold tensors or lists of them
  // Bit i: argument i, of the first 64.
  uint64_t written_arguments = 0;
  uint64_t touched_arguments = 0;      // written, even where the schema does not declare it
  uint64_t overwritten_arguments = 0;  // written without being read: fill_, copy_, an `out=`
  uint64_t unread_arguments = 0;       // only their metadata is read: zeros_like
  const c10::KernelFunction* meta_kernel =
      nullptr;  // the C++ kernel, even if Python registered another (core/fake/rules/registry.h)
  std::shared_ptr<const ShapeRule> rule;
  std::shared_ptr<const ShapeRule> composite_rule;
  std::shared_ptr<const OperatorDevices> devices;  // registered by the user

  // Returns false if rules have been registered since; call of() again.
  bool is_current() const { return generation == RuleRegistry::generation(); }

  // Returns the cached entry of `op`. Thread-safe, a few nanoseconds once cached; never destroyed.
  static const OperatorInfo& of(const c10::OperatorHandle& op);
};

// Returns whether a bit set of arguments contains `position`.
inline bool is_in(uint64_t arguments, uint16_t position) { return position < 64 && ((arguments >> position) & 1) != 0; }

// The way fake tensors run an operator, as reported by docs, `shadowgraph operator` and the coverage test.

struct ExecutionRoute {
  enum class Kind : uint8_t {
    kRule,           // a shape rule
    kDecomposition,  // decomposed; each part runs in turn
    kOutForm,        // runs `form` and resizes the outputs to its results
    kMeta,           // libtorch's Meta kernel
    kDataDependent,  // DataDependentError, unless the user provides a size
    kNone,           // NoRuleError
  };
  Kind kind = Kind::kNone;
  bool takes_sizes = false;         // kDataDependent: accepts a user-provided size
  const FreshForm* form = nullptr;  // of an out= operator without its own kernel: the form it runs as
};

ExecutionRoute execution_route(const c10::OperatorHandle& op);

// ---- Operators with an unboxed kernel (core/fake/dispatch/unboxed_call.h) and their source locations

// Called once per operator when the process state is installed. Thread-safe.
void note_fast_path(const std::string& operator_name, std::source_location place);

// Returns the source location of the unboxed kernel of "aten::add.Tensor". Line 0 if there is none, or if the process
// state is not installed yet (core/fake/mode/process_state.h). Thread-safe.
std::source_location fast_path_location(const std::string& operator_name);

}  // namespace shadowgraph
