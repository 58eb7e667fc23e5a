// Hashes and equality of nodes' structure: what CSE and the search for repeats look nodes up by.
#pragma once

#include <c10/util/FunctionRef.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "shadowgraph/graph/graph.h"
#include "support/hash.h"

namespace shadowgraph {

// Hashes arguments, list by list; of_value(ValueId), of_string(StringId) and of_constant(ConstantId) say what those count
// as. Floats count by their bits. By default strings and constants count by id, so hashes mean something within one
// graph.
struct ByIndex {
  uint64_t operator()(auto id) const { return id.index; }
};
template <class OfValue, class OfString = ByIndex, class OfConstant = ByIndex>
uint64_t hash_of(const Graph& graph, std::span<const Argument> arguments, uint64_t hash, const OfValue& of_value,
                 const OfString& of_string = {}, const OfConstant& of_constant = {}) {
  for (const Argument& a : arguments) {
    hash = mixed(hash, static_cast<uint64_t>(a.kind));
    switch (a.kind) {
      case ArgumentKind::kValue:
        hash = mixed(hash, of_value(a.ref.value));
        break;
      case ArgumentKind::kIntList:
        for (const int64_t i : graph.ints(a)) hash = mixed(hash, static_cast<uint64_t>(i));
        hash = mixed(hash, graph.ints(a).size());
        break;
      case ArgumentKind::kComplex:
        for (const double d : graph.complex_parts(a)) hash = mixed(hash, std::bit_cast<uint64_t>(d));
        break;
      case ArgumentKind::kList:
        hash = mixed(hash_of(graph, graph.list(a), hash, of_value, of_string, of_constant), graph.list(a).size());
        break;
      case ArgumentKind::kDevice:
      case ArgumentKind::kGenerator:
        hash = mixed(hash, static_cast<uint64_t>(static_cast<uint8_t>(a.device_type)) << 8 |
                               static_cast<uint8_t>(a.device_index));
        break;
      case ArgumentKind::kString:
      case ArgumentKind::kOpaque:
        hash = mixed(hash, of_string(a.string));
        break;
      case ArgumentKind::kConstant:
        hash = mixed(hash, of_constant(a.constant));
        break;
      case ArgumentKind::kBool:
        hash = mixed(hash, a.b ? 1 : 0);
        break;
      case ArgumentKind::kInt:
      case ArgumentKind::kFloat:
        hash = mixed(hash, static_cast<uint64_t>(a.i));
        break;
      case ArgumentKind::kNone:
        break;
    }
  }
  return hash;
}

// Whether x of graph a and y of graph b are equal to the bit: -0.0 is not 0.0, NaN is NaN, 1 is not true. Strings are
// equal by text. same_value(ValueId, ValueId) and same_constant(ConstantId, ConstantId) say when those are. Lists below
// kMaxListDepth, which no sound graph has, are not.
template <class SameValue, class SameConstant>
bool same_argument(const Graph& a, const Argument& x, const Graph& b, const Argument& y, const SameValue& same_value,
                   const SameConstant& same_constant, int depth = 0) {
  if (x.kind != y.kind) return false;
  switch (x.kind) {
    case ArgumentKind::kNone:
      return true;
    case ArgumentKind::kValue:
      return same_value(x.ref.value, y.ref.value);
    case ArgumentKind::kInt:
      return x.i == y.i;
    case ArgumentKind::kFloat:
      return same_bits(x.d, y.d);
    case ArgumentKind::kBool:
      return x.b == y.b;
    case ArgumentKind::kComplex:
      return a.complex_parts(x).size() == 2 && std::ranges::equal(a.complex_parts(x), b.complex_parts(y), same_bits);
    case ArgumentKind::kString:
    case ArgumentKind::kOpaque:
      // Strings of one graph are interned, so equal ids are equal texts.
      return &a == &b ? x.string == y.string : a.text_or_empty(x.string) == b.text_or_empty(y.string);
    case ArgumentKind::kDevice:
    case ArgumentKind::kGenerator:
      return x.device_type == y.device_type && x.device_index == y.device_index;
    case ArgumentKind::kIntList:
      return std::ranges::equal(a.ints(x), b.ints(y));
    case ArgumentKind::kList:
      return depth < kMaxListDepth &&
             std::ranges::equal(a.list(x), b.list(y), [&](const Argument& s, const Argument& t) {
               return same_argument(a, s, b, t, same_value, same_constant, depth + 1);
             });
    case ArgumentKind::kConstant:
      return same_constant(x.constant, y.constant);
  }
  return false;
}

// Within one graph: values and constants are equal if they are the same.
bool same_arguments(const Graph& graph, std::span<const Argument> a, std::span<const Argument> b);

// dtype, sizes, strides, device, layout; of scalars the kind. Storage and offset are left out.
uint64_t hash_of_type(const Graph& graph, ValueId value, uint64_t hash);

// Decides when two parts of a program do the same. find-repeats, the layers that a picture folds and the rows that a
// summary folds all go by this.
//
// A block is some nodes in program order. Two are the same if, node by node,
//
//     they call the same target in the same phase, with the same constants,
//     they take values of the same types from the same places: result r of the block's i-th node, or the k-th value from
//     outside of it, counted in the order in which those first appear (add(x, x) is not add(x, y)),
//     and they give results of the same types.
//
// Types are dtype, sizes, strides, device and layout. Names, storages, lifetimes, and which outside value it is do not
// count: layers have parameters of their own. Blocks are compared by a 64-bit hash.

class BlockHashes {
 public:
  // One walk over the graph, which must outlive this, unchanged.
  explicit BlockHashes(const Graph& graph);

  // Returns a node's hash without the places of its operands: equal nodes of equal blocks have equal ones.
  uint64_t of_node(NodeId node) const { return of_node_[node.index]; }

  // Linear in the block. `label` is one more thing that must agree node by node (where in a module a node lies).
  // `origin` says which value an operand counts as (a picture looks through views that it does not draw).
  uint64_t of(
      std::span<const NodeId> block, c10::function_ref<uint64_t(NodeId)> label = [](NodeId) { return uint64_t{0}; },
      c10::function_ref<ValueId(ValueId)> origin = [](ValueId v) { return v; });

 private:
  const Graph& graph_;
  std::vector<uint64_t> of_node_;
  // By node and value: for which block it was last seen, and as which of its nodes or outside values.
  struct Seen {
    uint32_t block = 0;
    uint32_t number = 0;
  };
  std::vector<Seen> nodes_;
  std::vector<Seen> values_;
  uint32_t block_ = 0;
};

// A module among its siblings.
struct Sibling {
  std::string_view name;        // its own: "0", "attention"
  std::string_view class_name;  // "" if unknown
  uint32_t call = 0;            // which call of that name
};

// Returns one past the last of the siblings from `first` on that repeat the first. They are of one class, one apart by
// number ("3", "4") or by call, all in the same direction (backward meets layers last to first). They have the same
// content, by its hash.
size_t end_of_run(std::span<const Sibling> siblings, size_t first, c10::function_ref<uint64_t(size_t)> content);

}  // namespace shadowgraph
