// Writes the parts of a page's data about modules and calls: clusters.*, regions.*, modules.* (viz/page/README.md).
#pragma once

#include "shadowgraph/profile.h"
#include "viz/page_columns.h"

namespace shadowgraph {

// Adds the module calls around every node, phase by phase, and which of them do the same as the one before.
void add_clusters(const Profile& profile, Columns& columns, Texts& texts);
// Adds calls of composite operators, checkpoints and scopes.
void add_regions(const Graph& graph, Columns& columns, Texts& texts);
// Adds the tree of paths, with its figures.
void add_modules(const Profile& profile, Columns& columns, Texts& texts);

}  // namespace shadowgraph
