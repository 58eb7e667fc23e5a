#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "shadowgraph/error.h"
#include "shadowgraph/plan/serving.h"
#include "shadowgraph/units.h"
#include "support/text.h"

namespace shadowgraph {

// Storage layouts, from the sources of the libraries: name, title, bits, scales, group, scale_bits, zero_bits,
// column_bytes, computes.
static const std::array<WeightFormat, 13>& known_formats() {
  using enum WeightFormat::Scales;
  static const std::array<WeightFormat, 13> formats = {{
      {"int8", "int8 (torchao)", 8, kRow, 0, 16, 0, 0, {}},
      {"int4", "int4 (torchao)", 4, kGroup, 128, 16, 16, 0, {}},
      {"fp8", "fp8", 8, kTensor, 0, 32, 0, 0, c10::kFloat8_e4m3fn},
      {"fp8-row", "fp8 with a scale per row", 8, kRow, 0, 32, 0, 0, c10::kFloat8_e4m3fn},
      {"w4a16", "int4 without zero points (compressed-tensors)", 4, kGroup, 128, 16, 0, 0, {}},
      {"fp8-block", "fp8 in blocks", 8, kBlock, 128, 32, 0, 0, c10::kFloat8_e4m3fn},
      {"int8-dynamic", "int8 with int8 activations", 8, kRow, 0, 32, 0, 0, c10::kChar},
      {"gptq", "GPTQ", 4, kGroup, 128, 16, 4, 4, {}},
      {"awq", "AWQ", 4, kGroup, 128, 16, 4, 0, {}},
      {"nf4", "NF4 (bitsandbytes)", 4, kFlat, 64, 32, 0, 0, {}},
      // An 8-bit scale per block, and a float32 per 256 of these.
      {"nf4-double", "NF4 with double quantization (bitsandbytes)", 4, kFlat, 64, 8, 0, 0, {}},
      {"llm-int8", "LLM.int8() (bitsandbytes)", 8, kRow, 0, 32, 0, 0, {}},
      {"mxfp4", "MXFP4", 4, kGroup, 32, 8, 0, 0, {}},
  }};
  return formats;
}

static int64_t positive(std::string_view text, std::string_view option) {
  const auto value = parse_number<int64_t>(text);
  if (value && *value >= 1 && *value <= (1 << 20)) return *value;
  throw Error(fmt::format("'{}': expected a whole number, for example group=128", option));
}

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

WeightFormat WeightFormat::parse(std::string_view text) {
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  const auto found = std::ranges::find(known_formats(), name, &WeightFormat::name);
  if (found == known_formats().end()) {
    throw Error(fmt::format("unknown weight format '{}'; expected one of {}", name, fmt::join(names(), ", ")));
  }
  WeightFormat format = *found;
  std::string_view rest = colon == text.npos ? std::string_view() : text.substr(colon + 1);
  while (!rest.empty()) {
    const std::string_view option = rest.substr(0, rest.find(','));
    rest = option.size() == rest.size() ? std::string_view() : rest.substr(option.size() + 1);
    if (option.starts_with("bits=")) {
      format.bits = positive(option.substr(5), option);
      if (format.zero_bits == 4) format.zero_bits = format.bits;  // packed like the weights
    } else if (option.starts_with("group=") && format.group > 0) {
      format.group = positive(option.substr(6), option);
    } else {
      throw Error(fmt::format("weights '{}': '{}' is not bits=N or, for formats with groups, group=N", text, option));
    }
  }
  if (format.bits > 8) throw Error(fmt::format("weights '{}': at most 8 bits", text));
  if (format.group > 0) format.title += fmt::format(", {} bits, groups of {}", format.bits, format.group);
  return format;
}

std::vector<std::string> WeightFormat::names() {
  std::vector<std::string> names;
  for (const WeightFormat& format : known_formats()) names.push_back(format.name);
  return names;
}

int64_t WeightFormat::bytes(int64_t rows, int64_t columns) const {
  const int64_t elements = saturating_multiply(rows, columns);
  const int64_t scale_count = [&] {
    switch (scales) {
      case Scales::kTensor:
        return int64_t{1};
      case Scales::kRow:
        return rows;
      case Scales::kGroup:
        return saturating_multiply(rows, ceil_div(columns, group));
      case Scales::kBlock:
        return saturating_multiply(ceil_div(rows, group), ceil_div(columns, group));
      case Scales::kFlat:
        break;
    }
    return ceil_div(elements, group);
  }();
  int64_t total = ceil_div(saturating_multiply(elements, bits), 8);
  total = saturating_add(total, ceil_div(saturating_multiply(scale_count, scale_bits + zero_bits), 8));
  if (scales == Scales::kFlat && scale_bits == 8) total += 4 * ceil_div(scale_count, 256);
  return saturating_add(total, saturating_multiply(columns, column_bytes));
}

}  // namespace shadowgraph
