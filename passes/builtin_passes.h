// The functions behind the rows of registry.cpp. Each is described in the file of its name.
//
// They are called through the table (shadowgraph/passes/pipeline.h), which checks and completes the options first.
#pragma once

#include "shadowgraph/passes/pass.h"

namespace shadowgraph {

PassResult canonicalize(Graph& graph, const PassOptions& options);
PassResult collapse(Graph& graph, const PassOptions& options);
PassResult const_fold(Graph& graph, const PassOptions& options);
PassResult cse(Graph& graph, const PassOptions& options);
PassResult dce(Graph& graph, const PassOptions& options);
PassResult dead_storage(Graph& graph, const PassOptions& options);
PassResult find_repeats(Graph& graph, const PassOptions& options);
PassResult fuse_groups(Graph& graph, const PassOptions& options);

}  // namespace shadowgraph
