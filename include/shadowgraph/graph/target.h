// What a target takes and returns, read from its schema once, without the dispatcher.
//
//     const Signature& add = graph.target(node).signature();   // aten::add.Tensor
//     add.name                       // "aten::add"; add.overload is "Tensor"
//     add.arguments[2].name          // "alpha", keyword-only, a number, 1 by default
//     add.position_of("alpha")       // 2
//
// c10::FunctionSchema knows the same, but through shared pointers, virtual casts and IValues. That is too slow for
// every node of a large graph, and half of libtorch to include. shadowgraph/graph/libtorch.h has it for who needs it.
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

namespace SHADOWGRAPH_API shadowgraph {

class Graph;

// What a schema type allows, as far as arguments are concerned.
enum class TypeClass : uint8_t {
  kAny,  // a type whose arguments are not looked into: Any, Storage, Stream, custom classes, lists of lists
  kTensor,
  kNumber,
  kInt,
  kDtype,  // an int in the Argument, printed as "f32"; likewise the next two
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
  int length = 0;  // of a list that has a fixed one, bool[3]; otherwise 0

  bool is_int_list() const { return type == TypeClass::kList && element == TypeClass::kInt && !element_optional; }
  bool is_tensor_like() const {
    return type == TypeClass::kTensor || (type == TypeClass::kList && element == TypeClass::kTensor);
  }
};

// A schema default as an Argument, with what would be in the graph's pools beside it.
struct DefaultArgument {
  Argument argument;  // of scalar kinds complete, of others only the kind
  std::vector<int64_t> ints;
  std::string string;
  std::vector<double> complex;
  std::vector<DefaultArgument> elements;

  bool equals(const Graph& graph, const Argument& actual) const;
  Argument make(Graph& graph) const;
};

// A formal argument, or a return, which has no default.
struct Formal {
  std::string name;  // of a return mostly ""
  FormalType type;
  // Empty where the schema has no default; also where no Argument can hold it (then has_default is true).
  std::optional<DefaultArgument> default_value;
  bool has_default = false;
  bool keyword_only = false;
  bool out = false;                     // an `out=` argument
  bool writes = false;                  // "!" in its alias annotation
  std::vector<std::string> alias_sets;  // "a" of Tensor(a!), those of a list's elements included
};

struct Signature {
  std::string name;      // "aten::add"
  std::string overload;  // "Tensor"; "" for the default overload
  std::vector<Formal> arguments;
  std::vector<Formal> returns;
  bool variadic_arguments = false;
  bool variadic_returns = false;

  // Finds an argument by its name.
  std::optional<size_t> position_of(std::string_view argument) const;
};

}  // namespace shadowgraph

// What a node calls: an operator, one of the sg:: built-ins, or a function the user registered.
//
// A target is kept as name and schema text, so that a graph with somebody's own operator opens in a tool without it.
// The schema is parsed (without registration) when first asked for, the operator handle looked up likewise.

namespace c10 {
struct FunctionSchema;
}

namespace SHADOWGRAPH_API shadowgraph {

enum class TargetKind : uint8_t {
  kOperator,  // a dispatcher operator: "aten::add.Tensor"
  kBuiltin,   // "sg::parameter" and its siblings, below
  kFunction,  // a user-registered function with a shape rule
};

// Says what an operator does to its arguments and how its results come to be. This comes from its schema, and from the
// table in ir/operators/ where schemas lie or say nothing. Arguments and results are given by schema position.
//
//     graph.facts(node).written          // of aten::add_.Tensor: {0}
//
// A user-registered function is believed in the same way: its schema's alias annotations are its contract. An argument
// of type Generator says that it draws random numbers, and a string `group_name` that it is a collective, as in
// _c10d_functional's schemas. What a schema cannot tell (variadic arguments, custom class objects, `Any`) makes the
// target `unknown`. It is then assumed to read and write all it is given.
struct OperatorFacts {
  struct Alias {
    uint16_t result = 0;
    uint16_t argument = 0;
    bool always = true;  // false: may also be a fresh tensor, e.g. of aten::contiguous
  };

