// What literals of C++ and of Python have in common: cpp_literals.h, python_literals.h.
#include "codegen/literals.h"

#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>
#include <c10/util/FunctionRef.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>

#include "support/text.h"

namespace shadowgraph {

// A finite number: "0.1", "2.0", "1e+300".
std::string decimal(double value);
// In double quotes. What is no printable ASCII, and what is in `escaped`, becomes what `escape` gives for the byte.
std::string quoted(std::string_view text, std::string_view escaped,
                   c10::function_ref<std::string(unsigned char)> escape);

// Has the spelling that C++ and Python share. Decimals are the shortest that read back to the same double; in quoted
// strings each language gives its own escapes.

std::string decimal(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

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

}  // namespace shadowgraph

// Spells dtypes, numbers, strings and layouts as C++ literals that compile back to the same bits.

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

// Spells dtypes, numbers, strings and layouts as Python, such that they evaluate to the same bits.

namespace shadowgraph::python {

std::string dtype(c10::ScalarType dtype) {
  switch (dtype) {
    case at::kByte:
      return "torch.uint8";
    case at::kChar:
      return "torch.int8";
    case at::kShort:
      return "torch.int16";
    case at::kInt:
      return "torch.int32";
    case at::kLong:
      return "torch.int64";
    case at::kHalf:
      return "torch.float16";
    case at::kFloat:
      return "torch.float32";
    case at::kDouble:
      return "torch.float64";
    case at::kComplexHalf:
      return "torch.complex32";
    case at::kComplexFloat:
      return "torch.complex64";
    case at::kComplexDouble:
      return "torch.complex128";
    case at::kBFloat16:
      return "torch.bfloat16";
    default: {
      std::string name = c10::toString(dtype);
      for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      return "torch." + name;
    }
  }
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
    const Character c = take_character(text);
    if (c.point == '"' || c.point == '\\') out += '\\';
    if (c.printable()) {
      out += c.bytes;
    } else if (!c.valid) {
      out += fmt::format("\\udc{:02x}", static_cast<unsigned char>(c.bytes[0]));  // as os.fsdecode has such bytes
    } else {
      out += c.point < 0x100 ? fmt::format("\\x{:02x}", c.point) : fmt::format("\\U{:08x}", c.point);
    }
  }
  return out + '"';
}

std::string ints(std::span<const int64_t> list) { return fmt::format("[{}]", fmt::join(list, ", ")); }

// A graph has layouts and memory formats as c10's integers.
std::string layout(int64_t value) {
  switch (static_cast<c10::Layout>(value)) {
    case c10::Layout::Sparse:
      return "torch.sparse_coo";
    case c10::Layout::SparseCsr:
      return "torch.sparse_csr";
    case c10::Layout::SparseCsc:
      return "torch.sparse_csc";
    case c10::Layout::SparseBsr:
      return "torch.sparse_bsr";
    case c10::Layout::SparseBsc:
      return "torch.sparse_bsc";
    case c10::Layout::Mkldnn:
      return "torch._mkldnn";
    case c10::Layout::Jagged:
      return "torch.jagged";
    default:
      return "torch.strided";
  }
}

std::string memory_format(int64_t value) {
  switch (static_cast<c10::MemoryFormat>(value)) {
    case c10::MemoryFormat::Preserve:
      return "torch.preserve_format";
    case c10::MemoryFormat::ChannelsLast:
      return "torch.channels_last";
    case c10::MemoryFormat::ChannelsLast3d:
      return "torch.channels_last_3d";
    default:
      return "torch.contiguous_format";
  }
}

}  // namespace shadowgraph::python
