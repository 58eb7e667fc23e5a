// A graph and what it costs, as Python holds them together (python/src/profile.cpp).
#pragma once

#include "python/src/graph_parts.h"

namespace shadowgraph::python {

struct GraphProfile {
  GraphPointer graph;
  Profile costs;
  DeviceMemoryOptions memory;
  uint32_t nodes = 0;              // Graph::node_capacity() then: a larger id was added since
  std::optional<Traffic> traffic;  // made when somebody asks
};

}  // namespace shadowgraph::python
