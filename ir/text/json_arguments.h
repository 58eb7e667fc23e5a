// Writes the values of a graph in JSON as graph text: words, numbers, strings, arguments. Internal to ir/text.
//
// The one parser judges the text. Only what the text cannot express safely is checked here: words that could break out
// of their place.
#pragma once

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/text.h"

namespace shadowgraph {

class JsonArguments {
 protected:
  [[noreturn]] void fail(std::string_view what) const {
    // The error names the path of the element, as /nodes/12: a line of the text would tell the user nothing.
    const int line = static_cast<int>(paths_.size()) + 1;
    throw ParseError(fmt::format("json:{}: {}", path_.empty() ? "/" : path_, what), line, 1);
  }
  const nlohmann::json& field(const nlohmann::json& object, const char* key) const {
    if (!object.is_object()) fail(fmt::format("no object, expected one with '{}'", key));
    const auto found = object.find(key);
    if (found == object.end()) fail(fmt::format("'{}' is missing", key));
    return *found;
  }
  const nlohmann::json* optional_field(const nlohmann::json& object, const char* key) const {
    const auto found = object.find(key);
    return found == object.end() || found->is_null() ? nullptr : &*found;
  }
  // A string that may stand in the text as it is.
  std::string_view word(const nlohmann::json& value, std::string_view what) const;
  void put(std::string_view text) { text_ += text; }
  void put_int(const nlohmann::json& value);
  void put_quoted(const nlohmann::json& value);
  void put_float(const nlohmann::json& value);
  void put_value(const nlohmann::json& value);
  void put_argument(const nlohmann::json& value, int depth);
  void put_arguments(const nlohmann::json& object, const nlohmann::json* more);
  void put_list(const nlohmann::json& list, int depth);
  void put_ints(const nlohmann::json& list, char open, char close);
  void end_line() {
    text_ += '\n';
    paths_.push_back(path_);
  }

  std::string text_;
  std::string path_;                // of the element being written
  std::vector<std::string> paths_;  // by line
};

}  // namespace shadowgraph
