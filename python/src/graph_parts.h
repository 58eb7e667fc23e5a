// Python views of nodes, values, storages and regions.
#pragma once

#include "python/src/binding.h"

namespace shadowgraph::python {

using GraphPointer = std::shared_ptr<Graph>;

// A node, value, storage or region. Shares ownership of the graph.
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

template <class Ids>
auto parts_of(const GraphPointer& graph, const Ids& ids) {
  std::vector<Part<std::remove_cvref_t<decltype(*ids.begin())>>> parts;
  for (const auto id : ids) parts.push_back({graph, id});
  return parts;
}

// The current node may be erased during iteration.
struct NodeIterator {
  GraphPointer graph;
  NodeId next;
  PyNode advance();
};

// Returns the path of the innermost module around a node, "" outside of all modules.
std::string_view module_of(const Graph& graph, NodeId node);

// Requires Graph to be declared, because signatures refer to it.
void bind_parts(py::module_& m);

}  // namespace shadowgraph::python
