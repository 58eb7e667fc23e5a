// Error handling for cost rules defined in Python (shadowgraph/profile/register_operator.h).
#pragma once

#include "shadowgraph/error.h"

namespace shadowgraph::python {

void begin_cost_rules();
void end_cost_rules();  // throws the first error of the rules as Error

// Returns the result of a function that evaluates cost rules. Throws the first error of the rules after it.
template <class Work>
auto with_cost_rules(Work&& work) {
  begin_cost_rules();
  auto result = work();
  end_cost_rules();
  return result;
}

}  // namespace shadowgraph::python
