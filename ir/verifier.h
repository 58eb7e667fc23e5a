// What a well-formed graph is. The rules:
//
//   1  links        The node list is consistent: first, last, previous and next agree, every live node is in it once,
//                   Graph::is_before follows it.
//   2  references   Every id and every run in a node, value, storage or region is in range.
//   3  order        Every value used has a live producer earlier in program order.
//   4  uses         The lists of uses hold exactly the uses that arguments make, in both directions.
//   5  results      Every result's value names the node as its producer, and no value is a result twice.
//   6  arguments    As many as the schema has, each of a kind that its type allows: None for optionals and for tensors
//                   (an undefined tensor, as autograd passes them), numbers for tensors (as
//                   the C++ API wraps them), lists element by element, nested at most
//                   kMaxListDepth deep.
//   7  returns      Results are as many, and of the kinds, that the schema returns (none recorded at all is allowed).
//   8  storage      A tensor value's storage exists; its device is that of the value; bytes are not negative.
//   9  extent       A strided value fits into its storage: (offset + sum((size - 1) * stride) + 1) * itemsize <= bytes.
//                   Sizes, strides and offset are not negative. A value without elements fits anywhere.
//  10  alias        A result that the schema says aliases an argument has a storage of that argument (unless
//                   operator_exceptions.cpp says it may be fresh). So in-place results share their self's storage.
//  11  lifetime     A storage is used neither before the node where it was born nor after the one it was freed after.
//  12  regions      Regions form a tree: parents have smaller indices, r0 alone has none; composite regions' arguments
//                   are none or as many as their operator has.
//  13  placeholders sg::parameter, sg::buffer, sg::input and sg::constant come before everything else.
//  14  output       At most one sg::output; only it and sg::gradient come last.
//  15  forward      A backward link points to an earlier node. (A link to an erased node counts as none.)
//  16  saved        A tensor saved as an argument or result is, or shares the storage of, that argument or result.
//  17  frees        A storage is listed as freed by the node that it says it was freed after, once, and vice versa.
//
// Rules 6, 7 and 10 read the schema, so they hold for operators that this process does not have.
// About 0.5 us a node; linear. Never crashes, however broken the graph is.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace shadowgraph {

enum class Rule : uint8_t {
  kLinks = 1,
  kReferences,
  kOrder,
  kUses,
  kResults,
  kArguments,
  kReturns,
  kStorage,
  kExtent,
  kAlias,
  kLifetime,
  kRegions,
  kPlaceholders,
  kOutput,
  kForward,
  kSaved,
  kFrees,
};
std::string_view to_string(Rule rule);

struct Violation {
  Rule rule;
  NodeId node;          // invalid if it is about none
  std::string message;  // what is wrong, and the node as text
};

// All of them, in program order as far as they belong to nodes.
std::vector<Violation> violations(const Graph& graph);

// Throws VerifyError that lists them all.
void verify(const Graph& graph);

}  // namespace shadowgraph
