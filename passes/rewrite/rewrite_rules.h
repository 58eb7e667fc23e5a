// What is asked of a rule before it is used. parse_rules (shadowgraph/passes/rewrite.h) asks it, too.
#pragma once

#include "shadowgraph/passes/rewrite.h"

namespace shadowgraph {

// Throws ParseError, with the rule's name, if its replacement cannot stand for its pattern.
void check_rule(const RewriteRule& rule);

}  // namespace shadowgraph
