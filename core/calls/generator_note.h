// The key of the note at a node that draws from a generator of the program's own: it says which one
// (core/calls/own_generators.h).
#pragma once

#include <string_view>

namespace shadowgraph {

inline constexpr std::string_view kGeneratorNote = "generator";

}  // namespace shadowgraph
