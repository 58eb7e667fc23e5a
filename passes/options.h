// Options of passes, which are text, as values.
//
//     const bool drop = choice_option(options, "random", {"keep", "drop"}) == 1;
//     const int64_t limit = int_option(options, "max_bytes", 0);
//
// All throw Error that names the option, what it was given, and what it takes.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string_view>

#include "shadowgraph/passes/pass.h"

namespace shadowgraph {

// The text given; Error if the caller did not complete the options with the defaults (run_pass does).
const std::string& text_option(const PassOptions& options, std::string_view name);
// Which of `choices` it is.
size_t choice_option(const PassOptions& options, std::string_view name,
                     std::initializer_list<std::string_view> choices);
int64_t int_option(const PassOptions& options, std::string_view name, int64_t least,
                   int64_t most = std::numeric_limits<int64_t>::max());
// "yes" or "no".
inline bool yes_option(const PassOptions& options, std::string_view name) {
  return choice_option(options, name, {"no", "yes"}) == 1;
}

}  // namespace shadowgraph
