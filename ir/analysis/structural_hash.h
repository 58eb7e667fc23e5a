// Structural hashes and equality of nodes, for CSE and the search for repeated blocks.
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

// Hashes arguments, lists included; of_value(ValueId), of_string(StringId) and of_constant(ConstantId) return the
// hashes of their operands. Floats are hashed by their bits. By default strings and constants are hashed by id, so
// hashes are only comparable within one graph.
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

// Returns whether x of graph a and y of graph b are equal bit for bit: -0.0 is not 0.0, NaN is NaN, 1 is not true.
// Strings compare by text; same_value(ValueId, ValueId) and same_constant(ConstantId, ConstantId) compare values and
// constants. Lists nested deeper than kMaxListDepth, which no valid graph has, are unequal.
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

// Within one graph, where values and constants compare by id.
bool same_arguments(const Graph& graph, std::span<const Argument> a, std::span<const Argument> b);

// Hashes dtype, sizes, strides, device and layout; for scalars, the kind. Ignores storage and offset.
uint64_t hash_of_type(const Graph& graph, ValueId value, uint64_t hash);

// Decides when two blocks of a program are the same. Used by find-repeats and by the folding of layers in pictures and
// summaries.
//
// A block is a sequence of nodes in program order. Two blocks are the same if, node by node,
//
//     they call the same target in the same phase, with the same constants,
//     they take values of the same types from the same places: result r of the block's i-th node, or the k-th value
//     from outside the block, counted by first use (add(x, x) is not add(x, y)),
//     and their results have the same types.
//
// Types are dtype, sizes, strides, device and layout. Names, storages, lifetimes and the identity of outside values are
// ignored, since each layer has its own parameters. Blocks are compared by a 64-bit hash.

class BlockHashes {
 public:
  // One walk over the graph, which must outlive this object unchanged.
  explicit BlockHashes(const Graph& graph);

  // Returns a node's hash without the places of its operands. Equal for corresponding nodes of equal blocks.
  uint64_t of_node(NodeId node) const { return of_node_[node.index]; }

  // Linear in the block. `label` is an additional property that must agree node by node, such as the node's position
  // within a module. `origin` maps an operand to the value it counts as (a picture skips views that it does not draw).
  uint64_t of(
      std::span<const NodeId> block, c10::function_ref<uint64_t(NodeId)> label = [](NodeId) { return uint64_t{0}; },
      c10::function_ref<ValueId(ValueId)> origin = [](ValueId v) { return v; });

 private:
  const Graph& graph_;
  std::vector<uint64_t> of_node_;
  // By node and value: the block in which it was last seen, and its number there among nodes or outside values.
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
  std::string_view name;        // without the path: "0", "attention"
  std::string_view class_name;  // "" if unknown
  uint32_t call = 0;            // index among the calls of that name
};

// Returns one past the last of the siblings from `first` on that repeat the first. They have the same class and the
// same content, by its hash, and are one apart by number ("3", "4") or by call, all in the same direction (backward
// visits layers last to first).
size_t end_of_run(std::span<const Sibling> siblings, size_t first, c10::function_ref<uint64_t(size_t)> content);

}  // namespace shadowgraph
