#include "core/rules/families.h"
#include "core/rules/registry.h"
#include "core/rules/support.h"

namespace shadowgraph::rules {

void register_loss(RuleRegistry& /*registry*/) {}

}  // namespace shadowgraph::rules
