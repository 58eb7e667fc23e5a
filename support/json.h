// Reads and writes JSON text in one place. nlohmann's parser and writer are templates, which would otherwise take 3 s in
// every source that has to do with JSON.
#pragma once

#include <nlohmann/json.hpp>

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace shadowgraph {

// How deeply values may lie in values: nlohmann copies and writes them recursively.
constexpr int kDeepestJson = 1000;

// Throws ParseError, "net.json:3:7: ...", for what is no JSON, or nested more deeply than kDeepestJson. `name` is of the
// file. What the JSON holds is read by JsonPlace (support/json_place.h).
nlohmann::json parse_json(std::string_view text, std::string_view name);

// Reads a document with a list that is too long to keep: gives `see` each of its elements, by place, and drops it. Returns
// the rest. The list is the member `list`, or the document itself. Throws as parse_json, and what `see` throws.
nlohmann::json parse_json_list(std::string_view text, std::string_view name, std::string_view list,
                               const std::function<void(const nlohmann::json& element, size_t place)>& see);

// `indent` blanks a level, or all on one line if negative. Bytes that are not UTF-8 become U+FFFD.
std::string json_text(const nlohmann::json& json, int indent = -1);

}  // namespace shadowgraph
