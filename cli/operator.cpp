// `shadowgraph operator`: what is known of an operator, from every table, with the places where it stands.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "cli/output.h"
#include "cli/source_options.h"
#include "cli/verbs.h"
#include "shadowgraph/profile/operator_card.h"

namespace shadowgraph::cli {
namespace {

struct OperatorRequest {
  std::vector<std::string> names;
  bool json = false;
};

int show_operator(const OperatorRequest& request) {
  std::vector<OperatorCard> cards;
  for (const std::string& name : request.names) std::ranges::move(operator_cards(name), std::back_inserter(cards));
  if (request.json) {
    print_text(to_json(cards));
    return 0;
  }
  std::string text;
  for (const OperatorCard& card : cards) text += (text.empty() ? "" : "\n") + to_text(card);
  text.pop_back();
  print_text(text);
  return 0;
}

void add_options(CLI::App& command, OperatorRequest& request) {
  command.add_option("NAME", request.names, "aten::gelu: every overload of it; aten::add.Tensor: that one")->required();
  begin_group(command, kOutput);
  command.add_flag("--json", request.json, "As JSON: an object for each overload");
  command.footer(
      "Each line is a table: what it says, and where that stands. A line with '-' says what happens without.\n"
      "Examples:\n"
      "  shadowgraph operator aten::gelu\n"
      "  shadowgraph operator aten::add.Tensor --json");
}

}  // namespace

Work declare_operator(CLI::App& command) { return work_of<OperatorRequest>(command, add_options, show_operator); }

}  // namespace shadowgraph::cli
