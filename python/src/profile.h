// The profile of a graph (python/src/profile.cpp).
#pragma once

#include "python/src/graph_parts.h"

namespace shadowgraph::python {

struct GraphProfile {
  GraphPointer graph;
  Profile costs;
  DeviceMemoryOptions memory;
  uint32_t nodes = 0;              // Graph::node_capacity() at profiling; larger ids were added later
  std::optional<Traffic> traffic;  // computed on first access
};

}  // namespace shadowgraph::python
