// Says where something stands in the source tree, for people who want to look: a registration, a row of a table.
//
//     void add(std::string name, Rule rule, std::source_location place = std::source_location::current());
//     struct Row { std::string_view name; const char* file = __builtin_FILE(); };
//     source_place(place)      // "core/fake/rules/elementwise.cpp:212"
//     source_place(row.file)   // "profiler/cost/flop_table.cpp": compilers give each row of an array the array's end
#pragma once

#include <source_location>
#include <string>
#include <string_view>

namespace shadowgraph {

// Returns a path of the compiler's from the root of the source tree on; one outside of the tree stays as it is.
inline std::string source_place(std::string_view file) {
  constexpr std::string_view kHere = "support/source_place.h";
  const std::string_view own = std::source_location::current().file_name();
  const std::string_view root = own.substr(0, own.ends_with(kHere) ? own.size() - kHere.size() : 0);
  if (file.starts_with(root)) file.remove_prefix(root.size());
  return std::string(file);
}

// Returns the same with the line; "" for a location that nobody gave.
inline std::string source_place(const std::source_location& place) {
  return place.line() == 0 ? std::string() : source_place(place.file_name()) + ":" + std::to_string(place.line());
}

}  // namespace shadowgraph
