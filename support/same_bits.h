// Compares doubles by their bits: NaN equals itself, and -0.0 is not 0.0.
#pragma once

#include <bit>
#include <cstdint>

namespace shadowgraph {

constexpr bool same_bits(double a, double b) { return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b); }

}  // namespace shadowgraph
