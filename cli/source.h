// Loads or captures a graph from a built-in model, a TorchScript file, a torch.export archive, a saved graph or Python.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/capture/attention_kernel.h"
#include "shadowgraph/capture/capture.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/names.h"

namespace shadowgraph::cli {

// Prefill and decode are inference with a KV cache. Serve simulates an engine instead of capturing a step (`fit` only).
enum class CaptureMode : uint8_t { kInfer, kTrain, kPrefill, kDecode, kServe };
enum class OptimizerKind : uint8_t { kSgd, kAdam, kAdamW, kAdafactor };  // adafactor: Python models only
enum class CacheKind : uint8_t { kGrown, kStatic };  // grown by concatenation, or written to in place
constexpr auto enum_names(CaptureMode) {
  return names_in_order<CaptureMode>("infer", "train", "prefill", "decode", "serve");
}
constexpr auto enum_names(OptimizerKind) { return names_in_order<OptimizerKind>("sgd", "adam", "adamw", "adafactor"); }

struct CaptureRequest {
  std::string source;  // model name, file, or some.module:factory or hf:CONFIG.json
  CaptureMode mode = CaptureMode::kInfer;
  OptimizerKind optimizer = OptimizerKind::kSgd;
  bool foreach = true;  // on CUDA, as torch.optim by default; false in plan, shard and pipeline, whose scripts say so
  c10::Device device = c10::kCUDA;               // CPU, or CUDA with an index or without
  std::optional<c10::ScalarType> dtype = {};     // kFloat, kBFloat16; Python: also kHalf; empty: the model's own
  std::optional<c10::ScalarType> autocast = {};  // kBFloat16 or kHalf
  AttentionKernel attention = AttentionKernel::kDevice;
  int64_t batch = 0;  // 0: the model's default
  int64_t seq = 0;
  int64_t layers = 0;                   // of a built-in model; 0: all layers
  int64_t context = 0;                  // decode: tokens in the cache
  std::optional<CacheKind> cache = {};  // empty: not given, grown
  bool steady_state = false;            // record the second step, with optimizer state present
  std::vector<std::string> inputs;      // TorchScript, torch.export, Python: one spec per input; may use `batch`, `seq`
  std::vector<std::string> host_reads;  // finite, mask-full, NAME=VALUE: results of data-dependent reads
  std::vector<std::string> data_sizes;  // NAME=N
  TrainingOptions training;
  int run_steps = 0;       // captures this many steps of a training run in one graph; 0: one step
  std::string checkpoint;  // modules to checkpoint; patterns as in the pass `checkpoint`
  int world = 0;           // Python: size of the torch.distributed world, captured as rank 0; 0: not distributed
  bool debug = false;      // Python: show the traceback of exceptions
  bool untrusted = false;  // refuse sources that run code

  bool trains() const { return mode == CaptureMode::kTrain; }
  bool generates() const { return mode == CaptureMode::kPrefill || mode == CaptureMode::kDecode; }
};

struct LoadedGraph {
  Graph graph;
  std::optional<double> capture_seconds;  // absent for a graph read from a file
  std::string name;                       // for file names and titles
};

enum class SourceKind { kModel, kTorchScript, kExported, kGraph, kPython };
// Detects the kind by the file's contents, not its name. Throws Error for anything else.
SourceKind kind_of_source(const std::string& source);
// Throws Error if capturing the source runs code that it contains or names, for --untrusted.
void refuse_code(const std::string& source);

// Number of layers of a built-in model or a transformers configuration; 0 for others and for files.
struct SourceLayers {
  int64_t count = 0;
  int64_t first = 0;  // leading layers of another kind than the rest
};
SourceLayers layers_of_source(const std::string& source);
// Name for titles.
std::string name_of_source(const std::string& source);
// Returns whether the source can be captured with other values of `size`, "batch" or "seq".
bool has_size(const CaptureRequest& request, std::string_view size);
// The request for Python (cli/tool.h). Throws Error for invalid inputs.
nlohmann::json python_request(const CaptureRequest& request);

LoadedGraph load(const CaptureRequest& request);
// Reads a saved graph, as text or as JSON from to_json().
Graph read_saved_graph(const std::string& path);
// Captures the first steps of a training run (capture_training_run) without checkpoints; throws Error for saved graphs.
LoadedGraph load_run(CaptureRequest request, int steps);

}  // namespace shadowgraph::cli
