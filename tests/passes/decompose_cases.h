// At least one call for each row of the decomposition table.
#pragma once

#include <string>
#include <vector>

#include "tests/passes/replay_check.h"

namespace shadowgraph {

struct DecomposeCase {
  std::string op;  // the operator that must be decomposed
  Program program;
  Tensors inputs;
  double tolerance = 1e-5;
};
std::vector<DecomposeCase> decompose_cases();

}  // namespace shadowgraph
