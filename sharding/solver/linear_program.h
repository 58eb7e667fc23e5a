// Writes an assignment problem in the words of formats that know less.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shadowgraph/shard/solver.h"

namespace shadowgraph {

// Multiplies costs out and gives every edge between two nodes a matrix of its own, every node one interval. Nodes with
// more intervals and edges with usages get further nodes, behind the others and tied to them. Throws Error if a sum has
// more than 64 bits.
AssignmentProblem plain(const AssignmentProblem& given);

// Returns a cost above all that is allowed together. Throws Error if that is too large to be a cost.
int64_t forbidding_cost(const AssignmentProblem& problem);

// Writes an assignment problem as an integer program. It has a column for each strategy of each node and for each pair
// of an edge. Rows choose one strategy a node and make pairs follow from it (the local polytope). One more row stands
// for each maximal set of what lives at once.
struct LinearProgram {
  struct Column {
    std::string name;  // "x3_1": node 3 with strategy 1; "y5_0_2": edge 5 with strategies 0 and 2
    int64_t cost = 0;
    bool is_integer = false;  // pairs follow from strategies
    bool is_allowed = true;   // if not, it is 0
  };
  struct Term {
    uint32_t column = 0;
    int64_t factor = 0;
  };
  struct Row {
    std::string name;
    bool is_equation = true;  // otherwise at most
    int64_t right = 0;
    std::vector<Term> terms{};
  };
  std::vector<Column> columns;  // those of nodes first, in order
  std::vector<Row> rows;

  // Throws Error if a sum has more than 64 bits.
  static LinearProgram of(const AssignmentProblem& problem);
};

}  // namespace shadowgraph
