// Reads what a JSON document holds: each value knows where it stands, so that errors name the file, the path and what
// is expected there. "my.json: levels[0].bandwidth is not a number but a string". All files of JSON are read by it.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shadowgraph {

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
