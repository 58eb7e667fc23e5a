// The functions of a plan: which steps are in which, and what goes in and out.
#pragma once

#include <vector>

#include "passes/codegen/code_plan.h"

namespace shadowgraph {

// Fills CodePlan::blocks from its steps and variables. `functions`: regions that are functions however small they are.
void build_blocks(CodePlan& plan, const CodegenOptions& options, const std::vector<RegionId>& functions);

}  // namespace shadowgraph
