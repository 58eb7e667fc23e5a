// Operators whose schema differs between versions of libtorch, for graphs that another version wrote.
#pragma once

#include <optional>
#include <string_view>

#include "shadowgraph/graph/target.h"

namespace shadowgraph {

// What this process has in the place of `target`, an operator that it does not have with this schema. That is the
// operator of the same name, or of the name that a row gives it, if
//
// - it returns and writes the same, by libtorch's own words for aliases, and
// - it takes every argument of `target` that has no default, by name or by the name that a row gives it, and
// - whatever else it takes has a default.
//
// So an argument that was added or dropped counts for nothing while a graph leaves it at its default. Empty otherwise.
std::optional<Target> in_this_libtorch(const Target& target);

// What an argument of `target`, an operator of this process, is called here; `name` itself if it was called so always.
// In `target`'s schema or not: the caller looks.
std::string_view argument_in_this_libtorch(const Target& target, std::string_view name);

// What this libtorch calls an operator that another version has by `name`; empty unless a row says so.
std::string_view operator_in_this_libtorch(std::string_view name);

// Why this libtorch has no operator `name` and what has taken its place; empty if nothing is known.
std::string_view why_removed(std::string_view name);

}  // namespace shadowgraph
