// What each storage is for, refined from what the recorder noted and from how the graph uses it.
//
// The first that applies:
//   gradient                             an input that is the second argument of an sg::gradient
//   parameter, buffer, input, constant   born at the placeholder of that name
//   what the recorder says               if it says anything but temporary
//   gradient                             the storage of an sg::gradient's second argument
//   optimizer_state                      born in phase optimizer and alive at the end
//   activation                           born in phase forward, and saved for backward by any node, or alive at the
//                                        first backward node
//   temporary                            everything else; also all results of a graph without a backward phase
#pragma once

#include <cstdint>

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"

namespace SHADOWGRAPH_API shadowgraph {

class StorageKinds {
 public:
  static IdMap<StorageId, StorageKind> of(const Graph& graph);
};

// A storage that existed before the program ran: born at a placeholder, or at no node of the graph.
bool existed_before(const Graph& graph, const Storage& storage);

// Node positions in program order, from 0.
IdMap<NodeId, uint32_t> program_order(const Graph& graph);

}  // namespace shadowgraph
