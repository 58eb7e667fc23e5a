#include "passes/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

namespace shadowgraph {

const std::string& text_option(const PassOptions& options, std::string_view name) {
  const auto found = options.find(name);
  if (found == options.end()) {
    throw Error(
        fmt::format("option '{}' is missing: call the pass through run_pass or a Pipeline, which fill in the "
                    "defaults",
                    name));
  }
  return found->second;
}

size_t choice_option(const PassOptions& options, std::string_view name,
                     std::initializer_list<std::string_view> choices) {
  const std::string& text = text_option(options, name);
  const auto* found = std::find(choices.begin(), choices.end(), text);
  if (found == choices.end()) {
    throw Error(fmt::format("option {}={}: it must be one of {}", name, text, fmt::join(choices, ", ")));
  }
  return static_cast<size_t>(found - choices.begin());
}

int64_t int_option(const PassOptions& options, std::string_view name, int64_t least, int64_t most) {
  const std::string& text = text_option(options, name);
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < least || number > most) {
    throw Error(fmt::format("option {}={}: it must be a whole number from {}{}", name, text, least,
                            most == std::numeric_limits<int64_t>::max() ? " on" : fmt::format(" to {}", most)));
  }
  return number;
}

}  // namespace shadowgraph
