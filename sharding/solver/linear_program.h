// Writes an assignment problem as an integer program. It has a column for each strategy of each node and for each pair
// of an edge. Rows choose one strategy a node and make pairs follow from it (the local polytope). One more row stands
// for each maximal set of what lives at once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shadowgraph/sharding/assignment.h"

namespace shadowgraph {

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
