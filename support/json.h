// Reads and writes JSON text in one place. nlohmann's parser and writer are templates, which would otherwise take 3 s
// in every source that has to do with JSON.
#pragma once

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shadowgraph {

// How deeply values may lie in values: nlohmann copies and writes them recursively.
constexpr int kDeepestJson = 1000;

// Throws ParseError, "net.json:3:7: ...", for what is no JSON, or nested more deeply than kDeepestJson. `name` is of
// the file. What the JSON holds is read by JsonPlace (support/json.h).
nlohmann::json parse_json(std::string_view text, std::string_view name);

// Reads a document with a list that is too long to keep: gives `see` each of its elements, by place, and drops it.
// Returns the rest. The list is the member `list`, or the document itself. Throws as parse_json, and what `see` throws.
nlohmann::json parse_json_list(std::string_view text, std::string_view name, std::string_view list,
                               const std::function<void(const nlohmann::json& element, size_t place)>& see);

// `indent` blanks a level, or all on one line if negative. Bytes that are not UTF-8 become U+FFFD.
std::string json_text(const nlohmann::json& json, int indent = -1);

// Reads what a JSON document holds: each value knows where it stands, so that errors name the file, the path and what
// is expected there. "my.json: levels[0].bandwidth is not a number but a string". All files of JSON are read by it.

// Refers to the document and the heading, which must outlive it.
class JsonPlace {
 public:
  // `heading` begins the messages: the file, and what it should be.
  JsonPlace(const nlohmann::json& document, std::string_view heading) : value_(&document), heading_(heading) {}

  // Returns the member; one that is absent or null counts as missing.
  JsonPlace operator[](std::string_view key) const;
  std::optional<JsonPlace> find(std::string_view key) const;
  // The members of a list.
  size_t size() const;
  JsonPlace operator[](size_t index) const;
  std::vector<JsonPlace> elements() const;
  // The members of an object, in the order of their names, for loops: [name, place].
  std::vector<std::pair<std::string, JsonPlace>> members() const;
  // Reads a union: an object with one member.
  std::pair<std::string, JsonPlace> alternative() const;

  const std::string& text() const;
  int64_t integer() const;
  int64_t integer(int64_t least, int64_t most) const;
  double number() const;  // also "Infinity", "-Infinity" and "NaN", which JSON has no numbers for
  double amount() const;  // a finite number of 0 or more
  bool boolean() const;
  bool is_list() const { return value_->is_array(); }
  bool is_text() const { return value_->is_string(); }
  bool is_object() const { return value_->is_object(); }
  // What is absent has the other value; what is there must be of the type.
  std::string text_or(std::string_view key, std::string_view otherwise) const;
  double amount_or(std::string_view key, double otherwise) const;

  const nlohmann::json& json() const { return *value_; }

  // Throws ParseError: the heading, the path and `why`, which begins with a verb.
  [[noreturn]] void fail(const std::string& why) const;

 private:
  JsonPlace inside(const nlohmann::json& value, std::string_view step) const;
  JsonPlace element(size_t index) const;
  [[noreturn]] void fail_type(const char* expected) const;

  const nlohmann::json* value_;
  std::string_view heading_;
  std::string path_;
};

}  // namespace shadowgraph
