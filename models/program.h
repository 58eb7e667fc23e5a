#pragma once

#include <cstdint>

#include "models/model.h"
#include "shadowgraph/capture/capture.h"

namespace shadowgraph::models {

// Forward and loss on the model's batch. Without an optimizer a training step ends with backward. The program shares
// the model's module and batch; the module must outlive it.
ProgramToCapture program_of(const BuiltModel& model, torch::optim::Optimizer* optimizer = nullptr);

// A step of inference with a key-value cache: the whole prompt at once (prefill), or one token (decode). Logits are
// those of the last token only, as in Hugging Face's generate().
struct GenerationStep {
  bool prefill = false;       // the model's whole input, with an empty cache; otherwise one token
  int64_t context = 0;        // decode: number of tokens in the cache
  bool static_cache = false;  // preallocated for the whole context
};

// Captures one step of a model that was built for inference (batch, and seq for prefill, are those of its inputs). The
// cache's tensors are inputs "past.0.keys", ...; tensors replaced by a growing cache are freed, as in the program.
// Outputs: the logits, then the cache. `other` metadata: generation, context, cache, cache_bytes_per_token,
// cache_bytes, positions. Throws std::invalid_argument for models without a cache, a context below 1, and more tokens
// than the model has positions.
CaptureResult capture_generation(const BuiltModel& model, const GenerationStep& step);

}  // namespace shadowgraph::models
