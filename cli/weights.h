// Initial weights of a built-in model, or some of them, in a file that torch.load reads.
#pragma once

#include <string>
#include <vector>

namespace shadowgraph::cli {

struct WeightsRequest {
  std::string model;
  std::vector<std::string> only;  // globs over names; empty: all
  std::string output;
  std::string dtype = "f32";  // f32 | bf16
  int64_t seed = 0;
};

// The model is described, not built: one tensor at a time is computed, with the numbers of the whole model's building.
void write_weights_of(const WeightsRequest& request);

}  // namespace shadowgraph::cli
