#include "support/json.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "shadowgraph/error.h"
#include "support/suggestion.h"

namespace shadowgraph {
namespace {

[[noreturn]] void refuse_json(std::string_view name, int line, int column, std::string_view why) {
  throw ParseError(std::string(name) + ":" + std::to_string(line) + ":" + std::to_string(column) +
                       ": invalid JSON: " + std::string(why),
                   line, column);
}

constexpr const char* kTooDeep = "values are nested too deeply";

// Rejects deeply nested text before it is parsed, since values are copied, written and freed recursively.
void check_depth(std::string_view text, std::string_view name) {
  int depth = 0;
  bool quoted = false;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (quoted) {
      at += c == '\\';
      quoted = c != '"';
    } else if (c == '"') {
      quoted = true;
    } else if (c == ']' || c == '}') {
      --depth;
    } else if ((c == '[' || c == '{') && ++depth > kDeepestJson) {
      const std::string_view before = text.substr(0, at);
      const auto line = static_cast<int>(std::count(before.begin(), before.end(), '\n')) + 1;
      const auto column = static_cast<int>(at - (before.rfind('\n') + 1)) + 1;  // npos + 1 is 0
      refuse_json(name, line, column, kTooDeep);
    }
  }
}

// Calls nlohmann's parser and rewrites its error messages.
template <class Text>
nlohmann::json parsed(Text&& text, std::string_view name, const nlohmann::json::parser_callback_t& see = nullptr) {
  try {
    return nlohmann::json::parse(std::forward<Text>(text), see);
  } catch (const nlohmann::json::parse_error& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error ..."
    const std::string_view what = error.what();
    int line = 1, column = 1;
    std::sscanf(error.what(), "%*s parse error at line %d, column %d", &line, &column);
    refuse_json(name, line, column, what.substr(what.find(": ") + 2));
  } catch (const nlohmann::json::exception& error) {  // a number out of the range of double
    const std::string_view what = error.what();       // "[json.exception.out_of_range.406] number overflow ..."
    refuse_json(name, 1, 1, what.substr(what.find(']') + 2));
  }
}

}  // namespace

nlohmann::json parse_json(std::string_view text, std::string_view name) {
  check_depth(text, name);
  return parsed(text, name);
}

nlohmann::json parse_json_list(std::istream& text, std::string_view name, std::string_view list,
                               const std::function<void(const nlohmann::json& element, size_t place)>& see) {
  using Event = nlohmann::json::parse_event_t;
  int depth_of_elements = 2;
  bool inside = false, begun = false;
  size_t place = 0;
  const auto callback = [&](int depth, Event event, nlohmann::json& value) {
    if (!begun) {
      begun = true;
      if (event == Event::array_start) {  // the document is the list
        depth_of_elements = 1;
        inside = true;
      }
    }
    if (event == Event::key && depth == 1 && depth_of_elements == 2) inside = value == list;
    const bool begins = event == Event::object_start || event == Event::array_start;
    if (begins && depth >= kDeepestJson) refuse_json(name, 1, 1, kTooDeep);
    const bool ends = event == Event::object_end || event == Event::array_end || event == Event::value;
    if (!inside || !ends || depth != depth_of_elements) return true;
    see(value, place++);
    return false;
  };
  return parsed(text, name, callback);
}

std::string json_text(const nlohmann::json& json, int indent) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace);
}

JsonPlace JsonPlace::inside(const nlohmann::json& value, std::string_view step) const {
  JsonPlace place(value, heading_);
  place.path_ = path_;
  if (!step.starts_with('[') && !path_.empty()) place.path_ += '.';
  place.path_ += step;
  return place;
}

void JsonPlace::fail(const std::string& why) const {
  throw ParseError(std::string(heading_) + ": " + (path_.empty() ? "the document" : path_) + " " + why, 0, 0);
}

void JsonPlace::fail_type(const char* expected) const {
  fail(std::string("is not ") + expected + " but " +
       (value_->is_null()     ? "null"
        : value_->is_array()  ? "a list"
        : value_->is_object() ? "an object"
                              : std::string("a ") + value_->type_name()));
}

std::optional<JsonPlace> JsonPlace::find(std::string_view key) const {
  if (!value_->is_object()) fail_type("an object");
  keys_.push_back(key);
  const auto found = value_->find(key);
  if (found == value_->end() || found->is_null()) return std::nullopt;
  return inside(*found, key);
}

