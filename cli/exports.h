// The folder of `profile -o`: the graph, the profile, the page, and what --export names.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <vector>

#include "cli/estimates.h"

namespace shadowgraph::cli {

std::vector<std::string> export_names();
// Before the work, so that a folder that cannot be made costs nothing. Throws FileError.
void make_folder(const std::string& folder);
// Each file whole or not at all. Says on stderr what was written, and what could not be.
void write_folder(const std::string& folder, const Profiled& profiled, const nlohmann::json& profile,
                  const std::vector<std::string>& exports);

}  // namespace shadowgraph::cli
