// Assignment problems: `shard` solves one, may write it to a file, and `shard --problem FILE` solves one from a file.
#pragma once

#include <CLI/CLI.hpp>

#include <optional>
#include <string>

#include "shadowgraph/sharding/assignment.h"

namespace shadowgraph::cli {

struct SolverRequest {
  std::string solver = "own";        // own, highs, both
  std::string highs;                 // its library; empty: where it is usual
  std::optional<double> time_limit;  // seconds; empty: 20, and 60 for a problem from a file
  std::string exported;              // file to write the problem to; empty: none
  std::string format = "json";       // of it: json, iopddl, lp, mps
};

struct ProblemRequest {
  std::string problem;  // file, ours or one of IOPDDL
  double gap = 0;       // relative, good enough
  int threads = 1;      // 1 or 2
  std::string output;   // solution as JSON; empty: none
  bool json = false;
};

void add_solver_options(CLI::App& command, SolverRequest& request);
void export_problem(const AssignmentProblem& problem, const SolverRequest& request);
void solve_problem(const ProblemRequest& request, const SolverRequest& solver);

}  // namespace shadowgraph::cli
