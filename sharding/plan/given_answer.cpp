#include "shadowgraph/sharding/given_answer.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <limits>

#include "sharding/solver/wide_text.h"
#include "support/json.h"
#include "support/json_place.h"

namespace shadowgraph {
namespace {

constexpr const char* kSolutionFormat = "shadowgraph-assignment-solution";

std::vector<uint32_t> choice_in(const JsonPlace& list) {
  std::vector<uint32_t> choice;
  for (const JsonPlace& strategy : list.elements()) {
    choice.push_back(static_cast<uint32_t>(strategy.integer(0, std::numeric_limits<uint32_t>::max())));
  }
  return choice;
}

std::optional<GivenChoice> choice_of(const nlohmann::json& json, const std::string& name) {
  const JsonPlace place(json, name);
  if (place.is_list()) return GivenChoice{.choice = choice_in(place), .cost = "", .name = name};
  if (!place.is_object() || place.text_or("format", "") != kSolutionFormat) return std::nullopt;
  if (place["version"].integer() != 1) place["version"].fail("is not 1");
  if (const auto why = place.find("why_infeasible"); why && !why->text().empty()) {
    throw Error(fmt::format("{} has no choice: its solver found that {}", name, why->text()));
  }
  return GivenChoice{.choice = choice_in(place["choice"]), .cost = place.text_or("cost", ""), .name = name};
}

std::vector<ShardingPin> layouts_by_name(const JsonPlace& place) {
  std::vector<ShardingPin> pins;
  for (const auto& [name, layout] : place.members()) {
    if (!layout.is_text()) {
      layout.fail(
          fmt::format("is no layout such as \"S(0),R\". An answer is a plan.json, a solution ({}), a list of "
                      "strategies, or layouts "
                      "by name",
                      kSolutionFormat));
    }
    try {
      pins.push_back({.name = name, .layout = Layout::parse(layout.text())});
    } catch (const ParseError&) {
      throw;
    } catch (const Error& error) {
      layout.fail(fmt::format("is no layout: {}", error.what()));
    }
  }
  if (pins.empty()) place.fail("has no layouts");
  return pins;
}

}  // namespace

AssignmentCost GivenChoice::of(const AssignmentProblem& problem) const {
  if (choice.size() != problem.nodes.size()) {
    throw Error(fmt::format("{} chooses for {} nodes, and the problem has {}: it is of another one", name,
                            choice.size(), problem.nodes.size()));
  }
  for (size_t i = 0; i < choice.size(); ++i) {
    if (choice[i] < problem.nodes[i].costs.size()) continue;
    throw Error(fmt::format("{}: choice[{}] is {}, and {} has {} strategies", name, i, choice[i], problem.nodes[i].name,
                            problem.nodes[i].costs.size()));
  }
  const AssignmentCost found = evaluate(problem, choice);
  if (!found.allowed) throw Error(fmt::format("{} chooses what the problem forbids", name));
  if (!cost.empty() && cost != text_of(found.cost)) {
    throw Error(fmt::format("{} says that it costs {}, and here it costs {}: it is of another problem", name, cost,
                            text_of(found.cost)));
  }
  return found;
}

GivenChoice read_choice(std::string_view text, const std::string& name) {
  const nlohmann::json json = parse_json(text, name);
  if (auto choice = choice_of(json, name)) return std::move(*choice);
  throw ParseError(fmt::format("{}: neither a list of strategies nor a {}", name, kSolutionFormat), 0, 0);
}

GivenAnswer read_answer(std::string_view text, const std::string& name, const Graph& graph) {
  const nlohmann::json json = parse_json(text, name);
  GivenAnswer answer;
  answer.choice = choice_of(json, name);
  if (answer.choice) return answer;
  const JsonPlace place(json, name);
  if (!place.is_object()) place.fail("is neither an object nor a list of strategies");
  if (place.find("format")) {
    answer.plan = sharding_plan_from_json(json, graph);
  } else {
    answer.layouts = layouts_by_name(place);
  }
  return answer;
}

}  // namespace shadowgraph
