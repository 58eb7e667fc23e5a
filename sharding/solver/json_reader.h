// Reads the JSON of assignment problems as a stream.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/error.h"
#include "support/json.h"

namespace shadowgraph {

// Reads only the JSON that problems need: all numbers are whole, and nothing is kept that is not asked for. Files may
// have a hundred megabytes.
class JsonReader {
 public:
  static constexpr int kDeepest = 64;  // values in values that are skipped

  explicit JsonReader(std::string_view text) : text_(text) {}

  [[noreturn]] void fail(const std::string& what) const {
    const size_t end = std::min(at_, text_.size());
    const auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<int64_t>(end), '\n');
    const size_t start = text_.substr(0, end).rfind('\n');
    const size_t column = end - (start == std::string_view::npos ? 0 : start + 1) + 1;
    throw ParseError(fmt::format("{}:{}: {}{}", line, column, path(), what), static_cast<int>(line),
                     static_cast<int>(column));
  }

  char peek() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r')) {
      ++at_;
    }
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  bool take(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }

  void expect(char c) {
    if (!take(c)) fail(fmt::format("'{}' is missing", c));
  }

  bool take_null() {
    if (peek() != 'n') return false;
    if (text_.substr(at_, 4) != "null") fail("no value");
    at_ += 4;
    return true;
  }

  int64_t number() {
    peek();
    int64_t value = 0;
    const char* begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
    if (error == std::errc::result_out_of_range) fail("the number has more than 64 bits");
    if (error != std::errc()) fail("a whole number is missing");
    at_ += static_cast<size_t>(end - begin);
    const char next = at_ < text_.size() ? text_[at_] : '\0';
    if (next == '.' || next == 'e' || next == 'E') fail("the number is not a whole one");
    return value;
  }

  int64_t not_negative() {
    const int64_t value = number();
    if (value < 0) fail("the number is below 0");
    return value;
  }

  std::string string() {
    if (peek() != '"') fail("a text is missing");
    const size_t begin = at_++;
    while (at_ < text_.size() && text_[at_] != '"') at_ += text_[at_] == '\\' ? 2 : 1;
    if (at_ >= text_.size()) fail("the text does not end");
    ++at_;
    try {
      return parse_json(text_.substr(begin, at_ - begin), "").get<std::string>();
    } catch (const ParseError&) {
      fail("the text has characters that it may not have");
    }
  }

  template <typename Each>
  void array(const Each& each) {
    expect('[');
    if (take(']')) return;
    steps_.push_back({.key = {}, .index = 0});
    do {
      each();
      ++steps_.back().index;
    } while (take(','));
    steps_.pop_back();
    expect(']');
  }

  template <typename Each>
  void object(const Each& each) {
    expect('{');
    if (take('}')) return;
    do {
      const std::string key = string();
      expect(':');
      steps_.push_back({.key = key, .index = 0});
      each(key);
      steps_.pop_back();
    } while (take(','));
    expect('}');
  }

  void skip(int depth = 0) {
    if (depth > kDeepest) fail("values are nested too deeply");
    const char c = peek();
    if (c == '{') {
      object([&](const std::string&) { skip(depth + 1); });
    } else if (c == '[') {
      array([&] { skip(depth + 1); });
    } else if (c == '"') {
      string();
    } else {
      const size_t begin = at_;
      while (at_ < text_.size() && std::string_view(",]} \n\t\r").find(text_[at_]) == std::string_view::npos) ++at_;
      if (!nlohmann::json::accept(text_.substr(begin, at_ - begin))) fail("no value");
    }
  }

  void end() {
    if (peek() != '\0' || at_ < text_.size()) fail("there is more behind the problem");
  }

 private:
  struct Step {
    std::string_view key;  // empty: an element of a list
    size_t index;
  };

  // "nodes[2].costs[0]: ", for messages.
  std::string path() const {
    std::string path;
    for (const Step& step : steps_) {
      path += !step.key.empty() ? (path.empty() ? "" : ".") + std::string(step.key) : fmt::format("[{}]", step.index);
    }
    return path.empty() ? path : path + ": ";
  }

  std::string_view text_;
  size_t at_ = 0;
  std::vector<Step> steps_;  // to the value that is read
};

}  // namespace shadowgraph
