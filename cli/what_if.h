// `profile SOURCE --what-if zero=1,ranks=8`: what a recorded training step would hold otherwise.
#pragma once

#include <string>
#include <vector>

#include "cli/source.h"

namespace shadowgraph::cli {

// Changes as they are typed, "zero=1". Throws CLI::ValidationError for what is none, Error and what
// shadowgraph::what_if throws for what does not apply to the step.
void print_what_if(const CaptureRequest& capture, const std::vector<std::string>& changes, bool json);

}  // namespace shadowgraph::cli
