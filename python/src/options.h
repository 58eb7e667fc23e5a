// Parses Python keywords using option tables (shadowgraph/options.h).
#pragma once

#include "python/src/binding.h"
#include "shadowgraph/options.h"

namespace shadowgraph::python {

// Converts a Python value to command line text: an int, float, str, bool, path or dtype, a mapping (as NAME=VALUE), or
// for list options any iterable. Throws Error with the keyword for an unsupported value.
std::vector<std::string> words_of(const Option& option, const py::handle& value);
// Docstring of a keyword: "tensor: ranks of ... (a list, each an integer >= 1)".
std::string description(const Option& option, const std::vector<std::string>& defaults);
[[noreturn]] void refuse_keyword(const Option& option, const std::string& why);

// Reads keywords into the request, in table order. None and missing keywords keep the default. Throws Error for an
// unknown keyword.
template <class Request>
void read_keywords(Request& request, const OptionTable<Request>& table, const py::dict& given) {
  for (const auto& [name, value] : given) table.at(std::string(py::str(name)));
  for (const auto& row : table.rows()) {
    if (!given.contains(row.name) || given[row.name.c_str()].is_none()) continue;
    const std::vector<std::string> words = words_of(row, given[row.name.c_str()]);
    try {
      row.read(request, words);
    } catch (const Error& error) {
      if (typeid(error) != typeid(Error)) throw;
      refuse_keyword(row, error.what());
    }
  }
}

// Returns {keyword: docstring}.
template <class Request>
py::dict options_of(const OptionTable<Request>& table) {
  py::dict lines;
  for (const auto& row : table.rows()) lines[row.name.c_str()] = description(row, row.print(Request()));
  return lines;
}

}  // namespace shadowgraph::python
