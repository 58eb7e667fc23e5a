#include "tests/conformance/allow_list.h"

#include <fnmatch.h>
#include <sstream>

#include "shadowgraph/error.h"
#include "shadowgraph/graph/text.h"

namespace shadowgraph::conformance {
namespace {

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t");
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(" \t") + 1 - begin);
}

}  // namespace

AllowList::AllowList(const std::string& path) {
  std::istringstream file(read_file(path));
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (trimmed(line).empty() || line[0] == '#') continue;
    std::vector<std::string> fields;
    for (size_t begin = 0; begin != std::string::npos;) {
      const size_t end = fields.size() < 3 ? line.find(" | ", begin) : std::string::npos;
      fields.push_back(trimmed(line.substr(begin, end == std::string::npos ? end : end - begin)));
      begin = end == std::string::npos ? end : end + 3;
    }
    const auto fail = [&](const std::string& what) {
      throw ParseError(path + ":" + std::to_string(number) + ": " + what + "\n  " + line, number, 1);
    };
    if (fields.size() != 4) fail("a row has four fields between ' | ': kind, operator, difference, reason");
    if (fields[0] != "allowed" && fields[0] != "data") fail("the kind is 'allowed' or 'data', not '" + fields[0] + "'");
    if (fields[3].empty()) fail("a row needs a reason");
    AllowRow row{fields[0] == "data", fields[1], fields[2], fields[3], {}, 0};
    try {
      row.expression = std::regex(fields[2], std::regex::ECMAScript | std::regex::optimize);
    } catch (const std::regex_error& error) {
      fail(std::string("no regular expression: ") + error.what());
    }
    rows_.push_back(std::move(row));
  }
}

AllowRow* AllowList::find(const std::string& op, const std::string& difference) {
  for (AllowRow& row : rows_) {
    if (fnmatch(row.op.c_str(), op.c_str(), 0) == 0 &&
        std::regex_search(difference, row.expression, std::regex_constants::match_continuous)) {
      return &row;
    }
  }
  return nullptr;
}

}  // namespace shadowgraph::conformance
