// Registry of built-in models. Their configurations are in the headers of their families (vision.h, llama.h, ...).
#pragma once

#include <string_view>
#include <vector>

#include "models/model.h"

namespace shadowgraph::models {

struct ModelInfo {
  std::string name, description;
  int64_t default_batch = 1;
  int64_t default_seq = 0;         // 0: not a sequence model
  int64_t default_image_size = 0;  // 0: not an image model
  int64_t parameters = 0;          // at full size, tied weights counted once
  int64_t layers = 0;              // repeated layers, equal except for the first ones; 0 if none
  int64_t first_layers = 0;        // the number of layers at the start that differ from the rest
};

// All built-in models, in the order of the documentation.
const std::vector<ModelInfo>& available();

// Builds the model `name`: module, batch, forward and loss. Throws std::invalid_argument for an unknown name (the
// message lists all names) and for unsupported options: a sequence longer than the model's positions, an image size
// that it cannot divide, an integral dtype.
BuiltModel build(std::string_view name, const ModelOptions& options = {});

}  // namespace shadowgraph::models
