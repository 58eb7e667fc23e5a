// On which stream a node was issued, and for what it waits there: the notes that a capture leaves
// (core/capture/stream_record.h).
#pragma once

#include <cstdint>
#include <vector>

#include "shadowgraph/graph.h"

namespace shadowgraph {

struct StreamNotes {
  uint32_t stream = 0;
  uint32_t event = 0;             // recorded after the node; 0: none
  std::vector<uint32_t> waits;    // for these events its stream waits before the node
  std::vector<uint32_t> used_on;  // streams that use what memory the node makes, beside the node's own
};

// Throws Error for a note that is no list of numbers.
StreamNotes stream_notes(const Graph& graph, NodeId node);

}  // namespace shadowgraph
