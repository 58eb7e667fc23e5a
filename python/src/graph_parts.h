// What a graph is made of, as Python sees it (python/src/graph_parts.cpp).
#pragma once

#include "python/src/binding.h"

namespace shadowgraph::python {

using GraphPointer = std::shared_ptr<Graph>;

// A node, value, storage or region: the graph and a number. It holds the graph, so that it can outlive every other name
// for it.
template <class Id>
struct Part {
  GraphPointer graph;
  Id id;
  bool operator==(const Part& other) const { return graph == other.graph && id == other.id; }
};
using PyNode = Part<NodeId>;
using PyValue = Part<ValueId>;
using PyStorage = Part<StorageId>;
using PyRegion = Part<RegionId>;

// Iterates safely against the erasing of the current node.
struct NodeIterator {
  GraphPointer graph;
  NodeId next;
  PyNode advance();
};

// After Graph is declared, which signatures of the parts name.
void bind_parts(py::module_& m);

}  // namespace shadowgraph::python
