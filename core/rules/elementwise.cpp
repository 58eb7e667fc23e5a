#include "core/rules/families.h"
#include "core/rules/registry.h"
#include "core/rules/support.h"

namespace shadowgraph::rules {

void register_elementwise(RuleRegistry& /*registry*/) {}

}  // namespace shadowgraph::rules