  std::vector<uint16_t> written;  // arguments whose storages are written
  // Written arguments that are written as a whole, whatever they held: `out=`, copy_, fill_, normal_.
  std::vector<uint16_t> overwritten;
  // If >= 0, arguments are written only when this bool argument is true (batch norm's `training`).
  int write_condition = -1;
  std::vector<Alias> aliases;
  std::vector<uint16_t> generators;  // arguments of type Generator
  bool is_view = false;              // every tensor result aliases an argument, and nothing is written
  bool is_in_place = false;          // writes an argument that is not an `out=`
  bool is_out_variant = false;
  bool collective = false;  // other processes take part; such operators keep their order
  bool random = false;
  // Random, and nothing but the generator, numbers and sizes decides what is drawn: normal_ and randn_like, not
  // dropout.
  bool draws = false;
  // The same numbers every time, from numbers and sizes alone: zeros, arange, full_like, zero_.
  bool fills = false;
  bool uninitialised = false;  // its results hold what the memory happened to hold: empty, new_empty
  bool pointwise = false;      // an element of a result depends on the elements at the same place, after broadcasting
  // Nothing of the contents of its operands is read: views, and what makes a tensor like another (aten::empty_like). A
  // write between two such nodes changes neither.
  bool geometry_only = false;
  bool host_read = false;      // its results, or which results there are, come from tensor contents read on the host
  bool resizes = false;        // gives a tensor other sizes, and its storage room for them: resize_, resize_as_
  bool takes_storage = false;  // gives a tensor another storage: set_, set_data
  // May give the tensor objects that it writes another geometry or storage: t_ and the two above.
  bool changes_objects = false;
  bool conjugates = false;  // a view of complex numbers whose conjugate bit is turned
  bool negates = false;     // a view whose negative bit is turned
  bool unknown = false;
};

class Target {
 public:
  // `schema_text` is the full schema, "aten::mm(Tensor self, Tensor mat2) -> Tensor".
  // Throws ParseError if it is not a schema.
  Target(TargetKind kind, const std::string& schema_text);
  Target(TargetKind kind, const c10::FunctionSchema& schema);

  TargetKind kind() const { return kind_; }
  // Operator name with overload: "aten::add.Tensor".
  const std::string& name() const { return name_; }
  // Worked out when first asked for, and kept.
  const Signature& signature() const {
    const Signature* known = known_->signature.load(std::memory_order_acquire);
    return known != nullptr ? *known : work_out_signature();
  }
  std::string schema_text() const;
  // Facts are worked out when first asked for, kept with this target and its copies, and never moved. Thread-safe. They
  // depend on the schema, so that a graph means the same in a tool that does not have a user's operator. They also
  // depend on the tags that the operator has in this process (random, host_read, pointwise, changes_objects). Until it
  // is registered it has none and may change objects; once found with its tags, facts stay as they are.
  const OperatorFacts& facts() const {
    const OperatorFacts* known = known_->facts.load(std::memory_order_acquire);
    return known != nullptr ? *known : work_out_facts();
  }

 private:
  friend struct KnownTarget;  // ir/operators/known_target.h
  struct Known {
    std::atomic<const OperatorFacts*> facts = nullptr;
    std::atomic<const Signature*> signature = nullptr;
  };
  const Signature& work_out_signature() const;
  const OperatorFacts& work_out_facts() const;

  TargetKind kind_;
  std::string name_;
  std::shared_ptr<Known> known_;  // a KnownTarget
};

// Whether this process has an operator of that name with another schema: the graph is from another libtorch.
bool has_another_schema(const Target& target);

// Built-in targets. Every graph has them at these TargetIds.
//   sg::parameter(str name) -> Tensor      a parameter of the captured module; likewise sg::buffer, sg::input
//   sg::constant(Tensor data) -> Tensor    a real tensor met from outside, held by the graph
//   sg::alias(Tensor source) -> Tensor     a tensor met that shares a known storage without an operator that made it
//   sg::output(Tensor?[] values) -> ()     what the program returned; the last node, at most one
//   sg::gradient(Tensor parameter, Tensor gradient) -> ()   where .grad of a parameter ended
enum class Builtin : uint32_t { kParameter, kBuffer, kInput, kConstant, kAlias, kOutput, kGradient };
constexpr uint32_t kBuiltinCount = 7;
constexpr TargetId target_of(Builtin builtin) { return TargetId(static_cast<uint32_t>(builtin)); }
const char* builtin_schema(Builtin builtin);
// sg::parameter, sg::buffer, sg::input, sg::constant: what stands for something from outside, and comes first.
constexpr bool is_placeholder(TargetId target) { return target.index <= target_of(Builtin::kConstant).index; }
// sg::output, sg::gradient: what is handed out, and comes last.
constexpr bool is_end(TargetId target) {
  return target == target_of(Builtin::kOutput) || target == target_of(Builtin::kGradient);
}

}  // namespace shadowgraph
