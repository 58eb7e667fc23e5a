// What goes wrong in rules of Python. Around whatever asks cost rules (shadowgraph/profile/register_operator.h): what they raised
// meanwhile is thrown at its end.
#pragma once

#include "shadowgraph/error.h"

namespace shadowgraph::python {

void begin_cost_rules();
void end_cost_rules();  // throws Error (python/src/costs.cpp)

}  // namespace shadowgraph::python
