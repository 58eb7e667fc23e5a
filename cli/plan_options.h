// Options of the subcommands that plan for many devices or less memory, and of the cache of kernels.
#pragma once

#include <CLI/CLI.hpp>

#include <string>

#include "cli/assign.h"
#include "cli/checkpoint.h"
#include "cli/kernels.h"
#include "cli/shard.h"

namespace shadowgraph::cli {

void add_shard_options(CLI::App& command, ShardRequest& request, std::string& mode);
void add_assign_options(CLI::App& command, AssignRequest& request);
void add_checkpoint_options(CLI::App& command, CheckpointRequest& request);
// list, verify, prune and clear; exactly one of them.
void add_kernels_commands(CLI::App& command, KernelsRequest& request);
// The one that was named; false if `verify` found something broken.
bool run_kernels(const CLI::App& command, const KernelsRequest& request);

}  // namespace shadowgraph::cli
