// Converts assignment problems to less expressive formats.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shadowgraph/shard/solver.h"

namespace shadowgraph {

// Multiplies out multiplicities and gives every edge a separate matrix, every node one interval. Nodes with more
// intervals and edges with usages get additional nodes, after the others and tied to them. Throws Error if a sum
// exceeds 64 bits.
AssignmentProblem plain(const AssignmentProblem& given);

// Returns a cost above the sum of all allowed costs. Throws Error if it does not fit.
int64_t forbidding_cost(const AssignmentProblem& problem);

// An assignment problem as an integer program, with a column for each strategy of each node and for each pair of an
// edge. Rows select one strategy per node and tie pairs to strategies (the local polytope); one more row limits each
// maximal set of simultaneously live usages.
struct LinearProgram {
  struct Column {
    std::string name;  // "x3_1": node 3 with strategy 1; "y5_0_2": edge 5 with strategies 0 and 2
    int64_t cost = 0;
    bool is_integer = false;  // pairs are determined by strategies
    bool is_allowed = true;   // if false, fixed to 0
  };
  struct Term {
    uint32_t column = 0;
    int64_t factor = 0;
  };
  struct Row {
    std::string name;
    bool is_equation = true;  // otherwise <=
    int64_t right = 0;
    std::vector<Term> terms{};
  };
  std::vector<Column> columns;  // nodes first, in order
  std::vector<Row> rows;

  // Throws Error if a sum exceeds 64 bits.
  static LinearProgram of(const AssignmentProblem& problem);
};

}  // namespace shadowgraph
