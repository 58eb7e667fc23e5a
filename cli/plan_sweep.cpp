#include "cli/plan_sweep.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <filesystem>

#include "cli/option_checks.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/source_options.h"
#include "shadowgraph/graph/text.h"
#include "support/files.h"

namespace shadowgraph::cli {

void add_sweep_options(CLI::App& command, SweepOptions& options) {
  begin_group(command, "Sweeps (print a table instead of one plan)");
  command
      .add_option("--sweep", options.what,
                  fmt::format("Quantities to vary: {}; comma-separated", fmt::join(enum_words<PlanSweepKind>(), ", ")))
      ->delimiter(',')
      ->check(one_of(enum_words<PlanSweepKind>()));
  command
      .add_option("--values", options.values,
                  "Values to try: 512,1024; network: bandwidth factors (default: around the request's own)")
      ->delimiter(',');
  add_options(command, options.question, PlanSweepOptions::table());
}

void run_sweeps(const SweepOptions& options, const StepSource& source, const ClusterRequest& request,
                const std::string& folder, bool as_json) {
  std::vector<PlanSweepOptions> sweeps;  // all are checked before the first runs
  for (const std::string& what : options.what) {
    PlanSweepOptions& question = sweeps.emplace_back(options.question);
    question.kind = *find_named<PlanSweepKind>(what);
    question.values = sweep_values(question.kind, options.values);
  }
  if (sweeps.size() > 1 && !options.values.empty()) {
    throw CLI::ValidationError("--values", "applies to one quantity; give a single --sweep");
  }
  PlanSweep sweep(source, request);
  nlohmann::json all = nlohmann::json::object();
  std::string text;
  for (const PlanSweepOptions& question : sweeps) {
    const Progress progress(fmt::format("planning {} for several values of {}", source.name, to_string(question.kind)));
    const PlanTable table = sweep.run(question);
    all[to_string(table.kind)] = to_json(table);
    text += (text.empty() ? "" : "\n") + to_text(table);
  }
  if (!folder.empty()) {
    make_folder(folder);
    write_file((std::filesystem::path(folder) / "sweep.txt").string(), printable(text));
    write_file((std::filesystem::path(folder) / "sweep.json").string(), json_text(all));
  }
  print_text(as_json ? json_text(all) : text);
}

}  // namespace shadowgraph::cli
