// Spelling of dtypes, layouts, memory formats, devices, numbers, strings and bytes in the text form.
//
// Spelling depends only on this file: not on the locale, the registered backends, or the name of the PrivateUse1 device
// in this process. Every `append_x` has a `parse_x` that restores the same bits. Parsers return an empty optional
// instead of throwing: the caller has the line and column.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/graph/target.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/graph/types.h"

namespace shadowgraph {

// "strided", "sparse_coo", "sparse_csr", "mkldnn", ...; empty if `layout` is not valid.
std::string_view layout_word(c10::Layout layout);
std::optional<c10::Layout> parse_layout(std::string_view word);

// "contiguous", "preserve", "channels_last", "channels_last_3d"; empty if `format` is not valid.
std::string_view memory_format_word(c10::MemoryFormat format);
std::optional<c10::MemoryFormat> parse_memory_format(std::string_view word);

// "cpu", "cuda:0": the index is omitted if it is -1.
void append_device(std::string& out, c10::Device device);
std::string device_text(c10::Device device);

// Returns the word for a number in an argument of a dtype, layout or memory format; "" for other types and numbers.
// These numbers are internal to libtorch and may change.
std::string_view word_of_number(TypeClass type, int64_t number);

void append_int(std::string& out, int64_t value);
// Appends the shortest text that reads back to the same bits and cannot be mistaken for an int: 1.0, -0.0, 1e-05, inf,
// nan. A NaN with other than the default bits is written as nan(7ff8000000000001).
void append_float(std::string& out, double value);
// Parses all of `text` as a number, nan(...) included.
std::optional<double> parse_float(std::string_view text);

// Appends a quoted string: printable ASCII unchanged except the second # of ##; \" \\ \n \t \r; every other byte as
// \xhh. Any bytes round-trip.
void append_quoted(std::string& out, std::string_view text);
// The bytes between the quotes; empty if an escape is invalid.
std::optional<std::string> unquote(std::string_view between_quotes);

void append_base64(std::string& out, std::span<const uint8_t> bytes);
std::optional<std::vector<uint8_t>> parse_base64(std::string_view text);

struct ModeWord {
  bool NodeFlags::*flag;
  std::string_view word;
};
constexpr ModeWord kModeWords[] = {{&NodeFlags::grad_mode, "grad_mode"},
                                   {&NodeFlags::inference_mode, "inference_mode"},
                                   {&NodeFlags::autocast_cpu, "autocast_cpu"},
                                   {&NodeFlags::autocast_cuda, "autocast_cuda"}};

// The libtorch version that this library was compiled against: "2.13.0".
std::string_view libtorch_version();

}  // namespace shadowgraph
