// Reads options of passes from text, for option tables (shadowgraph/passes/pass.h). Messages name the option, what
// was given and what may be given.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "shadowgraph/error.h"
#include "shadowgraph/passes/pass.h"
#include "support/text.h"

namespace shadowgraph::internal {

size_t choice_of(std::string_view name, std::string_view text, std::span<const std::string> choices) {
  const auto found = std::find(choices.begin(), choices.end(), text);
  if (found == choices.end()) {
    throw Error(fmt::format("option {}={}: it must be one of {}", name, text, fmt::join(choices, ", ")));
  }
  return static_cast<size_t>(found - choices.begin());
}

int64_t whole_number_of(std::string_view name, std::string_view text, int64_t least, int64_t most) {
  const auto number = parse_number<int64_t>(text);
  if (!number || *number < least || *number > most) {
    throw Error(fmt::format("option {}={}: it must be a whole number from {}{}", name, text, least,
                            most == std::numeric_limits<int64_t>::max() ? " on" : fmt::format(" to {}", most)));
  }
  return *number;
}

void refuse_option(std::string_view name) {
  throw Error(fmt::format("there is no option '{}'; run_pass and Pipeline say which there are", name));
}

}  // namespace shadowgraph::internal
