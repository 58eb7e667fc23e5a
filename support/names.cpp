#include "shadowgraph/names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "shadowgraph/error.h"

namespace shadowgraph::internal {

void refuse_name(std::string_view what, std::string_view text, std::span<const std::string> names) {
  throw Error(fmt::format("{} '{}' is none of {}", what, text, fmt::join(names, ", ")));
}

}  // namespace shadowgraph::internal
