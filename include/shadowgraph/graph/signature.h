// What a target takes and returns, read from its schema once, without the dispatcher.
//
//     const Signature& add = graph.target(node).signature();   // aten::add.Tensor
//     add.name                       // "aten::add"; add.overload is "Tensor"
//     add.arguments[2].name          // "alpha", keyword-only, a number, 1 by default
//     add.position_of("alpha")       // 2
//
// c10::FunctionSchema knows the same, but through shared pointers, virtual casts and IValues. That is too slow for every
// node of a large graph, and half of libtorch to include. shadowgraph/graph/libtorch.h has it for who needs it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/export.h"
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
