// What the text form, JSON and the verifier need to know of a schema's formal parameters, computed once per target.
//
// c10::FunctionSchema answers all of it, but through shared pointers, virtual casts and IValues: far too slow for every
// node of a large graph. Formals is a small cache that its user owns (a printer, a parser, a verifier run).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shadowgraph/graph.h"

namespace shadowgraph {

// What a schema type allows, as far as arguments are concerned.
enum class TypeClass : uint8_t {
  kAny,  // a type whose arguments are not looked into: Any, Storage, Stream, custom classes, lists of lists
  kTensor,
  kNumber,
  kInt,
  kDtype,  // an int in the IValue, printed as "f32"; likewise the next two
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

  bool is_int_list() const { return type == TypeClass::kList && element == TypeClass::kInt && !element_optional; }
};
FormalType formal_type(const c10::Type& type);

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
// Empty for defaults that no Argument can hold.
std::optional<DefaultArgument> default_argument(const c10::IValue& value);

struct Formal {
  std::string name;
  FormalType type;
  std::optional<DefaultArgument> default_value;
};

struct TargetFormals {
  std::vector<Formal> arguments;
  std::vector<FormalType> returns;
  bool variadic_arguments = false;
  bool variadic_returns = false;
};
TargetFormals formals_of(const Target& target);

class Formals {
 public:
  const TargetFormals& of(const Graph& graph, TargetId id) {
    if (id.index >= cache_.size()) cache_.resize(id.index + 1);
    auto& entry = cache_[id.index];
    if (!entry) entry = std::make_unique<const TargetFormals>(formals_of(graph.target(id)));
    return *entry;
  }

 private:
  std::vector<std::unique_ptr<const TargetFormals>> cache_;
};

// Lists inside lists beyond this are refused by parser and verifier, so that nothing recurses without bound.
constexpr int kMaxListDepth = 32;

}  // namespace shadowgraph
