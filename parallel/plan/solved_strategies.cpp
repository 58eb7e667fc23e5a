#include "parallel/plan/solved_strategies.h"

#include <fmt/format.h>

#include <algorithm>

namespace shadowgraph {
namespace {

// Names without numbers; those that are the same are told apart by their order.
class Names {
 public:
  std::string of(const AssignmentNode& node) {
    std::string name = node.name;
    std::erase_if(name, [](char c) { return c >= '0' && c <= '9'; });
    const int64_t ordinal = seen_[name]++;
    return fmt::format("{} #{}", name, ordinal);
  }

 private:
  std::map<std::string, int64_t> seen_;
};

}  // namespace

void SolvedStrategies::choose(const std::vector<uint32_t>& choice) {
  Names names;
  for (size_t v = 0; v < nodes_.size(); ++v) strategies_[names.of(nodes_[v])] = nodes_[v].strategies[choice[v]];
}

std::optional<std::vector<uint32_t>> SolvedStrategies::choice_of(const AssignmentProblem& problem) const {
  if (problem.nodes.size() != strategies_.size()) return std::nullopt;
  Names names;
  std::vector<uint32_t> choice;
  for (const AssignmentNode& node : problem.nodes) {
    const auto chosen = strategies_.find(names.of(node));
    if (chosen == strategies_.end()) return std::nullopt;
    const auto found = std::ranges::find(node.strategies, chosen->second);
    if (found == node.strategies.end()) return std::nullopt;
    choice.push_back(static_cast<uint32_t>(found - node.strategies.begin()));
  }
  return choice;
}

}  // namespace shadowgraph
