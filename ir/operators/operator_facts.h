// The table of what is known of operators beyond their schemas. Ask OperatorFacts (shadowgraph/graph/target.h), which
// joins the two; this header is for who works them out, and for the test.
//
//     {.name = "aten::zero_", .overwrites = true, .fills = true}
//     {.name = "aten::_unsafe_view", .alias_of = "self", .why = "a view that autograd is told nothing of"}
//
// A fact is stated here once, as a row or a field of a row. What only one consumer needs (a shape rule, a FLOP formula,
// how a generator's numbers are used up, a colour) stays with that consumer.
//
// tests/ir/operator_facts_test.cpp runs the operator of every row on real tensors and holds each field against what
// happened. So adding a row is two lines: one here, one call there.
#pragma once

#include <span>
#include <string_view>

#include "shadowgraph/graph/graph.h"

namespace shadowgraph {

struct OperatorRow {
  std::string_view name;  // "aten::x" for all overloads or "aten::x.overload" for one; see operator_name.h

  // ---- Contents. The first three only for overloads that read no other tensor: aten::linspace, not .Tensor_Tensor
  bool overwrites = false;     // of what it writes, every element, reading none of it
  bool fills = false;          // OperatorFacts::fills
  bool geometry_only = false;  // of `self`, sizes, strides, dtype and device alone
  bool uninitialised = false;  // gives memory as it was found
  bool pointwise = false;      // without PyTorch's tag of that name
  bool host_read = false;      // gives the host what is in a tensor

  // ---- Tensor objects
  bool resizes = false;
  bool takes_storage = false;
  bool conjugates = false;
  bool negates = false;

  // ---- Where the schema lies
  std::string_view writes;    // names of written arguments, space separated
  std::string_view when;      // name of the bool argument without which nothing in `writes` is written
  std::string_view alias_of;  // name of the argument that the first result may alias
  bool maybe_alias = false;   // aliases, annotated or not, may also be fresh tensors
  std::string_view why;       // needed for these five

  // The operator that gives what this one writes, if its name does not follow from this one's (operator_forms.h).
  std::string_view functional;

  const char* file = __builtin_FILE();  // that the row stands in
};

std::span<const OperatorRow> operator_table();

// All of whose operators are collectives: "c10d".
std::span<const std::string_view> collective_namespaces();

// What an operator does to its arguments, worked out: its schema, the rows of operator_table.h, the tags that it has in
// this process. Everybody asks Target::facts() or Graph::facts(), which keep the answer.

// Whether the write of `facts.written` happens at this node.
bool writes_now(const Graph& graph, NodeId node, const OperatorFacts& facts);

// Whether the argument at `position` is written as a whole, whatever it held.
bool is_overwritten(const OperatorFacts& facts, size_t position);

// Arguments that a schema says are written, and that a call leaves alone.

// Says whether this call writes the argument at `position`, one of OperatorFacts::written, if it writes anything
// (writes_now, ir/operators/operator_facts.h). The gradients of _fused_adamw_ are written where a scaler is given.
bool writes_argument(const Graph& graph, NodeId node, size_t position);

}  // namespace shadowgraph
