// Reasons why fake tensors do not support an operator.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>

namespace shadowgraph::conformance {

// Returns "" if there is no reason except that no rule has been written.
std::string why_refused(const c10::OperatorHandle& op);

}  // namespace shadowgraph::conformance
