// What an operator does to its arguments, from its schema, and from one table where schemas lie.
//
//     OperatorFactsCache facts;
//     facts.of(graph, graph.node(n).target).written   // argument positions
//
// Facts depend on nothing but the target's kind and schema text and on the tables in operator_exceptions.cpp, so that a
// graph means the same in a tool that does not have a user's operator. The exceptions are `random`, `host_read` and
// may_change_objects(), which also use the tags of the operator if it is registered in this process.
//
// A user-registered function is believed in the same way: its schema's alias annotations are its contract, an
// argument of type Generator says that it draws random numbers, and a string `group_name` that it is a collective, as in
// _c10d_functional's schemas. What a schema cannot tell (variadic arguments, custom class objects, `Any`) makes the target `unknown`: it is then assumed
// to read and write all it is given.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "shadowgraph/graph.h"

namespace shadowgraph {

struct OperatorFacts {
  struct Alias {
    uint16_t result = 0;    // position among the returns
    uint16_t argument = 0;  // schema position
    bool always = true;     // false: may also be a fresh tensor, e.g. of aten::contiguous
  };

  std::vector<uint16_t> written;  // positions of arguments whose storages are written
  // If >= 0, those arguments are written only when this bool argument is true (batch norm's `training`).
  int write_condition = -1;
  std::vector<Alias> aliases;
  std::vector<uint16_t> generators;  // positions of arguments of type Generator
  bool is_view = false;              // every tensor result aliases an argument, and nothing is written
  bool is_in_place = false;          // writes an argument that is not an `out=`
  bool is_out_variant = false;
  bool random = false;
  bool collective = false;  // other processes take part; such operators keep their order
  // Nothing of the contents of its operands is read: views, and what makes a tensor like another (aten::empty_like). A
  // write between two such nodes changes neither.
  bool geometry_only = false;
  bool host_read = false;  // its results, or which results there are, come from tensor contents read on the host
  bool unknown = false;
};

OperatorFacts facts_of(const Target& target);

// By its schema alone: Tensor(a!).
inline bool is_written(const c10::Argument& formal) {
  return formal.alias_info() != nullptr && formal.alias_info()->isWrite();
}

// Whether it can give the tensor objects that it writes another geometry or storage: t_, resize_, set_. What is not known
// to this process may.
bool may_change_objects(const Target& target);

// Whether the write of `facts.written` happens at this node.
bool writes_now(const Graph& graph, NodeId node, const OperatorFacts& facts);

// Facts of a graph's targets, each computed when first asked for. Owned by whoever analyses the graph.
class OperatorFactsCache {
 public:
  const OperatorFacts& of(const Graph& graph, TargetId id) {
    if (id.index >= cache_.size()) cache_.resize(id.index + 1);
    auto& entry = cache_[id.index];
    if (!entry) entry = std::make_unique<const OperatorFacts>(facts_of(graph.target(id)));
    return *entry;
  }

 private:
  std::vector<std::unique_ptr<const OperatorFacts>> cache_;
};

// ---- The table, ir/operators/operator_exceptions.cpp

// One row: what the schema of `name` does not say. `name` is "aten::x" for all overloads or "aten::x.overload" for one.
struct OperatorException {
  std::string_view name;
  std::string_view writes;    // names of written arguments, space separated
  std::string_view when;      // name of the bool argument without which nothing in `writes` is written
  std::string_view alias_of;  // name of the argument that the first result may alias
  bool maybe_alias = false;   // aliases, annotated or not, may also be fresh tensors
  bool random = false;
  std::string_view why;
};
std::span<const OperatorException> operator_exceptions();
std::span<const std::string_view> host_read_operators();
// Operators that are no views and look at the geometry of their operands alone.
std::span<const std::string_view> geometry_only_operators();
// Whose operators are collectives: "c10d".
std::span<const std::string_view> collective_namespaces();

}  // namespace shadowgraph
