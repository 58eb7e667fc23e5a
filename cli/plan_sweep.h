// Options of `shadowgraph plan --sweep`: sweeps that compare several plans.
#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

#include "shadowgraph/plan/training_plan.h"

namespace shadowgraph::cli {

struct SweepOptions {
  std::vector<std::string> what, values;
  PlanSweepOptions question;
};
void add_sweep_options(CLI::App& command, SweepOptions& options);

// Prints a table per sweep, and writes sweep.txt and sweep.json to `folder` unless it is empty.
void run_sweeps(const SweepOptions& options, const StepSource& source, const ClusterRequest& request,
                const std::string& folder, bool as_json);

}  // namespace shadowgraph::cli
