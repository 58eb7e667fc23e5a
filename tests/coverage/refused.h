// Why an operator that fake tensors cannot run is none of theirs.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>

namespace shadowgraph::conformance {

// "" if there is no reason but that nobody has written a rule.
std::string why_refused(const c10::OperatorHandle& op);

}  // namespace shadowgraph::conformance
