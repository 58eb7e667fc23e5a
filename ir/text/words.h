// The words of the text form: how dtypes, layouts, memory formats, devices, numbers, strings and bytes are spelled.
//
// Spelling depends on nothing but this file: not on the locale, on which backends are registered, or on how this
// process renamed its PrivateUse1 device. Every `append_x` has a `parse_x` (in the parser for numbers) that gives the
// same bits back. Parsers return an empty optional rather than throw: the caller knows line and column.
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

#include "shadowgraph/graph/text.h"
#include "shadowgraph/graph/types.h"

namespace shadowgraph {

// "strided", "sparse_coo", "sparse_csr", "mkldnn", ...; empty if `layout` is no layout.
std::string_view layout_word(c10::Layout layout);
std::optional<c10::Layout> parse_layout(std::string_view word);

// "contiguous", "preserve", "channels_last", "channels_last_3d"; empty if `format` is none of them.
std::string_view memory_format_word(c10::MemoryFormat format);
std::optional<c10::MemoryFormat> parse_memory_format(std::string_view word);

// "cpu", "cuda:0": the index is written if the device has one (is not -1).
void append_device(std::string& out, c10::Device device);
std::string device_text(c10::Device device);

void append_int(std::string& out, int64_t value);
// Appends the shortest text that reads back to the same bits and is never mistaken for an int: 1.0, -0.0, 1e-05, inf,
// nan. A NaN that is not the usual one is nan(7ff8000000000001).
void append_float(std::string& out, double value);
// The whole of `text` as a number; nan(...) included.
std::optional<double> parse_float(std::string_view text);

// "quoted": printable ASCII as it is, \" \\ \n \t \r, every other byte as \xhh. Any bytes come back.
void append_quoted(std::string& out, std::string_view text);
// The bytes between the quotes; empty if an escape is broken.
std::optional<std::string> unquote(std::string_view between_quotes);

void append_base64(std::string& out, std::span<const uint8_t> bytes);
std::optional<std::vector<uint8_t>> parse_base64(std::string_view text);

// The libtorch version this library was compiled against: "2.13.0".
std::string_view libtorch_version();

}  // namespace shadowgraph
