#include "cli/what_if.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/option_checks.h"
#include "cli/output.h"
#include "shadowgraph/profile/what_if.h"

namespace shadowgraph::cli {
namespace {

struct KnownChange {
  const char* name;
  CLI::Validator takes;
  void (*apply)(WhatIf& change, const std::string& value);
};

const std::vector<KnownChange>& known_changes() {
  static const std::vector<KnownChange> known = {
      {"dtype", one_of({"bf16", "f16"}),
       [](WhatIf& change, const std::string& value) {
         change.dtype = value == "bf16" ? c10::ScalarType::BFloat16 : c10::ScalarType::Half;
       }},
      {"optimizer", one_of({"none", "sgd", "sgd_momentum", "adam", "adamw"}),
       [](WhatIf& change, const std::string& value) { change.optimizer = value; }},
      {"accumulate", whole_number_from(1),
       [](WhatIf& change, const std::string& value) { change.accumulate = std::stoll(value); }},
      {"checkpoint", CLI::Validator([](std::string&) { return std::string(); }, ""),
       [](WhatIf& change, const std::string& value) { change.checkpoint = value; }},
      {"zero", one_of({"0", "1", "2", "3"}),
       [](WhatIf& change, const std::string& value) { change.zero_stage = std::stoi(value); }},
      {"ranks", whole_number_from(2),
       [](WhatIf& change, const std::string& value) { change.ranks = std::stoll(value); }},
  };
  return known;
}

void apply(const std::string& text, WhatIf& change) {
  const size_t equals = text.find('=');
  const std::string name = text.substr(0, equals);
  std::vector<std::string> names;
  for (const KnownChange& known : known_changes()) {
    names.emplace_back(known.name);
    if (name != known.name) continue;
    const std::string value = equals == text.npos ? "" : text.substr(equals + 1);
    const std::string problem = value.empty() ? "a value is missing" : known.takes(value);
    if (!problem.empty()) throw CLI::ValidationError("--what-if " + name, problem);
    known.apply(change, value);
    return;
  }
  throw CLI::ValidationError("--what-if", one_of(names)(name));
}

}  // namespace

void print_what_if(const CaptureRequest& capture, const std::vector<std::string>& changes, bool json) {
  WhatIf change;
  for (const std::string& text : changes) apply(text, change);
  const LoadedGraph loaded = load(capture);
  const WhatIfAnswer answer = what_if(loaded.graph, change);
  print_text(json ? json_text(to_json(answer)) : to_text(answer));
}

}  // namespace shadowgraph::cli
