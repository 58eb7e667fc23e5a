// Strategies of nodes with independent places, as strategies of all their tensors.
#pragma once

#include <utility>

#include "shadowgraph/shard/rules.h"

namespace shadowgraph {

// Adds those that use one strategy of one place, and replicate the other tensors.
inline NodeStrategies whole_strategies(NodeStrategies strategies) {
  for (const PlaceStrategies& place : strategies.places) {
    for (size_t s = 1; s < place.axis.size(); ++s) {
      AxisStrategy whole = strategies.axis[0];
      whole.name = place.axis[s].name;
      whole.extent = place.axis[s].extent;
      for (size_t i = 0; i < place.operands.size(); ++i) whole.operands[place.operands[i]] = place.axis[s].operands[i];
      for (size_t i = 0; i < place.results.size(); ++i) whole.results[place.results[i]] = place.axis[s].results[i];
      strategies.axis.push_back(std::move(whole));
    }
  }
  return strategies;
}

}  // namespace shadowgraph
