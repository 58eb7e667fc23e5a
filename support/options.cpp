#include "shadowgraph/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <array>
#include <cmath>

#include "shadowgraph/units.h"
#include "support/text.h"

namespace shadowgraph {
namespace {

std::string range_of(const OptionDomain& takes) {
  if (takes.above) {
    return fmt::format(" > {}{}", takes.min, takes.max < 9e18 ? fmt::format(" and <= {}", takes.max) : "");
  }
  if (takes.max < 9e18 && takes.max != std::numeric_limits<int32_t>::max()) {
    return fmt::format(" from {} to {}", takes.min, takes.max);
  }
  return std::isinf(takes.min) ? "" : fmt::format(" >= {}", takes.min);
}

std::string one_of(const OptionDomain& takes) {
  if (!takes.words.empty()) return fmt::format("one of {}", fmt::join(takes.words, ", "));
  constexpr std::array kByKind{"a string",
                               "true or false",
                               "an integer",
                               "a number",
                               "a number such as 8192, 8Ki (8 x 1,024) or 16M (16 x 1,000,000)",
                               "a size such as 24GiB",
                               "a time such as 14d or 36h"};
  const bool has_range = takes.kind == OptionKind::kWhole || takes.kind == OptionKind::kNumber;
  return kByKind[static_cast<size_t>(takes.kind)] + (has_range ? range_of(takes) : "");
}

[[noreturn]] void refuse_value(const std::string& text, const OptionDomain& takes) {
  throw Error(fmt::format("'{}' is not {}", text, one_of(takes)));
}

bool within(double number, const OptionDomain& takes) {
  return number >= takes.min && number <= takes.max && !(takes.above && number == takes.min);
}

}  // namespace

std::string OptionDomain::text() const {
  const std::string one = one_of(*this);
  return list ? "a list, each " + one : one;
}

std::string Option::flag() const {
  std::string text = "--" + name;
  std::ranges::replace(text, '_', '-');
  return text;
}

std::string Option::placeholder() const {
  if (!takes.placeholder.empty()) return takes.placeholder;
  constexpr std::array kByKind{"TEXT", "", "INT", "FLOAT", "COUNT", "SIZE", "TIME"};
  return kByKind[static_cast<size_t>(takes.kind)];
}

nlohmann::json Option::json(const std::vector<std::string>& words) const {
  const auto one = [&](const std::string& word) -> nlohmann::json {
    if (takes.kind == OptionKind::kFlag) return word == "true";
    if (takes.kind == OptionKind::kText) return word;
    if (takes.kind == OptionKind::kSeconds) return parse_duration(word).value_or(0);
    if (const auto whole = parse_number<int64_t>(word)) return *whole;
    return parse_number<double>(word).value_or(0);
  };
  if (!takes.list) return words.empty() ? nlohmann::json() : one(words.front());
  nlohmann::json all = nlohmann::json::array();
  for (const std::string& word : words) all.push_back(one(word));
  return all;
}

std::vector<std::string> Option::words(const nlohmann::json& value) const {
  if (value.is_array() != takes.list) throw Error(fmt::format("{} is not {}", value.dump(), takes.text()));
  std::vector<std::string> all;
  for (const nlohmann::json& one : takes.list ? value : nlohmann::json::array({value})) {
    const bool fits = takes.kind == OptionKind::kFlag   ? one.is_boolean()
                      : takes.kind == OptionKind::kText ? one.is_string()
                                                        : one.is_number();
    if (!fits) throw Error(fmt::format("{} is not {}", one.dump(), one_of(takes)));
    all.push_back(one.is_string() ? one.get<std::string>() : one.dump());
    if (takes.kind == OptionKind::kSeconds) all.back() += 's';
  }
  return all;
}

std::vector<std::string> Option::split(const std::string& text) const {
  if (!takes.list || takes.has_commas) return {text};
  std::vector<std::string> words;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    words.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

std::string Option::joined(const std::vector<std::string>& words) { return fmt::format("{}", fmt::join(words, ",")); }

namespace internal {

size_t choice_of(const std::string& text, const OptionDomain& takes) {
  const auto found = std::ranges::find(takes.words, text);
  if (found == takes.words.end()) refuse_value(text, takes);
  return static_cast<size_t>(found - takes.words.begin());
}

int64_t whole_of(const std::string& text, const OptionDomain& takes) {
  std::optional<int64_t> number = parse_number<int64_t>(text);
  if (!number && takes.kind == OptionKind::kCount) number = parse_count(text);
  if (!number && takes.kind == OptionKind::kBytes) number = parse_bytes(text);
  if (!number || !within(static_cast<double>(*number), takes)) refuse_value(text, takes);
  return *number;
}

double number_of(const std::string& text, const OptionDomain& takes) {
  std::optional<double> number;
  if (takes.kind == OptionKind::kSeconds) {
    number = text == "0s" ? 0 : parse_duration(text);  // parse_duration accepts positive durations only
  } else if (takes.kind == OptionKind::kCount) {
    if (const auto count = parse_count(text)) number = static_cast<double>(*count);
  } else {
    number = parse_number<double>(text);
  }
  if (!number || !std::isfinite(*number) || !within(*number, takes)) refuse_value(text, takes);
  return *number;
}

bool flag_of(const std::string& text, const OptionDomain& takes) {
  if (text != "true" && text != "false") refuse_value(text, takes);
  return text == "true";
}

std::string print_number(double number, OptionKind kind) {
  return fmt::format("{}{}", number, kind == OptionKind::kSeconds ? "s" : "");
}

void refuse_count(size_t given) { throw Error(fmt::format("expected one value, got {}", given)); }

void refuse_option(std::string_view name, const std::vector<std::string>& names) {
  if (names.empty()) throw Error(fmt::format("unknown option '{}'; there are no options", name));
  throw Error(fmt::format("unknown option '{}'; expected one of {}", name, fmt::join(names, ", ")));
}

}  // namespace internal

}  // namespace shadowgraph
