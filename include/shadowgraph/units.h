// Formatting and parsing of byte counts, counts, durations and dtype names.
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

// Parse a positive number with an optional unit, which may be separated by blanks and is case-insensitive. Return
// std::nullopt for invalid text, fractions of a byte or unit, and values that do not fit in int64.
std::optional<int64_t> parse_count(
    std::string_view text);  // "512", "8k", "16M", "15T": powers of 1,000; "8Ki", "16Mi": of 1,024
std::optional<int64_t> parse_bytes(std::string_view text);  // "24GiB": powers of 1,024; "80GB": of 1,000; rounded down
std::optional<double> parse_duration(std::string_view text);  // seconds: "90s", "20min", "36h", "14d"

std::string dtype_name(c10::ScalarType dtype);                           // "float32", as in Python's torch
std::optional<c10::ScalarType> parse_dtype_name(std::string_view name);  // std::nullopt if there is no such dtype

// Saturating arithmetic: results that overflow are clamped to the largest int64, for absurd shapes in a file.

inline int64_t saturating_multiply(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<int64_t>::max() : product;
}

inline int64_t saturating_add(int64_t a, int64_t b) {
  int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<int64_t>::max() : sum;
}

}  // namespace shadowgraph
