// How quantised weights are laid out, as the libraries that write them do: their bits, scales, zero points.
//
//     const WeightFormat gptq = WeightFormat::parse("gptq");           // 4 bits, groups of 128
//     const WeightFormat wide = WeightFormat::parse("gptq:bits=8,group=32");
//     gptq.bytes(4096, 14336);                                         // of a Linear(14336, 4096)
#pragma once

#include <c10/core/ScalarType.h>
#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/options.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/device_spec.h"

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

// Says how many requests an inference engine holds on a device at once, and how fast it answers them.
//
//     const Serving answer = serve(capture, cache, {.spec = &l4, .context = 8192, .weights = WeightFormat::parse("awq")});
//     answer.requests;                 // of 8,192 tokens each, at once
//     answer.rows.back().next_token;   // seconds
//
// The engine keeps keys and values in pages, as vLLM does. Its memory is a share of the device. Weights, the context
// and the activations of one pass come off, and the rest is pages. A pass of n requests does what the captured program
// does for n sequences of one token. Its kernels follow one another without the host (CUDA graphs), and elementwise
// ones are fused (fuse_groups). Attention reads all that is kept. Quantised weights are read as they are stored.

// What a layer keeps of a request.
struct CacheLayer {
  int64_t token_bytes = 0;  // of each token
  int64_t window = 0;       // tokens at most; 0: all of them
  int64_t state_bytes = 0;  // whatever the length: states of recurrent layers
};

// The program's forward of `batch` sequences of `tokens` each, without a cache, without gradients.
using CaptureForward = std::function<Graph(int64_t batch, int64_t tokens)>;

struct ServingOptions {
  const DeviceSpec* spec = nullptr;            // needed
  const Interconnect* interconnect = nullptr;  // for programs with collectives
  int64_t memory = 0;                          // bytes of the device; 0: the spec's
  double memory_share = 0.9;                   // of the device that the engine takes (gpu_memory_utilization)
  int64_t context = 0;                         // tokens of a request, its answer's too
  int64_t prompt = 0;                          // of them, tokens that it comes with; 0: all
  int64_t tokens_at_once = 8192;               // of a pass at most (max_num_batched_tokens)
  int64_t page = 16;                           // tokens
  std::optional<WeightFormat> weights;         // of matrix products; none: as they are
  std::vector<std::string> kept;               // parts of parameters' names that stay as they are: "lm_head"
  std::vector<std::string> assumptions;        // the caller's, for the answer to repeat

  // What is the engine's alone.
  static const OptionTable<ServingOptions>& table();
};

struct ServingRow {
  int64_t requests = 0;          // at once
  double next_token = 0;         // seconds between tokens of a request, at its full length
  double tokens_per_second = 0;  // of all
};

struct Serving {
  std::string device;         // title of the spec
  std::string links;          // title of the interconnect, with collectives
  int64_t memory = 0;         // bytes, as all of these; of the device
  int64_t engine = 0;         // the engine's share
  int64_t weights = 0;        // as they are stored
  int64_t weights_made = 0;   // as the program made them
  int64_t quantised = 0;      // parameters in the format
  std::string format;         // title; empty: as made
  int64_t activations = 0;    // most in a pass of tokens_at_once
  int64_t context_bytes = 0;  // CUDA's, assumed, with NCCL's
  int64_t pages = 0;          // for keys and values
  int64_t cache = 0;          // for them, in bytes
  int64_t token_bytes = 0;    // that one more token of a request takes; windows that are full take none
  int64_t request_bytes = 0;  // of a request of `tokens`
  int64_t tokens = 0;         // of a request
  int64_t prompt = 0;         // tokens
  int64_t requests = 0;       // of that length, at once; 0: not even one
  int64_t longest = 0;        // tokens of the longest request that fits alone; 2^40: any
  double first_token = 0;     // seconds, of a prompt alone; 0 if no request fits
  std::vector<ServingRow> rows;
  std::vector<std::string> assumptions;

  bool fits() const { return requests > 0; }
};

// Throws Error for options that contradict each other, and for programs without matrix products.
Serving serve(const CaptureForward& capture, const std::vector<CacheLayer>& cache, const ServingOptions& options);

nlohmann::json to_json(const Serving& serving);
std::string to_text(const Serving& serving);

}  // namespace shadowgraph
