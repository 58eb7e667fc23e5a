// Options of `shadowgraph plan --what`: sweeps that compare several plans.
#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

#include "shadowgraph/plan/training_plan.h"

namespace shadowgraph::cli {

struct WhatOptions {
  std::vector<std::string> what, values;
  PlanQuestion question;
};
void add_what_options(CLI::App& command, WhatOptions& options);

// Prints a table per sweep, and writes questions.txt and questions.json to `folder` unless it is empty.
void answer_questions(const WhatOptions& options, const StepSource& source, const ClusterRequest& request,
                      const std::string& folder, bool as_json);

}  // namespace shadowgraph::cli
