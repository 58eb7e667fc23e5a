// Runs a call that carries what it stands for. passes/structure/collapse.cpp writes the nodes it hides into the call's
// note "body", as the text of a graph. The call can be run wherever its graph is read.
//
// The body's sg::input placeholders stand, in order, for the call's tensor arguments, its outputs for the call's
// results. Writes reach the tensors given. Random numbers come from the default generator, as in the nodes that were
// there.
#pragma once

#include <memory>
#include <string_view>

#include "shadowgraph/graph/target.h"

namespace shadowgraph {

struct SHADOWGRAPH_API InterpreterOptions;
struct SHADOWGRAPH_API RegisteredFunction;

constexpr std::string_view kBodyNote = "body";

// Throws ParseError for what is no graph, ReplayError for one that does not have the target's number of tensors and
// results. Where a body cannot run, running the function throws, naming the body's node.
std::shared_ptr<const RegisteredFunction> function_of_body(const Target& target, std::string_view text,
                                                           const InterpreterOptions& options);

}  // namespace shadowgraph
