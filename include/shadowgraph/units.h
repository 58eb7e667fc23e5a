// How figures are written for people, and the names of dtypes.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "shadowgraph/export.h"

namespace SHADOWGRAPH_API shadowgraph {

std::string human_bytes(int64_t bytes);  // "0 B", "512 B", "12.31 KiB", "1.04 GiB": powers of 1024
std::string human_count(
    int64_t count);  // "0", "999", "3.72 K", "924.84 M", "7.44 G", "8.15 T", "1.20 P": powers of 1000
std::string exact_count(int64_t count);     // "25,557,032"
std::string human_seconds(double seconds);  // "0 s", "3.20 us", "12.5 ms", "1.04 s"

// Quantities as people write them: a number above 0 and at most one unit, blanks allowed between. Letters may have
// either case. std::nullopt for other text, fractions of a whole and what int64 cannot hold.
std::optional<int64_t> parse_count(
    std::string_view text);  // "512", "8k", "16M", "15T": powers of 1,000; "8Ki", "16Mi": of 1,024
std::optional<int64_t> parse_bytes(std::string_view text);  // "24GiB": powers of 1,024; "80GB": of 1,000; rounded down
std::optional<double> parse_duration(std::string_view text);  // seconds: "90s", "20min", "36h", "14d"

std::string dtype_name(c10::ScalarType dtype);                           // "float32", as Python's torch writes it
std::optional<c10::ScalarType> parse_dtype_name(std::string_view name);  // empty if no dtype is called so

// Sums and products that stop at the largest int64 where they would overflow: absurd shapes from a file must not be
// undefined behaviour.

inline int64_t saturating_multiply(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<int64_t>::max() : product;
}

inline int64_t saturating_add(int64_t a, int64_t b) {
  int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<int64_t>::max() : sum;
}

}  // namespace shadowgraph
