// Assignment problems and their solutions as files.
//
//     const AssignmentProblem problem = read_assignment(read_file("V.json"));        // ours, or one of IOPDDL
//     write_file("V.lp", [&](std::ostream& out) { write_lp(problem, out); });
//
// IOPDDL (https://github.com/google/iopddl) knows one live interval a node and no counts, pins, forbidden choices or
// usages of edges. Writing keeps the optimum all the same. Costs and usages are multiplied out. Nodes with more than
// one interval and edges with usages get further nodes that are tied to them. What is not allowed costs more than all
// else together.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <iosfwd>
#include <span>
#include <string_view>

#include "shadowgraph/export.h"
#include "shadowgraph/sharding/assignment.h"
#include "shadowgraph/sharding/solver.h"

namespace SHADOWGRAPH_API shadowgraph {

// Either format, by what it has. Throws ParseError with line and column of what is wrong.
AssignmentProblem read_assignment(std::string_view text);

// Throws Error if a cost that is multiplied out is too large. The first nodes are those of the problem.
void write_iopddl(const AssignmentProblem& problem, std::ostream& out);
// {"format": "shadowgraph-assignment", "version": 1, "nodes": [...], "matrices": [...], "edges": [...]}; null: forbidden.
void write_assignment(const AssignmentProblem& problem, std::ostream& out);
// As an integer program for other solvers, in the format of CPLEX: "x3_1" is node 3 with strategy 1.
void write_lp(const AssignmentProblem& problem, std::ostream& out);
// The same in free MPS.
void write_mps(const AssignmentProblem& problem, std::ostream& out);

enum class AssignmentFormat : uint8_t { kJson, kIopddl, kLp, kMps };
void write_assignment(const AssignmentProblem& problem, AssignmentFormat format, std::ostream& out);

// {"format": "shadowgraph-assignment-solution", "version": 1, "choice": [...], "cost": "...", "lower_bound": "..."}; sums
// are texts, since they may have more than 64 bits.
nlohmann::json to_json(const AssignmentSolution& solution);

}  // namespace shadowgraph
