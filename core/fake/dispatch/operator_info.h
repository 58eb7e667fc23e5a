// Holds what the fallback needs to know about an operator, worked out once from its schema and the registries.
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

// Says how a call is carried out, in order of preference.
enum class Route : uint8_t {
  kRule,           // core/rules or a user's rule
  kComposite,      // its decomposition, with the Fake key still on
  kMeta,           // the C++ Meta kernel (CompositeExplicitAutograd ones included)
  kDataDependent,  // refused: DataDependentError
  kNone,           // refused: NoRuleError
};

struct OperatorInfo {
  explicit OperatorInfo(const c10::OperatorHandle& op, uint32_t id);

  c10::OperatorHandle op;
  Target target;        // with the operator's facts and other forms, for all who record or run it
  std::string name;     // "aten::add.Tensor"
  const void* key;      // identity of the operator in the dispatcher
  uint32_t id;          // dense, for side tables
  uint64_t generation;  // of the rule registry when this was worked out
  Route route = Route::kNone;
  ContentsRule contents_rule = ContentsRule::kNone;
  DeviceRule device_rule = DeviceRule::kCommon;
  uint16_t argument_count = 0;
  uint16_t return_count = 0;
  int16_t device_argument = -1;
  int16_t group_argument = -1;  // of a collective: the process group, or its name
  bool writes = false;          // some argument is written
  bool counts_writes = false;  // eager's kernel, not autograd, raises the versions of the first argument: _foreach_add_
  bool random = false;
  bool depends_on_data = false;  // results or their sizes come from contents: item, nonzero, index by a mask
  bool copies_operands = false;  // on the CPU, to a common dtype (core/fake/dispatch/run_on_meta.h)
  bool evaluable = false;        // may be run for real on operands whose contents are known
  bool is_view = false;          // results share memory with operands, nothing is written
  bool inplace_view = false;     // t_, squeeze_: changes the geometry of its operand
  bool mixes_cpu_scalars = true;
  bool marks_for_profiler = false;                 // says what runs now, computes nothing: optimizers do so in Python
  bool reads_operands = false;                     // a composite whose decomposition reads integers behind a pointer
  bool direct_on_cpu = false;                      // a composite whose CPU kernel without gradients calls no other
  bool lifts = false;                              // takes a literal into the program: lift_fresh
  bool makes_quantized = false;                    // results of a quantised dtype, which no fake can be: refused
  bool refuses_meta = false;                       // OperatorFact::kRefusesMeta
  bool is_own = false;                             // not libtorch's: of another namespace than aten
  bool checks_dtypes = false;                      // check_dtypes() may refuse its operands
  c10::SmallVector<uint16_t, 8> tensor_arguments;  // positions that may hold tensors or lists of them
  // Bit i: argument i, of the first 64.
  uint64_t written_arguments = 0;
  uint64_t touched_arguments = 0;      // written, also where the schema does not say so
  uint64_t overwritten_arguments = 0;  // written whatever was there: fill_, copy_, an `out=`
  uint64_t unread_arguments = 0;       // only their geometry counts: zeros_like
  const c10::KernelFunction* meta_kernel =
      nullptr;  // in C++, whatever Python registered since (core/fake/rules/registry.h)
  std::shared_ptr<const ShapeRule> rule;
  std::shared_ptr<const ShapeRule> composite_rule;
  std::shared_ptr<const OperatorDevices> devices;  // that somebody registered

  // Returns false once a rule has been registered since: ask again then.
  bool is_current() const { return generation == RuleRegistry::generation(); }

  // Returns the cached facts of `op`. Thread-safe, a few nanoseconds once cached; never destroyed.
  static const OperatorInfo& of(const c10::OperatorHandle& op);
};

// Says whether a set of arguments, as OperatorInfo has them, holds one.
inline bool is_in(uint64_t arguments, uint16_t position) { return position < 64 && ((arguments >> position) & 1) != 0; }

// Says in which way fake tensors run an operator, for people: pages, `shadowgraph operator`, the test of coverage.

struct WayToRun {
  enum class Kind : uint8_t {
    kRule,           // a shape rule of its own
    kDecomposition,  // its parts are run, each by its own way
    kOutForm,        // as `form`, the results resized to what that gives
    kMeta,           // libtorch's Meta kernel
    kDataDependent,  // DataDependentError, or a size given by the user
    kNone,           // NoRuleError
  };
  Kind kind = Kind::kNone;
  bool takes_sizes = false;         // kDataDependent: it has a rule that asks for a size
  const FreshForm* form = nullptr;  // of an out= operator without a way of its own: what it is run as, if that can be
};

WayToRun way_to_run(const c10::OperatorHandle& op);

// Remembers which operators have an unboxed kernel (core/fake/dispatch/unboxed_call.h), and where each is registered.

// Called once for each operator, when the process state is installed. Thread-safe.
void note_fast_path(const std::string& operator_name, std::source_location place);

// Returns where the unboxed kernel of "aten::add.Tensor" is registered. The line is 0 if there is none, or if the
// process state is not installed yet (core/fake/mode/process_state.h). Thread-safe.
std::source_location fast_path_place(const std::string& operator_name);

}  // namespace shadowgraph
