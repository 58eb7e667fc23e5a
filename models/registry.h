// The built-in models by name. Their configurations are in the header of their family (vision.h, llama.h, ...).
#pragma once

#include <string_view>
#include <vector>

#include "models/model.h"

namespace shadowgraph::models {

struct ModelInfo {
  std::string name;
  std::string description;
  int64_t default_batch = 1;
  int64_t default_seq = 0;         // 0: takes no sequence
  int64_t default_image_size = 0;  // 0: takes no image
  int64_t parameters = 0;          // at full size, tied weights counted once
  int64_t layers = 0;              // one after another, equal but for first ones; 0: it has none
  int64_t first_layers = 0;        // of these, so many are of another kind than the rest
};

// Every built-in model, in the order of the documentation.
const std::vector<ModelInfo>& available();

// Builds the model called `name`: module, batch, forward and loss. Throws std::invalid_argument for a name that is not
// available (the message lists those that are) and for options the model cannot have. Such are a sequence longer than
// its positions, an image size it cannot divide, an integral dtype.
BuiltModel build(std::string_view name, const ModelOptions& options = {});

}  // namespace shadowgraph::models
