// Source locations relative to the root of the source tree, for registrations and rows of tables.
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

// Returns the path relative to the root of the source tree; paths outside of the tree are unchanged.
inline std::string source_place(std::string_view file) {
  constexpr std::string_view kHere = "support/source_place.h";
  const std::string_view own = std::source_location::current().file_name();
  const std::string_view root = own.substr(0, own.ends_with(kHere) ? own.size() - kHere.size() : 0);
  if (file.starts_with(root)) file.remove_prefix(root.size());
  return std::string(file);
}

// Returns the path with line; "" for an empty location.
inline std::string source_place(const std::source_location& place) {
  return place.line() == 0 ? std::string() : source_place(place.file_name()) + ":" + std::to_string(place.line());
}

}  // namespace shadowgraph
