// Spells dtypes, numbers, strings and layouts as Python, such that they evaluate to the same bits.
#include "passes/codegen/python_literals.h"

#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <bit>
#include <cmath>

#include "passes/codegen/literals.h"
#include "support/printable.h"

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