JsonPlace JsonPlace::operator[](std::string_view key) const {
  std::optional<JsonPlace> found = find(key);
  if (found) return *std::move(found);
  std::vector<std::string> others;
  for (const auto& [name, value] : value_->items()) {
    if (std::ranges::find(keys_, name) == keys_.end()) others.push_back(name);
  }
  const std::string near = closest(key, others);
  inside(*value_, key).fail(near.empty() ? "is missing" : "is missing; " + near + " is not a key");
}

void JsonPlace::refuse_other_keys(std::string_view whose) const {
  check_keys(*this, whose, std::vector<std::string>(keys_.begin(), keys_.end()));
}

size_t JsonPlace::size() const {
  if (!value_->is_array()) fail_type("a list");
  return value_->size();
}

JsonPlace JsonPlace::element(size_t index) const { return inside((*value_)[index], "[" + std::to_string(index) + "]"); }

JsonPlace JsonPlace::operator[](size_t index) const {
  if (index >= size()) fail("has no element " + std::to_string(index));
  return element(index);
}

std::vector<JsonPlace> JsonPlace::elements() const {
  std::vector<JsonPlace> elements;
  elements.reserve(size());
  for (size_t i = 0; i < value_->size(); ++i) elements.push_back(element(i));
  return elements;
}

std::vector<std::pair<std::string, JsonPlace>> JsonPlace::members() const {
  if (!value_->is_object()) fail_type("an object");
  std::vector<std::pair<std::string, JsonPlace>> members;
  members.reserve(value_->size());
  for (const auto& [name, value] : value_->items()) members.emplace_back(name, inside(value, name));
  return members;
}

std::pair<std::string, JsonPlace> JsonPlace::alternative() const {
  if (!value_->is_object() || value_->size() != 1) fail("is not an object with one member");
  return members().front();
}

const std::string& JsonPlace::text() const {
  if (!value_->is_string()) fail_type("a string");
  return value_->get_ref<const std::string&>();
}

int64_t JsonPlace::integer() const {
  if (!value_->is_number_integer()) fail_type("an integer");
  if (value_->is_number_unsigned() && value_->get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}) {
    fail("is larger than 2^63 - 1");
  }
  return value_->get<int64_t>();
}

int64_t JsonPlace::integer(int64_t least, int64_t most) const {
  const int64_t value = integer();
  if (value < least || value > most) {
    fail("is " + std::to_string(value) + ", not between " + std::to_string(least) + " and " + std::to_string(most));
  }
  return value;
}

double JsonPlace::number() const {
  if (value_->is_number()) return value_->get<double>();
  if (value_->is_string()) {
    const std::string& name = value_->get_ref<const std::string&>();
    if (name == "Infinity") return std::numeric_limits<double>::infinity();
    if (name == "-Infinity") return -std::numeric_limits<double>::infinity();
    if (name == "NaN") return std::numeric_limits<double>::quiet_NaN();
  }
  fail_type("a number");
}

double JsonPlace::amount() const {
  const double value = number();
  if (!std::isfinite(value) || value < 0) fail("is not a finite number >= 0");
  return value;
}

double JsonPlace::between(double least, double most, const char* expected) const {
  const double value = amount();
  if (value < least || value > most) fail(std::string("must be ") + expected);
  return value;
}

double JsonPlace::rate() const { return between(1, 1e30, "positive: a rate from 1 to 1e30 per second"); }

double JsonPlace::fraction() const { return between(1e-6, 1e3, "positive: a factor from 1e-6 to 1000"); }

double JsonPlace::seconds() const { return between(0, 1e6, "at most 1e6 seconds"); }

int64_t JsonPlace::memory() const {
  const double value = amount();
  if (value == 0) return 0;
  const bool whole = value == std::floor(value);
  return static_cast<int64_t>(between(whole ? 1 << 20 : HUGE_VAL, 0x1p60,
                                      "a number of bytes from 1 MiB to 2^60, such as 85899345920 (80 GiB), or 0 if it "
                                      "is unknown"));
}

bool JsonPlace::boolean() const {
  if (!value_->is_boolean()) fail_type("a boolean");
  return value_->get<bool>();
}

std::string JsonPlace::text_or(std::string_view key, std::string_view otherwise) const {
  const auto found = find(key);
  return found ? found->text() : std::string(otherwise);
}

double JsonPlace::amount_or(std::string_view key, double otherwise) const {
  const auto found = find(key);
  return found ? found->amount() : otherwise;
}

double JsonPlace::seconds_or(std::string_view key, double otherwise) const {
  const auto found = find(key);
  return found ? found->seconds() : otherwise;
}

double JsonPlace::rate_or_zero(std::string_view key) const {
  const auto found = find(key);
  return found && found->amount() != 0 ? found->rate() : 0;
}

}  // namespace shadowgraph
