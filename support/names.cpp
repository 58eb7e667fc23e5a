#include "shadowgraph/names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "shadowgraph/error.h"

namespace shadowgraph::internal {

void refuse_name(std::string_view what, std::string_view text, std::span<const std::string> names) {
  std::vector<std::string> shown;  // names with blanks are quoted
  for (const std::string& name : names) shown.push_back(name.find(' ') == std::string::npos ? name : "'" + name + "'");
  throw Error(fmt::format("{} '{}' is not one of {}", what, text, fmt::join(shown, ", ")));
}

}  // namespace shadowgraph::internal
