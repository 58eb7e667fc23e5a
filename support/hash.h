// Hashing: bitwise comparison, hash combination, a hash index, SHA-256.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shadowgraph {
// Compares doubles by bits: NaN equals itself, and -0.0 differs from 0.0.
constexpr bool same_bits(double a, double b) { return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b); }

// Combines a 64-bit hash with a number, using the finalizer of splitmix64 (full avalanche).
inline uint64_t mixed(uint64_t hash, uint64_t number) {
  uint64_t x = hash * 0x9E3779B97F4A7C15U + number + 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

// An index of items by precomputed 64-bit hashes. A flat table: a lookup costs one cache miss, where a
// std::unordered_map of a million nodes costs three.
class HashIndex {
 public:
  explicit HashIndex(size_t expected) : slots_(std::bit_ceil(2 * expected + 16)) {}

  // Returns the item with this hash for which is_equal(item) is true; if there is none, adds `item`.
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

// Returns the SHA-256 digest (FIPS 180-4) as 64 hexadecimal digits.
std::string sha256(std::string_view bytes);

}  // namespace shadowgraph
