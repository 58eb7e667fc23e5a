// Hashes and equality of nodes' structure: what CSE and the search for repeats look nodes up by.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "shadowgraph/graph.h"

namespace shadowgraph {

// One more number in a 64-bit hash: the finalizer of splitmix64, whose every bit depends on every bit.
inline uint64_t mixed(uint64_t hash, uint64_t number) {
  uint64_t x = hash * 0x9E3779B97F4A7C15U + number + 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

// Items found again by their hash. One flat table: a lookup costs one cache miss, where a std::unordered_map of a
// million nodes costs three.
class HashIndex {
 public:
  explicit HashIndex(size_t expected) : slots_(std::bit_ceil(2 * expected + 16)) {}

  // The item with this hash for which is_equal(item) holds; if there is none, `item`, which is then in the table.
  template <class F>
  uint32_t& find_or_add(uint64_t hash, uint32_t item, F&& is_equal) {
    if (2 * ++count_ > slots_.size()) grow();
    size_t at = hash & (slots_.size() - 1);
    for (; slots_[at].item != kFree; at = (at + 1) & (slots_.size() - 1)) {
      if (slots_[at].hash == hash && is_equal(slots_[at].item)) {
        --count_;
        return slots_[at].item;
      }
    }
    slots_[at] = {hash, item};
    return slots_[at].item;
  }

 private:
  static constexpr uint32_t kFree = ~uint32_t{0};
  struct Slot {
    uint64_t hash = 0;
    uint32_t item = kFree;
  };
  void grow() {
    std::vector<Slot> old(2 * slots_.size());
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.item == kFree) continue;
      size_t at = slot.hash & (slots_.size() - 1);
      while (slots_[at].item != kFree) at = (at + 1) & (slots_.size() - 1);
      slots_[at] = slot;
    }
  }

  std::vector<Slot> slots_;
  size_t count_ = 0;
};

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
