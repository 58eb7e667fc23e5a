#include "ir/analysis/node_hashes.h"

#include <algorithm>

#include "support/same_bits.h"

namespace shadowgraph {

// Hashes only say that arguments may be equal; callers confirm with this.
bool same_arguments(const Graph& graph, std::span<const Argument> a, std::span<const Argument> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](const Argument& x, const Argument& y) {
    if (x.kind != y.kind) return false;
    switch (x.kind) {
      case ArgumentKind::kNone:
        return true;
      case ArgumentKind::kValue:
        return x.ref.value == y.ref.value;
      case ArgumentKind::kInt:
      case ArgumentKind::kFloat:
        // Floats share their bits with `i`, so NaN equals itself and -0.0 is not 0.0.
        return x.i == y.i;
      case ArgumentKind::kBool:
        return x.b == y.b;
      case ArgumentKind::kComplex:
        return std::ranges::equal(graph.complex_parts(x), graph.complex_parts(y), same_bits);
      case ArgumentKind::kString:
      case ArgumentKind::kOpaque:
        // Strings are interned, so equal ids are equal texts.
        return x.string == y.string;
      case ArgumentKind::kConstant:
        return x.constant == y.constant;
      case ArgumentKind::kDevice:
      case ArgumentKind::kGenerator:
        return x.device_type == y.device_type && x.device_index == y.device_index;
      case ArgumentKind::kIntList:
        return std::ranges::equal(graph.ints(x), graph.ints(y));
      case ArgumentKind::kList:
        return same_arguments(graph, graph.list(x), graph.list(y));
    }
    return false;
  });
}

uint64_t hash_of_type(const Graph& graph, ValueId id, uint64_t hash) {
  const Value& value = graph.value(id);
  hash = mixed(hash, static_cast<uint64_t>(value.kind));
  if (value.kind != ValueKind::kTensor) return hash;
  hash = mixed(hash, static_cast<uint64_t>(value.dtype) << 32 | static_cast<uint64_t>(value.layout) << 24 |
                         static_cast<uint64_t>(static_cast<uint8_t>(value.device_type)) << 16 |
                         static_cast<uint64_t>(static_cast<uint8_t>(value.device_index)) << 8);
  hash = mixed(hash, value.rank);
  for (const int64_t size : graph.sizes(id)) hash = mixed(hash, static_cast<uint64_t>(size));
  for (const int64_t stride : graph.strides(id)) hash = mixed(hash, static_cast<uint64_t>(stride));
  return hash;
}

}  // namespace shadowgraph
