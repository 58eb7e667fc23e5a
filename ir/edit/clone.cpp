#include "shadowgraph/edit/copy.h"
#include "shadowgraph/graph/libtorch.h"

namespace shadowgraph {

// Reads all of a graph. A copy of the arenas keeps every id, so side tables of the one are good for the other. A node
// by node copy would give new ids and cost far more.
class GraphCopy {
 public:
  static Graph run(const Graph& graph);
};

Graph GraphCopy::run(const Graph& graph) {
  Graph copy;
  copy.metadata = graph.metadata;
  copy.guards = graph.guards;
  const auto take = [&](auto member) { copy.*member = graph.*member; };
  take(&Graph::nodes_);
  take(&Graph::values_);
  take(&Graph::storages_);
  take(&Graph::regions_);
  take(&Graph::arguments_);
  take(&Graph::ints_);
  take(&Graph::floats_);
  take(&Graph::uses_);
  take(&Graph::saved_);
  take(&Graph::frees_);
  take(&Graph::order_);
  take(&Graph::siblings_);
  take(&Graph::first_in_storage_);
  take(&Graph::notes_);
  take(&Graph::first_note_);
  take(&Graph::saved_elsewhere_);
  take(&Graph::frees_room_);
  take(&Graph::first_);
  take(&Graph::last_);
  take(&Graph::live_nodes_);
  take(&Graph::strings_);
  take(&Graph::string_ids_);
  take(&Graph::phases_);
  take(&Graph::targets_);
  take(&Graph::target_ids_);
  take(&Graph::constants_);
  return copy;
}

Graph clone(const Graph& graph) { return GraphCopy::run(graph); }

}  // namespace shadowgraph
