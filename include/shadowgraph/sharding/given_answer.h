// What a person or another solver has decided of a step, read from a file.
//
//     const GivenAnswer answer = read_answer(read_file("choice.json"), "choice.json", graph);
//
// Four kinds are told by what is in them:
//
//     {"format": "shadowgraph-sharding-plan", ...}            layouts of all nodes: plan.json
//     {"format": "shadowgraph-assignment-solution", ...}      a strategy for each node of the exported problem
//     [0, 3, 1, ...]                                          the same alone, as solvers of IOPDDL write it
//     {"head.weight": "R,S(0)", "layers.*.norm.weight": ...}  layouts by name: all else is chosen at least cost
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"
#include "shadowgraph/sharding/assignment.h"
#include "shadowgraph/sharding/plan.h"
#include "shadowgraph/sharding/problem.h"

namespace SHADOWGRAPH_API shadowgraph {

// A solution of an assignment problem.
struct GivenChoice {
  std::vector<uint32_t> choice;
  std::string cost;  // that the file says it has; "": it does not say
  std::string name;  // of the file, for messages

  // Returns what it costs. Throws Error if it is of another problem: of other nodes or strategies, or if it costs
  // something else than the file says.
  AssignmentCost of(const AssignmentProblem& problem) const;
};

// One of the three.
struct GivenAnswer {
  std::optional<ShardingPlan> plan;
  std::optional<GivenChoice> choice;
  std::vector<ShardingPin> layouts;
};

// `name` is of the file, for messages. Throws ParseError for what is none of the four, or is of another graph.
GivenAnswer read_answer(std::string_view text, const std::string& name, const Graph& graph);
// Reads the second or third kind alone. Throws ParseError for anything else.
GivenChoice read_choice(std::string_view text, const std::string& name);

}  // namespace shadowgraph
