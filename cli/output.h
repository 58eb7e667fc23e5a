// The answer, on stdout: text and JSON as every subcommand writes them.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <string_view>

namespace shadowgraph::cli {

// With a line feed at its end. What a terminal would obey is escaped.
void print_text(std::string_view text);
// Names come from the program and from files: a byte that is not UTF-8, which JSON cannot hold, is replaced.
std::string json_text(const nlohmann::json& json);

}  // namespace shadowgraph::cli
