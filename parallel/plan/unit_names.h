// Says at which modules a step may be cut: layers, and what comes before and behind them.
#pragma once

#include <string>
#include <vector>

#include "shadowgraph/graph.h"

namespace shadowgraph {

struct UnitNames {
  std::vector<std::string> begins;  // in the order of forward; the first is "" unless it is a layer

  // Layers are modules with a number, such as "model.layers.7" or "encoder_layer_7"; of several numbers in a path the first
  // counts. A model without layers has one unit. Throws Error for graphs that are no training steps.
  static UnitNames of(const Graph& step);
};

// Throws Error if a model has more than so many layers: a source that makes more than it was asked for would be counted
// twice.
void check_layers(const std::vector<std::string>& units, int64_t wanted, const std::string& model);

// The place of the number of a layer in its path: {13, 1} of "model.layers.7", {14, 1} of "encoder.layer_7"; {0, 0}: none.
std::pair<size_t, size_t> number_in_path(const std::string& path);

}  // namespace shadowgraph
