// Whether two graphs say the same: all that the text form holds, whatever their ids, pools and interning orders are.
//
//     if (auto difference = first_difference(before, after)) FAIL() << *difference;
//
// Compared by canonical numbers (ir/numbering.h): nodes in program order with all their attributes and notes, values, storages
// with birth and death, regions, metadata, path dependencies, and tensor constants bit by bit. NaNs are compared by
// bits, -0.0 is not 0.0, an unset string is "". Not compared: order in the lists of uses, erased nodes and what only
// they used, which are no part of the content. Constants without readable contents (meta, sparse) count as equal.
#pragma once

#include <optional>
#include <string>

#include "ir/graph.h"

namespace shadowgraph {

// Empty if equal, otherwise a sentence that names the place, with both versions of it. Linear.
std::optional<std::string> first_difference(const Graph& a, const Graph& b);

}  // namespace shadowgraph
