// Says which operators no graph holds: those that run as others, which are recorded in their place.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace shadowgraph {

bool runs_as_others(const c10::OperatorHandle& op);

}  // namespace shadowgraph
