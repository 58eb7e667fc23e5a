// Targets of nodes, their signatures and operator facts.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/ids.h"
#include "shadowgraph/graph/types.h"

namespace c10 {
struct FunctionSchema;
}

namespace SHADOWGRAPH_API shadowgraph {

class Graph;

// Schema types as far as the arguments of a graph distinguish them.
enum class TypeClass : uint8_t {
  kAny,  // not inspected further: Any, Storage, Stream, custom classes, lists of lists
  kTensor,
  kNumber,
  kInt,
  kDtype,  // an int in the Argument, printed as "f32"; similarly the next two
  kLayout,
  kMemoryFormat,
  kFloat,
  kBool,
  kString,
  kDevice,
  kGenerator,
  kList,
};

struct FormalType {
  TypeClass type = TypeClass::kAny;
  bool optional = false;
  TypeClass element = TypeClass::kAny;  // kList
  bool element_optional = false;
  int length = 0;  // of a fixed-size list, bool[3]; otherwise 0

  bool is_int_list() const { return type == TypeClass::kList && element == TypeClass::kInt && !element_optional; }
  bool is_tensor_like() const {
    return type == TypeClass::kTensor || (type == TypeClass::kList && element == TypeClass::kTensor);
  }
};

// A schema default as an Argument, together with the data that an Argument of a graph has in the graph's pools.
struct DefaultArgument {
  Argument argument;  // complete for scalar kinds, otherwise only the kind
  std::vector<int64_t> ints;
  std::string string;
  std::vector<double> complex;
  std::vector<DefaultArgument> elements;

  bool equals(const Graph& graph, const Argument& actual) const;
  Argument make(Graph& graph) const;
};

struct Formal {
  std::string name;  // usually "" for returns
  FormalType type;
  // std::nullopt if there is no default, or if no Argument can represent it (has_default is true then).
  std::optional<DefaultArgument> default_value;
  bool has_default = false;
  bool keyword_only = false;
  bool out = false;                     // an `out=` argument
  bool writes = false;                  // "!" in its alias annotation
  std::vector<std::string> alias_sets;  // "a" of Tensor(a!), those of a list's elements included
};

// The arguments and returns of a schema, parsed once and without the dispatcher. c10::FunctionSchema has the same
// information, but is too slow to read for every node of a large graph; see shadowgraph/graph/libtorch.h.
struct Signature {
  std::string name;      // "aten::add"
  std::string overload;  // "Tensor"; "" for the default overload
  std::vector<Formal> arguments;
  std::vector<Formal> returns;
  bool variadic_arguments = false;
  bool variadic_returns = false;

  // Returns the position of the argument called `argument`.
  std::optional<size_t> position_of(std::string_view argument) const;
};

enum class TargetKind : uint8_t {
  kOperator,  // a dispatcher operator: "aten::add.Tensor"
  kBuiltin,   // "sg::parameter" and its siblings, below
  kFunction,  // a user-registered function with a shape rule
};

// Effects and aliasing of an operator, derived from its schema and from the table in ir/operators/, which corrects
// schemas that are wrong or incomplete. Arguments and results are identified by schema position.
//
//     graph.facts(node).written          // of aten::add_.Tensor: {0}
//
// Facts of a user-registered function are derived from its schema likewise: alias annotations are trusted, a Generator
// argument marks it as random, and a string argument `group_name` as a collective. Variadic arguments, custom class
// objects and `Any` make the target `unknown`: it is assumed to read and write all of its arguments.
struct OperatorFacts {
  struct Alias {
    uint16_t result = 0;
    uint16_t argument = 0;
    bool always = true;  // false: the result may also be a new tensor, as for aten::contiguous
  };

