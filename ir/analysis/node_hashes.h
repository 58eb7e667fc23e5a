// Hashes and equality of nodes' structure: what CSE and the search for repeats look nodes up by.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "shadowgraph/graph.h"
#include "support/hash_index.h"

namespace shadowgraph {

// Hashes arguments, list by list; of_value(ValueId) says what a value counts as. Floats count by their bits, strings
// and constants by id, so hashes mean something within one graph.
template <class F>
uint64_t hash_of(const Graph& graph, std::span<const Argument> arguments, uint64_t hash, F&& of_value) {
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
        hash = mixed(hash_of(graph, graph.list(a), hash, of_value), graph.list(a).size());
        break;
      case ArgumentKind::kDevice:
      case ArgumentKind::kGenerator:
        hash = mixed(hash, static_cast<uint64_t>(static_cast<uint8_t>(a.device_type)) << 8 |
                               static_cast<uint8_t>(a.device_index));
        break;
      case ArgumentKind::kString:
      case ArgumentKind::kOpaque:
        hash = mixed(hash, a.string.index);
        break;
      case ArgumentKind::kConstant:
        hash = mixed(hash, a.constant.index);
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

// Equal to the bit: -0.0 is not 0.0, 1 is not true, values are equal if they are the same.
bool same_arguments(const Graph& graph, std::span<const Argument> a, std::span<const Argument> b);

// dtype, sizes, strides, device, layout; of scalars the kind. Storage and offset are left out.
uint64_t hash_of_type(const Graph& graph, ValueId value, uint64_t hash);

}  // namespace shadowgraph
