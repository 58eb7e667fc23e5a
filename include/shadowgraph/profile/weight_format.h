// How quantised weights are laid out, as the libraries that write them do: their bits, scales, zero points.
//
//     const WeightFormat gptq = WeightFormat::parse("gptq");           // 4 bits, groups of 128
//     const WeightFormat wide = WeightFormat::parse("gptq:bits=8,group=32");
//     gptq.bytes(4096, 14336);                                         // of a Linear(14336, 4096)
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/export.h"

namespace SHADOWGRAPH_API shadowgraph {

struct WeightFormat {
  // What shares a scale. A row is an output. kGroup means `group` neighbours in a row, kBlock a square of them, and
  // kFlat `group` elements in the order of memory.
  enum class Scales : uint8_t { kTensor, kRow, kGroup, kBlock, kFlat };

  std::string name;   // "gptq"
  std::string title;  // "GPTQ"
  int64_t bits = 0;   // of an element
  Scales scales = Scales::kRow;
  int64_t group = 0;
  int64_t scale_bits = 0;                   // of a scale
  int64_t zero_bits = 0;                    // of a zero point beside each scale
  int64_t column_bytes = 0;                 // of each input: GPTQ's table of groups
  std::optional<c10::ScalarType> computes;  // products in this dtype; none: weights become what activations are

  // int8, int4 (torchao), fp8, fp8-block, int8-dynamic (vLLM, compressed-tensors), gptq, awq, nf4, nf4-double, llm-int8
  // (bitsandbytes), mxfp4. Throws Error for another name, and for options other than bits= and group=.
  static WeightFormat parse(std::string_view text);
  static std::vector<std::string> names();

  int64_t bytes(int64_t rows, int64_t columns) const;  // of a matrix of so many outputs and inputs
};

}  // namespace shadowgraph
