// Keywords of Python by tables of options (shadowgraph/options.h).
#pragma once

#include <string>
#include <vector>

#include "python/src/binding.h"
#include "shadowgraph/options.h"

namespace shadowgraph::python {

// Words of a value as Python has it: an int, float, str, bool, a path, a dtype, a mapping (NAME=VALUE), and of lists
// anything that is iterated over. Throws Error that names the keyword for what it does not take.
std::vector<std::string> words_of(const Option& option, const py::handle& value);
// For docstrings: "tensor: ranks of ... (a list, each an integer >= 1)".
std::string described(const Option& option, const std::vector<std::string>& held);
[[noreturn]] void refuse_keyword(const Option& option, const std::string& why);

// None is the default, and so is what is not given. Rows are read in their order. Throws Error for keywords that are none.
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

// Lines for docstrings by name.
template <class Request>
py::dict options_of(const OptionTable<Request>& table) {
  py::dict lines;
  for (const auto& row : table.rows()) lines[row.name.c_str()] = described(row, row.print(Request()));
  return lines;
}

}  // namespace shadowgraph::python
