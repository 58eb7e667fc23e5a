// The options of `shadowgraph plan` that ask more than one plan answers.
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

// Prints a table for each question, and writes questions.txt and questions.json into `folder`, if there is one.
void answer_questions(const WhatOptions& options, const StepSource& source, const ClusterRequest& request,
                      const std::string& folder, bool as_json);

}  // namespace shadowgraph::cli
