// `shadowgraph operator`: shows every rule and kernel of an operator with its source location.

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "cli/output.h"
#include "cli/source_options.h"
#include "cli/verbs.h"
#include "shadowgraph/profile/operator_support.h"

namespace shadowgraph::cli {
namespace {

struct OperatorRequest {
  std::vector<std::string> names;
  bool json = false;
};

int show_operator(const OperatorRequest& request) {
  std::vector<OperatorSupport> cards;
  for (const std::string& name : request.names) std::ranges::move(operator_support(name), std::back_inserter(cards));
  if (request.json) {
    print_text(to_json(cards));
    return 0;
  }
  std::string text;
  for (const OperatorSupport& card : cards) text += (text.empty() ? "" : "\n") + to_text(card);
  text.pop_back();
  print_text(text);
  return 0;
}

void add_options(CLI::App& command, OperatorRequest& request) {
  command.add_option("NAME", request.names, "Operator: aten::gelu (all overloads) or aten::add.Tensor (one overload)")
      ->required();
  begin_group(command, kOutput);
  command.add_flag("--json", request.json, "Print JSON, one object per overload");
  command.footer(
      "Each line shows one rule or kernel and its source location; '-' marks a missing one and describes the "
      "fallback.\n"
      "Examples:\n"
      "  shadowgraph operator aten::gelu\n"
      "  shadowgraph operator aten::add.Tensor --json");
}

}  // namespace

Work declare_operator(CLI::App& command) { return work_of<OperatorRequest>(command, add_options, show_operator); }

}  // namespace shadowgraph::cli
