#include "cli/plan_questions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <filesystem>

#include "cli/option_checks.h"
#include "cli/output.h"
#include "cli/source_options.h"
#include "shadowgraph/graph/text.h"

namespace shadowgraph::cli {

void add_what_options(CLI::App& command, WhatOptions& options) {
  begin_group(command, "Sweeps (print a table instead of one plan)");
  command
      .add_option("--what", options.what,
                  fmt::format("Quantities to vary: {}; comma-separated", fmt::join(enum_words<PlanTopic>(), ", ")))
      ->delimiter(',')
      ->check(one_of(enum_words<PlanTopic>()));
  command
      .add_option("--values", options.values,
                  "Values to try: 512,1024; network: bandwidth factors (default: around the request's own)")
      ->delimiter(',');
  add_options(command, options.question, PlanQuestion::table());
}

void answer_questions(const WhatOptions& options, const StepSource& source, const ClusterRequest& request,
                      const std::string& folder, bool as_json) {
  std::vector<PlanQuestion> sweeps;  // all are checked before the first runs
  for (const std::string& what : options.what) {
    PlanQuestion& question = sweeps.emplace_back(options.question);
    question.about = *find_named<PlanTopic>(what);
    question.values = question_values(question.about, options.values);
  }
  if (sweeps.size() > 1 && !options.values.empty()) {
    throw CLI::ValidationError("--values", "applies to one quantity; give a single --what");
  }
  PlanQuestions questions(source, request);
  nlohmann::json all = nlohmann::json::object();
  std::string text;
  for (const PlanQuestion& question : sweeps) {
    const PlanTable table = questions.ask(question);
    all[to_string(table.about)] = to_json(table);
    text += (text.empty() ? "" : "\n") + to_text(table);
  }
  if (!folder.empty()) {
    std::filesystem::create_directories(folder);
    write_file((std::filesystem::path(folder) / "questions.txt").string(), text);
    write_file((std::filesystem::path(folder) / "questions.json").string(), json_text(all));
  }
  print_text(as_json ? json_text(all) : text);
}

}  // namespace shadowgraph::cli
