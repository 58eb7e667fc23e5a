// The unit of an assignment's costs.
#pragma once

#include "shadowgraph/sharding/assignment.h"

namespace shadowgraph {

inline double seconds_of(AssignmentCost::Wide picoseconds) { return static_cast<double>(picoseconds) * 1e-12; }

}  // namespace shadowgraph
