// Prints results to stdout, as text or JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <string_view>

namespace shadowgraph::cli {

// Escapes control characters, and ends the text with a line feed.
void print_text(std::string_view text);
// Replaces bytes that are not valid UTF-8, which names from programs and files may contain.
std::string json_text(const nlohmann::json& json);

}  // namespace shadowgraph::cli
