// Options that change nothing beside the others that are given. They are refused, so that nobody takes an answer for
// what it is not.
#pragma once

#include <CLI/CLI.hpp>

#include "cli/source.h"

namespace shadowgraph::cli {

// Asks once the command line is read. Throws CLI::ValidationError that says what to do.
void refuse_without_effect(const CLI::App& command, const CaptureRequest& request);

}  // namespace shadowgraph::cli
