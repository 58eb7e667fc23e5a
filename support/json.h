// JSON parsing and printing. nlohmann's parser and writer are templates that are compiled once here, since they would
// otherwise add 3 s to every source that uses JSON.
#pragma once

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <istream>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shadowgraph {

// Maximum nesting depth: nlohmann copies and writes values recursively.
constexpr int kDeepestJson = 1000;

// Throws ParseError, "net.json:3:7: ...", for invalid JSON and for nesting deeper than kDeepestJson. `name` is the file
// name. Use JsonPlace to read the contents.
nlohmann::json parse_json(std::string_view text, std::string_view name);

// Parses a document with a list that is too long to keep in memory: passes each element and its index to `see` and
// drops it. Returns the rest. The list is the member `list`, or the document itself. Throws as parse_json does.
nlohmann::json parse_json_list(std::istream& text, std::string_view name, std::string_view list,
                               const std::function<void(const nlohmann::json& element, size_t place)>& see);

// `indent`: blanks per level, or negative for a single line. Invalid UTF-8 becomes U+FFFD.
std::string json_text(const nlohmann::json& json, int indent = -1);

// A value in a JSON document with its path, for error messages that name the file, the path and the expected type:
// "my.json: levels[0].bandwidth is not a number but a string". Used to read all JSON files.

// Refers to the document and the heading, which must outlive it.
class JsonPlace {
 public:
  // `heading` starts the messages: the file and its format.
  JsonPlace(const nlohmann::json& document, std::string_view heading) : value_(&document), heading_(heading) {}

  // Returns a member. operator[] throws if it is absent or null; find returns std::nullopt. Keys must outlive the place.
  JsonPlace operator[](std::string_view key) const;
  std::optional<JsonPlace> find(std::string_view key) const;
  // Throws for a member that was not looked up in this place, or in one it was copied from: "latancy is not a key of a
  // level (did you mean latency?); expected one of ...". Readers call it last, so that they are the schema, too.
  void refuse_other_keys(std::string_view whose) const;
  // Accessors of lists.
  size_t size() const;
  JsonPlace operator[](size_t index) const;
  std::vector<JsonPlace> elements() const;
  // Returns the members of an object, sorted by name, for loops: [name, place].
  std::vector<std::pair<std::string, JsonPlace>> members() const;
  // Returns the single member of an object that represents a union.
  std::pair<std::string, JsonPlace> alternative() const;

  const std::string& text() const;
  int64_t integer() const;
  int64_t integer(int64_t least, int64_t most) const;
  double number() const;    // also accepts "Infinity", "-Infinity" and "NaN"
  double amount() const;    // a finite number >= 0
  double rate() const;      // per second, from 1 to 1e30: smaller ones make times infinite
  double fraction() const;  // from 1e-6 to 1e3: a part of a rate, or a factor
  double seconds() const;   // from 0 to 1e6
  // Bytes of a memory: from 1 MiB, since 80 means 80 GB, to 2^60, or 0 if unknown.
  int64_t memory() const;
  bool boolean() const;
  bool is_list() const { return value_->is_array(); }
  bool is_text() const { return value_->is_string(); }
  bool is_object() const { return value_->is_object(); }
  // Return `otherwise` if the member is absent; throw if it has the wrong type.
  std::string text_or(std::string_view key, std::string_view otherwise) const;
  double amount_or(std::string_view key, double otherwise) const;
  double seconds_or(std::string_view key, double otherwise) const;
  // A rate, or 0 if it is absent or 0.
  double rate_or_zero(std::string_view key) const;

  const nlohmann::json& json() const { return *value_; }

  // Throws ParseError with the heading, the path and `why`, which starts with a verb.
  [[noreturn]] void fail(const std::string& why) const;

 private:
  JsonPlace inside(const nlohmann::json& value, std::string_view step) const;
  JsonPlace element(size_t index) const;
  [[noreturn]] void fail_type(const char* expected) const;
  double between(double least, double most, const char* expected) const;

  const nlohmann::json* value_;
  std::string_view heading_;
  std::string path_;
  mutable std::vector<std::string_view> keys_;  // looked up so far
};

}  // namespace shadowgraph
