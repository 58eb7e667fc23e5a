// A built-in model as the program that core/capture captures.
//
//     BuiltModel model = build("gpt2", {.tiny = true});
//     torch::optim::AdamW adamw(model.module->parameters());
//     Capture step = capture_training_step(program_of(model, &adamw));
#pragma once

#include <cstdint>

#include "models/model.h"
#include "shadowgraph/capture/capture.h"

namespace shadowgraph::models {

// Forward and loss on the model's own batch. Without an optimizer a training step ends with backward. The program
// shares the model's module and batch; the module must outlive it.
ProgramToCapture program_of(const BuiltModel& model, torch::optim::Optimizer* optimizer = nullptr);

// Inference as it is served: the prompt at once (prefill), then a token at a time (decode), with a cache of keys and
// values. Logits are those of the last token alone, as Hugging Face's generate() asks for.
struct GenerationStep {
  bool prefill = false;       // all of the model's input at once, the cache being empty; otherwise one token
  int64_t context = 0;        // decode: tokens in the cache before this one
  bool static_cache = false;  // allocated for the whole context at once, and not grown
};

// Records one step of a model that was built for inference (batch and, for prefill, seq as its inputs have them). The
// cache's tensors are inputs "past.0.keys", ...; what a grown layer replaces dies there, as in the program. Outputs:
// the logits, then the cache. `other` metadata: generation, context, cache, cache_bytes_per_token, cache_bytes,
// positions.
// Throws std::invalid_argument for models without a cache, a context below 1, and more tokens than a model has
// positions.
Capture capture_generation(const BuiltModel& model, const GenerationStep& step);

}  // namespace shadowgraph::models
