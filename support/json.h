// Reads and writes JSON text in one place. nlohmann's parser and writer are templates, which would otherwise take 3 s in
// every source that has to do with JSON.
#pragma once

#include <nlohmann/json.hpp>

#include <optional>
#include <string>
#include <string_view>

namespace shadowgraph {

// Throws nlohmann::json::parse_error.
nlohmann::json parse_json(std::string_view text);
// Empty for what is no JSON.
std::optional<nlohmann::json> try_parse_json(std::string_view text);

// `indent` blanks a level, or all on one line if negative. Bytes that are not UTF-8 become U+FFFD.
std::string json_text(const nlohmann::json& json, int indent = -1);

}  // namespace shadowgraph
