// All output passes through here, since names from programs and files may contain escape sequences of terminals.
#pragma once

#include <fmt/format.h>
#include <nlohmann/json_fwd.hpp>

#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

namespace shadowgraph::cli {

// Escapes control characters, and commands of continuous integration. For the Python package, too.
std::string printable(std::string_view text);
// Returns the width of the terminal that `file` is; 0 if it is none.
size_t columns(std::FILE* file);
// Prints the text, escaped, with a line feed at its end. On a terminal, lines fold at its width, and errors, verdicts
// and titles of columns have colors unless NO_COLOR is set.
void print_text(std::string_view text);
void print_to(std::FILE* file, std::string_view text);
// To stdout and stderr, with the format of fmt::print.
template <class... T>
void print_out(fmt::format_string<T...> format, T&&... values) {
  print_to(stdout, fmt::format(format, std::forward<T>(values)...));
}
template <class... T>
void print_log(fmt::format_string<T...> format, T&&... values) {
  print_to(stderr, fmt::format(format, std::forward<T>(values)...));
}
// Replaces bytes that are not valid UTF-8, which names from programs and files may contain.
std::string json_text(const nlohmann::json& json);

}  // namespace shadowgraph::cli
