#include <torch/nn/module.h>

#include "shadowgraph/replay.h"

namespace shadowgraph {

Bindings& Bindings::module(const torch::nn::Module& module) {
  for (const auto& entry : module.named_parameters()) named_.try_emplace(entry.key(), Entry{entry.value(), false});
  for (const auto& entry : module.named_buffers()) named_.try_emplace(entry.key(), Entry{entry.value(), false});
  return *this;
}

}  // namespace shadowgraph
