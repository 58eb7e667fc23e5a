// Options of the subcommands that draw a graph or write code and weights.
#pragma once

#include <CLI/CLI.hpp>

#include <string>

#include "cli/commands.h"

namespace shadowgraph::cli {

void add_dot_options(CLI::App& command, DotRequest& request);
void add_codegen_options(CLI::App& command, CodegenRequest& request);
void add_materialize_options(CLI::App& command, MaterializeRequest& request);

}  // namespace shadowgraph::cli
