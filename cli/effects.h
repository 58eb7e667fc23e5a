// Rejects options without effect, so that a result is not mistaken for one that took them into account.
#pragma once

#include <CLI/CLI.hpp>

#include "cli/source.h"

namespace shadowgraph::cli {

// Call after parsing the command line. Throws CLI::ValidationError.
void refuse_without_effect(const CLI::App& command, const CaptureRequest& request);

}  // namespace shadowgraph::cli