  std::vector<uint16_t> written;  // arguments whose storage is written
  // Subset of `written` that is overwritten completely, regardless of previous contents: `out=`, copy_, fill_, normal_.
  std::vector<uint16_t> overwritten;
  // If >= 0: position of the bool argument on which the writes depend (batch norm's `training`).
  int write_condition = -1;
  std::vector<Alias> aliases;
  std::vector<uint16_t> generators;  // arguments of type Generator
  bool is_view = false;              // every tensor result aliases an argument, and there are no writes
  bool is_in_place = false;          // writes an argument other than `out=`
  bool is_out_variant = false;
  bool collective = false;  // communicates with other processes; the order of collectives is preserved
  bool random = false;
  // Random, with results that depend only on the generator, scalars and sizes: normal_ and randn_like, but not dropout.
  bool draws = false;
  // Deterministic, with results that depend only on scalars and sizes: zeros, arange, full_like, zero_.
  bool fills = false;
  bool uninitialized = false;  // results are uninitialized memory: empty, new_empty
  bool pointwise = false;      // each result element depends only on the operand elements at its position (broadcast)
  // Reads only the geometry of its operands, not their contents: views, empty_like. Writes do not affect it.
  bool geometry_only = false;
  bool host_read = false;      // results or their number depend on tensor contents that are read on the host
  bool resizes = false;        // changes a tensor's sizes and grows its storage as needed: resize_, resize_as_
  bool takes_storage = false;  // replaces a tensor's storage: set_, set_data
  // May change the geometry or storage of the tensor objects that it writes: t_, and the two above.
  bool changes_objects = false;
  bool conjugates = false;  // a view of complex numbers with the conjugate bit flipped
  bool negates = false;     // a view with the negative bit flipped
  bool unknown = false;     // effects cannot be derived from the schema
};

// A Target is the callee of a node: an operator, one of the sg:: built-ins, or a user-registered function. It is stored
// as name and schema text, parsed on first use, so that a process without a custom operator can open the graph.
class Target {
 public:
  // Full schema: "aten::mm(Tensor self, Tensor mat2) -> Tensor". Throws ParseError if it is not a schema.
  Target(TargetKind kind, const std::string& schema_text);
  Target(TargetKind kind, const c10::FunctionSchema& schema);

  TargetKind kind() const { return kind_; }
  // Operator name with overload: "aten::add.Tensor".
  const std::string& name() const { return name_; }
  // Computed on first use and cached. Thread-safe.
  const Signature& signature() const {
    const Signature* known = known_->signature.load(std::memory_order_acquire);
    return known != nullptr ? *known : compute_signature();
  }
  std::string schema_text() const;
  // Computed on first use, cached in this target and its copies; the reference stays valid. Thread-safe. Facts depend
  // on the schema, so they are the same in a process without the operator, and on the operator's tags in this process
  // (random, host_read, pointwise, changes_objects). Until the operator is registered it has no tags and is assumed to
  // change objects; facts are final once the operator has been found.
  const OperatorFacts& facts() const {
    const OperatorFacts* known = known_->facts.load(std::memory_order_acquire);
    return known != nullptr ? *known : compute_facts();
  }

 private:
  friend struct KnownTarget;  // ir/operators/known_target.h
  struct Known {
    std::atomic<const OperatorFacts*> facts = nullptr;
    std::atomic<const Signature*> signature = nullptr;
  };
  const Signature& compute_signature() const;
  const OperatorFacts& compute_facts() const;

  TargetKind kind_;
  std::string name_;
  std::shared_ptr<Known> known_;  // a KnownTarget
};

// Returns whether this process has an operator of the same name with another schema, as in a different libtorch.
bool has_another_schema(const Target& target);

// Built-in targets. They have the same TargetIds in every graph.
//   sg::parameter(str name) -> Tensor      a parameter of the captured module; similarly sg::buffer, sg::input
//   sg::constant(Tensor data) -> Tensor    a real tensor used by the program, held by the graph
//   sg::alias(Tensor source) -> Tensor     a tensor that shares a known storage but was not created by an operator
//   sg::output(Tensor?[] values) -> ()     the values returned by the program; the last node, at most one
//   sg::gradient(Tensor parameter, Tensor gradient) -> ()   the final .grad of a parameter
enum class Builtin : uint32_t { kParameter, kBuffer, kInput, kConstant, kAlias, kOutput, kGradient };
constexpr uint32_t kBuiltinCount = 7;
constexpr TargetId target_of(Builtin builtin) { return TargetId(static_cast<uint32_t>(builtin)); }
const char* builtin_schema(Builtin builtin);
// Returns whether the target is sg::parameter, sg::buffer, sg::input or sg::constant; these come first.
constexpr bool is_placeholder(TargetId target) { return target.index <= target_of(Builtin::kConstant).index; }
// Returns whether the target is sg::output or sg::gradient; these come last.
constexpr bool is_end(TargetId target) {
  return target == target_of(Builtin::kOutput) || target == target_of(Builtin::kGradient);
}

}  // namespace shadowgraph
