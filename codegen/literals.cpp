#include "codegen/literals.h"

#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>
#include <c10/util/FunctionRef.h>
#include <c10/util/StringUtil.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "shadowgraph/units.h"
#include "support/text.h"

namespace shadowgraph {
namespace {

// The shortest decimal that reads back to the same double.
std::string decimal(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

// In double quotes. Bytes that are not printable ASCII, or are in `escaped`, are replaced by `escape`.
std::string quoted(std::string_view text, std::string_view escaped,
                   c10::function_ref<std::string(unsigned char)> escape) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte >= 0x20 && byte < 0x7f && escaped.find(c) == std::string_view::npos) {
      out += c;
    } else {
      out += escape(byte);
    }
  }
  return out + '"';
}

}  // namespace
}  // namespace shadowgraph

namespace shadowgraph::cpp {

std::string dtype(c10::ScalarType dtype) {
  // Common dtypes have short names; others use their enumerator.
  static constexpr std::array kShort = {at::kByte,         at::kChar,          at::kShort, at::kInt,
                                        at::kLong,         at::kHalf,          at::kFloat, at::kDouble,
                                        at::kComplexFloat, at::kComplexDouble, at::kBool,  at::kBFloat16};
  const bool is_short = std::ranges::find(kShort, dtype) != kShort.end();
  return std::string(is_short ? "at::k" : "at::ScalarType::") + c10::toString(dtype);
}

std::string number(int64_t value) {
  // -9223372036854775808 is the negation of a literal that does not fit an int64_t.
  if (value == std::numeric_limits<int64_t>::min()) return "std::numeric_limits<int64_t>::min()";
  return std::to_string(value);
}

std::string number(double value) {
  if (std::isnan(value)) {
    const auto bits = std::bit_cast<uint64_t>(value);
    // The default NaN has a readable name; others keep their bits.
    if (bits == 0x7ff8000000000000ULL) return "std::numeric_limits<double>::quiet_NaN()";
    return fmt::format("std::bit_cast<double>(uint64_t{{{:#x}}})", bits);
  }
  if (std::isinf(value)) {
    return value < 0 ? "-std::numeric_limits<double>::infinity()" : "std::numeric_limits<double>::infinity()";
  }
  return decimal(value);
}

// Octal escapes, since a hexadecimal one would absorb following digits.
std::string quoted(std::string_view text) {
  return shadowgraph::quoted(text, "?", [](unsigned char byte) { return fmt::format("\\{:03o}", byte); });
}

std::string ints(std::span<const int64_t> list) {
  std::string text;
  for (const int64_t i : list) text += (text.empty() ? "" : ", ") + number(i);
  return "{" + text + "}";
}

std::string layout(int64_t value) {
  if (static_cast<uint64_t>(value) < static_cast<uint64_t>(c10::Layout::NumOptions)) {
    return c10::str("at::k", static_cast<c10::Layout>(value));
  }
  return fmt::format("static_cast<at::Layout>({})", value);
}

std::string memory_format(int64_t value) {
  if (static_cast<uint64_t>(value) < static_cast<uint64_t>(c10::MemoryFormat::NumOptions)) {
    return c10::str("at::MemoryFormat::", static_cast<c10::MemoryFormat>(value));
  }
  return fmt::format("static_cast<at::MemoryFormat>({})", value);
}

// User text in comments: module paths and metadata may contain anything.
std::string comment(std::string_view given) {
  std::string text = plain_text(given);
  for (char& c : text) {
    // A backslash at the end of a line would continue the comment, and "??" could begin a trigraph.
    if (c == '\\' || c == '?') c = ' ';
  }
  return text;
}

}  // namespace shadowgraph::cpp

namespace shadowgraph::python {

std::string dtype(c10::ScalarType dtype) { return "torch." + dtype_name(dtype); }

std::string comment(std::string_view given) {
  std::string text = plain_text(given);
  for (char& c : text) {
    if (c == '\\' || c == '"') c = ' ';
  }
  return text;
}

std::string literal(const nlohmann::json& value) {
  if (value.is_string()) return python::quoted(value.get_ref<const std::string&>());
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  if (value.is_null()) return "None";
  if (!value.is_structured()) return value.dump();
  std::string text;
  for (const auto& [key, element] : value.items()) {
    text += (text.empty() ? "" : ", ") + (value.is_object() ? python::quoted(key) + ": " : "") + literal(element);
  }
  return value.is_object() ? "{" + text + "}" : "[" + text + "]";
}

bool is_keyword(std::string_view name) {
  static constexpr std::string_view kWords[] = {
      "False", "None",     "True",  "and",    "as",   "assert", "async",  "await",    "break",
      "class", "continue", "def",   "del",    "elif", "else",   "except", "finally",  "for",
      "from",  "global",   "if",    "import", "in",   "is",     "lambda", "nonlocal", "not",
      "or",    "pass",     "raise", "return", "try",  "while",  "with",   "yield"};
  return std::ranges::find(kWords, name) != std::end(kWords);
}

std::string attribute(const std::string& object, std::string_view name) {
  return is_keyword(name) ? fmt::format("getattr({}, {})", object, quoted(name)) : fmt::format("{}.{}", object, name);
}

std::string number(double value) {
  if (std::isnan(value)) {
    const auto bits = std::bit_cast<uint64_t>(value);
    if (bits == 0x7ff8000000000000ULL) return "math.nan";
    return fmt::format("struct.unpack('<d', ({:#x}).to_bytes(8, 'little'))[0]", bits);
  }
  if (std::isinf(value)) return value < 0 ? "-math.inf" : "math.inf";
  return decimal(value);
}

std::string quoted(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const Character c = pop_character(text);
    if (c.point == '"' || c.point == '\\') out += '\\';
    if (c.printable()) {
      out += c.bytes;
    } else if (!c.valid) {
      // as os.fsdecode represents such bytes
      out += fmt::format("\\udc{:02x}", static_cast<unsigned char>(c.bytes[0]));
    } else {
      out += c.point < 0x100 ? fmt::format("\\x{:02x}", c.point) : fmt::format("\\U{:08x}", c.point);
    }
  }
  return out + '"';
}

std::string ints(std::span<const int64_t> list) { return fmt::format("[{}]", fmt::join(list, ", ")); }

std::string layout(int64_t value) {
  static constexpr std::pair<c10::Layout, const char*> kLayouts[] = {
      {c10::Layout::Sparse, "sparse_coo"},    {c10::Layout::SparseCsr, "sparse_csr"},
      {c10::Layout::SparseCsc, "sparse_csc"}, {c10::Layout::SparseBsr, "sparse_bsr"},
      {c10::Layout::SparseBsc, "sparse_bsc"}, {c10::Layout::Mkldnn, "_mkldnn"},
      {c10::Layout::Jagged, "jagged"}};
  for (const auto& [layout, name] : kLayouts) {
    if (value == static_cast<int64_t>(layout)) return std::string("torch.") + name;
  }
  return "torch.strided";
}

std::string memory_format(int64_t value) {
  const auto format = static_cast<c10::MemoryFormat>(value);
  if (format == c10::MemoryFormat::Preserve) return "torch.preserve_format";
  if (format == c10::MemoryFormat::ChannelsLast) return "torch.channels_last";
  return format == c10::MemoryFormat::ChannelsLast3d ? "torch.channels_last_3d" : "torch.contiguous_format";
}

}  // namespace shadowgraph::python
