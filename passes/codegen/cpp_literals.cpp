// Spells dtypes, numbers, strings and layouts as C++ literals that compile back to the same bits.
#include "passes/codegen/cpp_literals.h"

#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>
#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <limits>

#include "passes/codegen/literals.h"
#include "support/printable.h"

namespace shadowgraph::cpp {

std::string dtype(c10::ScalarType dtype) {
  switch (dtype) {
    // The common ones have short names; the others are spelled by their enumerator.
    case at::kByte:
      return "at::kByte";
    case at::kChar:
      return "at::kChar";
    case at::kShort:
      return "at::kShort";
    case at::kInt:
      return "at::kInt";
    case at::kLong:
      return "at::kLong";
    case at::kHalf:
      return "at::kHalf";
    case at::kFloat:
      return "at::kFloat";
    case at::kDouble:
      return "at::kDouble";
    case at::kBool:
      return "at::kBool";
    case at::kBFloat16:
      return "at::kBFloat16";
    case at::kComplexFloat:
      return "at::kComplexFloat";
    case at::kComplexDouble:
      return "at::kComplexDouble";
    default:
      return std::string("at::ScalarType::") + c10::toString(dtype);
  }
}

std::string number(int64_t value) {
  // -9223372036854775808 is the negation of a literal that int64_t cannot hold.
  if (value == std::numeric_limits<int64_t>::min()) return "std::numeric_limits<int64_t>::min()";
  return std::to_string(value);
}

std::string number(double value) {
  if (std::isnan(value)) {
    const auto bits = std::bit_cast<uint64_t>(value);
    // The usual NaN has a readable name; any other keeps its bits.
    if (bits == 0x7ff8000000000000ULL) return "std::numeric_limits<double>::quiet_NaN()";
    return fmt::format("std::bit_cast<double>(uint64_t{{{:#x}}})", bits);
  }
  if (std::isinf(value)) {
    return value < 0 ? "-std::numeric_limits<double>::infinity()" : "std::numeric_limits<double>::infinity()";
  }
  return decimal(value);
}

// Octal escapes: a hexadecimal one would go on over the digits that follow it.
std::string quoted(std::string_view text) {
  return shadowgraph::quoted(text, "?", [](unsigned char byte) { return fmt::format("\\{:03o}", byte); });
}

std::string ints(std::span<const int64_t> list) {
  std::string text;
  for (const int64_t i : list) text += (text.empty() ? "" : ", ") + number(i);
  return "{" + text + "}";
}

std::string layout(int64_t value) {
  switch (static_cast<c10::Layout>(value)) {
    case c10::Layout::Strided:
      return "at::kStrided";
    case c10::Layout::Sparse:
      return "at::kSparse";
    case c10::Layout::SparseCsr:
      return "at::kSparseCsr";
    case c10::Layout::Mkldnn:
      return "at::kMkldnn";
    case c10::Layout::SparseCsc:
      return "at::kSparseCsc";
    case c10::Layout::SparseBsr:
      return "at::kSparseBsr";
    case c10::Layout::SparseBsc:
      return "at::kSparseBsc";
    case c10::Layout::Jagged:
      return "at::kJagged";
    default:
      return fmt::format("static_cast<at::Layout>({})", value);
  }
}

std::string memory_format(int64_t value) {
  switch (static_cast<c10::MemoryFormat>(value)) {
    case c10::MemoryFormat::Contiguous:
      return "at::MemoryFormat::Contiguous";
    case c10::MemoryFormat::Preserve:
      return "at::MemoryFormat::Preserve";
    case c10::MemoryFormat::ChannelsLast:
      return "at::MemoryFormat::ChannelsLast";
    case c10::MemoryFormat::ChannelsLast3d:
      return "at::MemoryFormat::ChannelsLast3d";
    default:
      return fmt::format("static_cast<at::MemoryFormat>({})", value);
  }
}

// Text of users in comments: module paths and metadata may hold anything.
std::string comment(std::string_view given) {
  std::string text = plain_text(given);
  for (char& c : text) {
    // A backslash at a line's end would continue the comment, and "??" could begin a trigraph.
    if (c == '\\' || c == '?') c = ' ';
  }
  return text;
}

}  // namespace shadowgraph::cpp
