// Serving estimates: formats of quantized weights, KV cache capacity and token throughput of an inference engine.
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
  // Elements that share a scale. A row belongs to one output. kGroup: `group` consecutive elements of a row; kBlock: a
  // square of that size; kFlat: `group` consecutive elements in memory order.
  enum class Scales : uint8_t { kTensor, kRow, kGroup, kBlock, kFlat };

  std::string name;   // "gptq"
  std::string title;  // "GPTQ"
  int64_t bits = 0;   // per element
  Scales scales = Scales::kRow;
  int64_t group = 0;
  int64_t scale_bits = 0;                   // per scale
  int64_t zero_bits = 0;                    // zero point per scale
  int64_t column_bytes = 0;                 // per input: group index of GPTQ
  std::optional<c10::ScalarType> computes;  // dtype of matrix products; std::nullopt: that of activations

  // Parses int8, int4 (torchao), fp8, fp8-block, int8-dynamic (vLLM, compressed-tensors), gptq, awq, nf4, nf4-double,
  // llm-int8 (bitsandbytes), mxfp4. Throws Error for other names, and for options other than bits= and group=.
  static WeightFormat parse(std::string_view text);
  static std::vector<std::string> names();

  int64_t bytes(int64_t rows, int64_t columns) const;  // of a matrix with `rows` outputs and `columns` inputs
};

// Estimates the number of concurrent requests of an inference engine on a device, and its latency and throughput.
//
// The engine uses a paged KV cache, as in vLLM. Its memory is a fraction of the device memory; what remains after
// weights, context and the activations of one pass is used for pages. A pass of n requests costs as much as the
// captured program with n sequences of one token. Kernels run without launch overhead (CUDA graphs), and elementwise
// kernels are fused (fuse_groups). Attention reads the whole cache. Quantized weights are read as stored.

// Cache of a layer per request. A layer with several kinds of entries has one CacheLayer for each; those without
// attention kernels, such as compressed entries and keys of indexers, come after all layers.
struct CacheLayer {
  int64_t token_bytes = 0;  // per entry
  int64_t window = 0;       // maximum number of cached tokens; 0: unlimited
  int64_t state_bytes = 0;  // independent of length: states of recurrent layers
  int64_t stride = 1;       // tokens per entry: caches that compress n tokens into one entry
  bool pending = false;     // caches only the tokens after the last full stride, one entry each

  // Bytes of a request of that many tokens, in pages of `page` tokens.
  int64_t bytes(int64_t tokens, int64_t page = 1) const;
};

// Captures forward for `batch` sequences of `tokens` each, without cache and without gradients.
using CaptureForward = std::function<Graph(int64_t batch, int64_t tokens)>;

struct ServingOptions {
  const DeviceSpec* spec = nullptr;            // required
  const Interconnect* interconnect = nullptr;  // for programs with collectives
  int64_t memory = 0;                          // device memory in bytes; 0: the spec's
  double memory_share = 0.9;                   // fraction used by the engine (gpu_memory_utilization)
  int64_t context = 0;                         // tokens per request, including its output
  int64_t prompt = 0;                          // prompt tokens per request; 0: all
  int64_t max_batched_tokens = 8192;           // maximum tokens per pass (max_num_batched_tokens)
  int64_t page = 16;                           // tokens per page
  std::optional<WeightFormat> weights;         // of matrix products; std::nullopt: as in the program
  std::vector<std::string> kept;               // substrings of names of parameters that are not quantized: "lm_head"
  std::vector<std::string> assumptions;        // of the caller, copied to the result

  static const OptionTable<ServingOptions>& table();
};

struct ServingRow {
  int64_t requests = 0;          // concurrent requests
  double next_token = 0;         // seconds per output token of a request at its full length
  double tokens_per_second = 0;  // of all requests
};

struct Serving {
  std::string device;         // title of the spec
  std::string links;          // title of the interconnect, if there are collectives
  int64_t memory = 0;         // of the device, in bytes; likewise below
  int64_t engine = 0;         // available to the engine
  int64_t weights = 0;        // as stored
  int64_t weights_made = 0;   // in the dtype of the program
  int64_t quantized = 0;      // parameters in the format
  std::string format;         // title; "": as in the program
  int64_t activations = 0;    // peak of a pass of max_batched_tokens
  int64_t context_bytes = 0;  // CUDA context and NCCL buffers, assumed
  int64_t pages = 0;          // number of KV cache pages
  int64_t cache = 0;          // bytes of the KV cache
  int64_t token_bytes = 0;    // per additional token of a request, without layers whose window is full
  int64_t request_bytes = 0;  // per request of `tokens`
  int64_t tokens = 0;         // per request
  int64_t prompt = 0;         // tokens
  int64_t requests = 0;       // concurrent requests of that length; 0: none fits
  int64_t longest = 0;        // tokens of the longest single request that fits; 2^40: unlimited
  double first_token = 0;     // time to first token of a single prompt, in seconds; 0 if no request fits
  std::vector<ServingRow> rows;
  std::vector<std::string> assumptions;

  bool fits() const { return requests > 0; }
};

// Throws Error for contradictory options, and for programs without matrix products.
Serving serve(const CaptureForward& capture, const std::vector<CacheLayer>& cache, const ServingOptions& options);

nlohmann::json to_json(const Serving& serving);
std::string to_text(const Serving& serving);

}  // namespace shadowgraph
