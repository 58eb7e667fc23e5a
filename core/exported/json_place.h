// Wraps a value of the archive's JSON that knows where it stands, so that errors name what is missing or of another
// type. "net.pt2 is damaged: models/model.json, graph_module.graph.nodes[3].target is missing". Internal to
// core/exported.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace shadowgraph {

// Refers to the document, which must outlive it.
class JsonPlace {
 public:
  // `file` and `record` are for messages.
  JsonPlace(const nlohmann::json& document, std::string_view file, std::string_view record)
      : value_(&document), file_(file), record_(record) {}

  // Returns the member; one that is absent or null counts as missing.
  JsonPlace operator[](const char* key) const;
  std::optional<JsonPlace> find(const char* key) const;
  // The members of a list.
  size_t size() const;
  JsonPlace operator[](size_t index) const;
  // The members of an object, in the order of their names: calls f(name, place).
  template <class F>
  void for_each_member(F f) const {
    if (!value_->is_object()) fail("is not an object");
    for (const auto& [name, value] : value_->items()) f(name, inside(value, "." + name));
  }
  // Reads one of the format's unions: an object with one member.
  std::pair<std::string, JsonPlace> alternative() const;

  const std::string& text() const;
  int64_t integer() const;
  double number() const;  // also "Infinity", "-Infinity" and "NaN", which JSON has no numbers for
  bool boolean() const;
  bool is_list() const { return value_->is_array(); }

  // Throws Error.
  [[noreturn]] void fail(const std::string& why) const;

 private:
  JsonPlace inside(const nlohmann::json& value, const std::string& step) const;

  const nlohmann::json* value_;
  std::string_view file_;
  std::string_view record_;
  std::string path_;
};

}  // namespace shadowgraph
