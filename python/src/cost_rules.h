// Error handling for cost rules defined in Python (shadowgraph/profile/register_operator.h). Calls that evaluate cost
// rules are placed between begin_cost_rules() and end_cost_rules(), which throws the first error.
#pragma once

#include "shadowgraph/error.h"

namespace shadowgraph::python {

void begin_cost_rules();
void end_cost_rules();  // throws Error

}  // namespace shadowgraph::python
