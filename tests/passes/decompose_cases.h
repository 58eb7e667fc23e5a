// One call or more for each row of the table of decompositions.
#pragma once

#include <string>
#include <vector>

#include "tests/passes/replay_check.h"

namespace shadowgraph {

struct DecomposeCase {
  std::string op;  // that must go
  Program program;
  Tensors inputs;
  double tolerance = 1e-5;
};
std::vector<DecomposeCase> decompose_cases();

}  // namespace shadowgraph
