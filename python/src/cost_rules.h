// Around whatever asks cost rules (shadowgraph/operators.h): what Python's rules raised meanwhile is thrown at its end.
#pragma once

namespace shadowgraph::python {

void begin_cost_rules();
void end_cost_rules();  // throws CostRuleError (python/src/costs.cpp)

}  // namespace shadowgraph::python
