// Operators whose name or schema differs between libtorch versions, for reading graphs written with another version.
#pragma once

#include <optional>
#include <string_view>

#include "shadowgraph/graph/target.h"

namespace shadowgraph {

// Returns this libtorch's replacement for `target`, an operator whose schema is not registered here; empty if there is
// none. The replacement has the same name, or the name given by a table row, and
//
// - the same returns, writes and alias annotations,
// - a parameter for every argument of `target` without a default, with the same name or the one given by a table row,
// - defaults for all other parameters.
//
// So an added or removed argument is compatible as long as the graph leaves it at its default.
std::optional<Target> in_this_libtorch(const Target& target);

// Returns the current name of `target`'s argument `name`, or `name` itself if it was never renamed. Does not check that
// the schema has it.
std::string_view argument_in_this_libtorch(const Target& target, std::string_view name);

// Returns the current name of an operator that another version calls `name`; empty if it was never renamed.
std::string_view operator_in_this_libtorch(std::string_view name);

// Returns why operator `name` was removed and its replacement; empty if unknown.
std::string_view why_removed(std::string_view name);

}  // namespace shadowgraph
