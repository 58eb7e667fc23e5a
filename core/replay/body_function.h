// Runs a call with an embedded body graph. passes/structure/collapse.cpp writes the collapsed nodes as graph text into
// the call's note "body", so the call can be run wherever its graph is loaded.
//
// The body's sg::input placeholders correspond, in order, to the call's tensor arguments, and its outputs to the call's
// results. Writes modify the given tensors. Random numbers come from the default generator, as in the original nodes.
#pragma once

#include "shadowgraph/graph/target.h"

namespace shadowgraph {

struct SHADOWGRAPH_API InterpreterOptions;
struct SHADOWGRAPH_API RegisteredFunction;

constexpr std::string_view kBodyNote = "body";

// Throws ParseError for invalid graph text, and ReplayError if the numbers of tensors or results differ from the
// target's. If a body cannot run, calling the function throws an error that names the body's node.
std::shared_ptr<const RegisteredFunction> function_of_body(const Target& target, std::string_view text,
                                                           const InterpreterOptions& options);

}  // namespace shadowgraph
