// `shadowgraph assign PROBLEM.json`: solves an assignment problem from a file, ours or one of IOPDDL.
#pragma once

#include <string>

namespace shadowgraph::cli {

struct AssignRequest {
  std::string problem;          // file
  double time_limit = 60;       // seconds
  std::string solver = "own";   // own, highs, both
  std::string highs;            // its library; empty: where it is usual
  double gap = 0;               // relative, good enough
  int threads = 1;              // 1 or 2
  std::string output;           // solution as JSON; empty: none
  std::string exported;         // file to write the problem to; empty: none
  std::string format = "json";  // of it: json, iopddl, lp, mps
  bool json = false;
};

void assign(const AssignRequest& request);

}  // namespace shadowgraph::cli
