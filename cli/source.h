// Where a graph comes from: a built-in model, a TorchScript file, an archive of torch.export, a saved graph, or Python.
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

// Prefill and decode are inference with a cache of keys and values. Serve: no capture, but what an engine does (`fit`).
enum class CaptureMode : uint8_t { kInfer, kTrain, kPrefill, kDecode, kServe };
enum class OptimizerKind : uint8_t { kSgd, kAdam, kAdamW, kAdafactor };  // adafactor: of models in Python
enum class CacheKind : uint8_t { kGrown, kStatic };  // grown by concatenation, or written to in place
// As options spell them.
constexpr auto enum_names(CaptureMode) {
  return names_in_order<CaptureMode>("infer", "train", "prefill", "decode", "serve");
}
constexpr auto enum_names(OptimizerKind) { return names_in_order<OptimizerKind>("sgd", "adam", "adamw", "adafactor"); }

struct CaptureRequest {
  std::string source;  // model name, file, or some.module:factory or hf:CONFIG.json
  CaptureMode mode = CaptureMode::kInfer;
  OptimizerKind optimizer = OptimizerKind::kSgd;
  c10::Device device = c10::kCUDA;               // CPU, or CUDA with an index or without
  std::optional<c10::ScalarType> dtype = {};     // kFloat, kBFloat16; of Python kHalf; nothing: as the program was made
  std::optional<c10::ScalarType> autocast = {};  // kBFloat16 or kHalf
  AttentionKernel attention = AttentionKernel::kDevices;
  int64_t batch = 0;  // 0: the model's default
  int64_t seq = 0;
  int64_t layers = 0;                   // of a built-in model; 0: all
  int64_t context = 0;                  // decode: tokens in the cache
  std::optional<CacheKind> cache = {};  // nothing: grown, and not asked for
  bool steady_state = false;            // record the second step, with optimizer state present
  std::vector<std::string> inputs;      // TorchScript, torch.export, Python: one spec an input; batch, seq are those
  std::vector<std::string> host_reads;  // finite, mask-full, NAME=VALUE: what the program reads and data decides
  std::vector<std::string> data_sizes;  // NAME=N
  TrainingOptions training;
  int run_steps = 0;       // that many steps of a training run as one graph; 0: one step
  std::string checkpoint;  // modules whose activations backward computes again; patterns as of the pass
  int world = 0;           // of Python: processes of torch.distributed, of which this is rank 0; 0: it is alone
  bool debug = false;      // of Python: where the program raised

  bool trains() const { return mode == CaptureMode::kTrain; }
  bool generates() const { return mode == CaptureMode::kPrefill || mode == CaptureMode::kDecode; }
};

struct LoadedGraph {
  Graph graph;
  std::optional<double> capture_seconds;  // absent for a graph read from a file
  std::string name;                       // for file names and titles
};

enum class SourceKind { kModel, kTorchScript, kExported, kGraph, kPython };
// By what the file holds, not by its name. Throws Error, listing what would be accepted, if it is none of these.
SourceKind kind_of_source(const std::string& source);

// How many layers a built-in model or a configuration of transformers has; 0 for others and for files.
struct SourceLayers {
  int64_t count = 0;
  int64_t first = 0;  // of them come first and are of another kind than the rest
};
SourceLayers layers_of_source(const std::string& source);
// What it is called in titles.
std::string name_of_source(const std::string& source);
// Whether it may be captured at this size, "batch" or "seq".
bool has_size(const CaptureRequest& request, std::string_view size);
// What Python is told (cli/tool.h). Throws Error for inputs that are wrong.
nlohmann::json python_request(const CaptureRequest& request);

LoadedGraph load(const CaptureRequest& request);
// A saved graph: text, or JSON as to_json() has it.
Graph read_saved_graph(const std::string& path);
// The first steps of a training run (capture_training_run), without checkpoints. Throws Error for a graph file.
LoadedGraph load_run(CaptureRequest request, int steps);

}  // namespace shadowgraph::cli
