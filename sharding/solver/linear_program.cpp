// Converts usages of pairs to usages of nodes: an edge with usages becomes a node, one strategy per pair, tied to both.
#include "sharding/solver/linear_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <ostream>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "shadowgraph/shard/solver.h"

namespace shadowgraph {
namespace {

// Returns the pairs of an edge with usages, in the order of the strategies of the node that replaces it.
std::vector<std::pair<uint32_t, uint32_t>> pairs_of(const AssignmentProblem& problem, const AssignmentEdge& edge) {
  const CostMatrix& matrix = problem.matrices[edge.matrix];
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  if (edge.live.empty() || std::ranges::none_of(matrix.usages, [](int64_t x) { return x > 0; })) return pairs;
  for (uint32_t i = 0; i < matrix.rows; ++i) {
    for (uint32_t j = 0; j < matrix.columns; ++j) {
      if (matrix.at(i, j) != kForbidden && (edge.a != edge.b || i == j)) pairs.emplace_back(i, j);
    }
  }
  return pairs;
}

int64_t multiplied(int64_t figure, int64_t times) {
  int64_t product = 0;
  if (__builtin_mul_overflow(figure, times, &product)) throw Error("a cost times its multiplicity exceeds 64 bits");
  return product;
}

bool may_be(const AssignmentNode& node, uint32_t s) {
  return node.costs[s] != kForbidden && (node.pinned < 0 || static_cast<uint32_t>(node.pinned) == s);
}

using Column = LinearProgram::Column;
using Row = LinearProgram::Row;
using Term = LinearProgram::Term;

// Adds one row for each maximal set of simultaneously live usages: where an end follows a begin.
void add_limits(LinearProgram& program, const AssignmentProblem& problem, const std::vector<uint32_t>& first) {
  std::vector<std::tuple<int64_t, bool, uint32_t>> events;  // ends sort before begins
  for (uint32_t v = 0; v < problem.nodes.size(); ++v) {
    for (const LiveInterval& interval : problem.nodes[v].live) {
      events.emplace_back(interval.begin, true, v);
      events.emplace_back(interval.end, false, v);
    }
  }
  std::sort(events.begin(), events.end());
  std::vector<uint32_t> alive;
  bool grew = false;
  for (const auto& [time, begins, v] : events) {
    if (begins) {
      alive.push_back(v);
      grew = true;
      continue;
    }
    if (grew) {
      Row row{.name = fmt::format("usage{}", time), .is_equation = false, .right = problem.usage_limit};
      for (const uint32_t u : alive) {
        for (uint32_t s = 0; s < problem.nodes[u].usages.size(); ++s) {
          const int64_t usage = problem.nodes[u].usages[s];
          if (usage > 0) row.terms.push_back({.column = first[u] + s, .factor = usage});
        }
      }
      if (!row.terms.empty()) program.rows.push_back(std::move(row));
      grew = false;
    }
    std::erase(alive, v);
  }
}

// The given problem's nodes come first. Extended choices have the same cost. Forbidden pairs become no strategy.
AssignmentProblem with_node_usages(const AssignmentProblem& problem) {
  AssignmentProblem result = problem;
  result.edges.clear();
  for (const AssignmentEdge& edge : problem.edges) {
    const CostMatrix& matrix = problem.matrices[edge.matrix];
    const auto pairs = pairs_of(problem, edge);
    if (pairs.empty()) {
      result.edges.push_back({.a = edge.a, .b = edge.b, .matrix = edge.matrix, .times = edge.times});
      continue;
    }
    AssignmentNode node{.name = fmt::format("{} -> {}", problem.nodes[edge.a].name, problem.nodes[edge.b].name)};
    CostMatrix to_a{.rows = static_cast<uint32_t>(pairs.size()), .columns = matrix.rows};
    CostMatrix to_b{.rows = static_cast<uint32_t>(pairs.size()), .columns = matrix.columns};
    to_a.costs.assign(size_t{to_a.rows} * to_a.columns, kForbidden);
    to_b.costs.assign(size_t{to_b.rows} * to_b.columns, kForbidden);
    for (size_t p = 0; p < pairs.size(); ++p) {
      const auto [i, j] = pairs[p];
      node.costs.push_back(matrix.at(i, j));
      node.usages.push_back(matrix.usages[size_t{i} * matrix.columns + j]);
      to_a.costs[p * to_a.columns + i] = 0;
      to_b.costs[p * to_b.columns + j] = 0;
    }
    node.live = edge.live;
    node.times = edge.times;
    const auto added = static_cast<uint32_t>(result.nodes.size());
    result.nodes.push_back(std::move(node));
    const auto tie = [&](uint32_t end, CostMatrix ties) {
      result.edges.push_back({.a = added, .b = end, .matrix = static_cast<uint32_t>(result.matrices.size())});
      result.matrices.push_back(std::move(ties));
    };
    tie(edge.a, std::move(to_a));
    if (edge.a != edge.b) tie(edge.b, std::move(to_b));
  }
  for (CostMatrix& matrix : result.matrices) matrix.usages.clear();
  return result;
}

}  // namespace

AssignmentProblem plain(const AssignmentProblem& given) {
  AssignmentProblem problem = with_node_usages(given);
  const size_t count = problem.nodes.size();
  for (size_t i = 0; i < count; ++i) {
    for (uint32_t s = 0; s < problem.nodes[i].costs.size(); ++s) {
      int64_t& cost = problem.nodes[i].costs[s];
      cost = may_be(problem.nodes[i], s) ? multiplied(cost, problem.nodes[i].times) : kForbidden;
    }
    problem.nodes[i].times = 1;
    problem.nodes[i].pinned = -1;
    if (problem.nodes[i].usages.empty()) {
      problem.nodes[i].usages.assign(problem.nodes[i].costs.size(), 0);
      problem.nodes[i].live.clear();
    }
    const AssignmentNode node = problem.nodes[i];
    for (size_t k = 0; k < node.live.size(); ++k) {
      AssignmentNode part{.name = node.name, .costs = std::vector<int64_t>(node.costs.size(), 0)};
      for (const int64_t usage : node.usages) part.usages.push_back(multiplied(usage, node.live[k].count));
      part.live = {{.begin = node.live[k].begin, .end = node.live[k].end}};
      if (k == 0) {
        problem.nodes[i].usages = std::move(part.usages);
        problem.nodes[i].live = std::move(part.live);
        continue;
      }
      const auto size = static_cast<uint32_t>(node.costs.size());
      CostMatrix tie{.rows = size, .columns = size};
      tie.costs.assign(size_t{size} * size, kForbidden);
      for (uint32_t s = 0; s < size; ++s) tie.costs[size_t{s} * size + s] = 0;
      problem.edges.push_back({.a = static_cast<uint32_t>(i),
                               .b = static_cast<uint32_t>(problem.nodes.size()),
                               .matrix = static_cast<uint32_t>(problem.matrices.size())});
      problem.matrices.push_back(std::move(tie));
      problem.nodes.push_back(std::move(part));
    }
  }
  std::vector<AssignmentEdge> edges;
  std::vector<CostMatrix> matrices;
  for (const AssignmentEdge& edge : problem.edges) {
    CostMatrix matrix = problem.matrices[edge.matrix];
    for (int64_t& cost : matrix.costs) cost = cost == kForbidden ? kForbidden : multiplied(cost, edge.times);
    if (edge.a == edge.b) {
      for (uint32_t s = 0; s < matrix.rows; ++s) {
        int64_t& cost = problem.nodes[edge.a].costs[s];
        const int64_t more = matrix.at(s, s);
        if (cost == kForbidden || more == kForbidden) {
          cost = kForbidden;
        } else if (__builtin_add_overflow(cost, more, &cost)) {
          throw Error("a sum of costs exceeds 64 bits");
        }
      }
      continue;
    }
    edges.push_back({.a = edge.a, .b = edge.b, .matrix = static_cast<uint32_t>(matrices.size())});
    matrices.push_back(std::move(matrix));
  }
  problem.edges = std::move(edges);
  problem.matrices = std::move(matrices);
  return problem;
}

int64_t forbidding_cost(const AssignmentProblem& problem) {
  AssignmentCost::Wide sum = 1;
  const auto add = [&](std::span<const int64_t> costs) {
    int64_t most = 0;
    for (const int64_t cost : costs) most = cost == kForbidden ? most : std::max(most, cost);
    sum += most;
  };
  for (const AssignmentNode& node : problem.nodes) add(node.costs);
  for (const CostMatrix& matrix : problem.matrices) add(matrix.costs);
  if (sum > std::numeric_limits<int64_t>::max() / 4)
    throw Error("costs are too large to express forbidden pairs as a cost");
  return static_cast<int64_t>(sum);
}

LinearProgram LinearProgram::of(const AssignmentProblem& given) {
  const AssignmentProblem problem = plain(given);
  LinearProgram program;
  std::vector<uint32_t> first;
  for (uint32_t v = 0; v < problem.nodes.size(); ++v) {
    first.push_back(static_cast<uint32_t>(program.columns.size()));
    Row one{.name = fmt::format("one{}", v), .right = 1};
    for (uint32_t s = 0; s < problem.nodes[v].costs.size(); ++s) {
      const int64_t cost = problem.nodes[v].costs[s];
      one.terms.push_back({.column = static_cast<uint32_t>(program.columns.size()), .factor = 1});
      program.columns.push_back({.name = fmt::format("x{}_{}", v, s),
                                 .cost = cost == kForbidden ? 0 : cost,
                                 .is_integer = true,
                                 .is_allowed = cost != kForbidden});
    }
    program.rows.push_back(std::move(one));
  }
  for (uint32_t e = 0; e < problem.edges.size(); ++e) {
    const AssignmentEdge& edge = problem.edges[e];
    const CostMatrix& matrix = problem.matrices[edge.matrix];
    std::vector<Row> of_a;
    std::vector<Row> of_b;
    for (uint32_t i = 0; i < matrix.rows; ++i) {
      of_a.push_back({.name = fmt::format("a{}_{}", e, i), .terms = {{.column = first[edge.a] + i, .factor = -1}}});
    }
    for (uint32_t j = 0; j < matrix.columns; ++j) {
      of_b.push_back({.name = fmt::format("b{}_{}", e, j), .terms = {{.column = first[edge.b] + j, .factor = -1}}});
    }
    for (uint32_t i = 0; i < matrix.rows; ++i) {
      for (uint32_t j = 0; j < matrix.columns; ++j) {
        const bool allowed = matrix.at(i, j) != kForbidden && program.columns[first[edge.a] + i].is_allowed &&
                             program.columns[first[edge.b] + j].is_allowed;
        if (!allowed) continue;
        const auto column = static_cast<uint32_t>(program.columns.size());
        of_a[i].terms.push_back({.column = column, .factor = 1});
        of_b[j].terms.push_back({.column = column, .factor = 1});
        program.columns.push_back({.name = fmt::format("y{}_{}_{}", e, i, j), .cost = matrix.at(i, j)});
      }
    }
    for (std::vector<Row>* side : {&of_a, &of_b}) {
      for (Row& row : *side) program.rows.push_back(std::move(row));
    }
  }
  if (problem.usage_limit != kNoLimit) add_limits(program, problem, first);
  return program;
}

void write_lp(const AssignmentProblem& problem, std::ostream& out) {
  const LinearProgram program = LinearProgram::of(problem);
  const auto write_term = [&](int64_t factor, const Column& column) {
    out << "\n " << (factor < 0 ? "- " : "+ ") << (factor < 0 ? -factor : factor) << ' ' << column.name;
  };
  out << "Minimize\n cost:";
  for (const Column& column : program.columns) write_term(column.cost, column);
  out << "\nSubject To\n";
  for (const Row& row : program.rows) {
    out << ' ' << row.name << ':';
    for (const Term& term : row.terms) write_term(term.factor, program.columns[term.column]);
    out << (row.is_equation ? " = " : " <= ") << row.right << '\n';
  }
  out << "Bounds\n";
  for (const Column& column : program.columns) {
    if (!column.is_allowed) out << ' ' << column.name << " = 0\n";
  }
  out << "Binary\n";
  for (const Column& column : program.columns) {
    if (column.is_integer && column.is_allowed) out << ' ' << column.name << '\n';
  }
  out << "End\n";
}

void write_mps(const AssignmentProblem& problem, std::ostream& out) {
  const LinearProgram program = LinearProgram::of(problem);
  std::vector<std::vector<std::pair<const Row*, int64_t>>> entries(program.columns.size());  // factors in rows
  out << "NAME shadowgraph\nROWS\n N cost\n";
  for (const Row& row : program.rows) {
    out << (row.is_equation ? " E " : " L ") << row.name << '\n';
    for (const Term& term : row.terms) entries[term.column].emplace_back(&row, term.factor);
  }
  out << "COLUMNS\n";
  // Columns of nodes come first and are the integer ones.
  bool in_integers = false;
  int markers = 0;
  const auto mark = [&](bool integers) {
    if (integers == in_integers) return;
    out << " M" << markers++ << " 'MARKER' " << (integers ? "'INTORG'\n" : "'INTEND'\n");
    in_integers = integers;
  };
  for (size_t c = 0; c < program.columns.size(); ++c) {
    const Column& column = program.columns[c];
    mark(column.is_integer);
    out << ' ' << column.name << " cost " << column.cost << '\n';
    for (const auto& [row, factor] : entries[c]) out << ' ' << column.name << ' ' << row->name << ' ' << factor << '\n';
  }
  mark(false);
  out << "RHS\n";
  for (const Row& row : program.rows) {
    if (row.right != 0) out << " RHS " << row.name << ' ' << row.right << '\n';
  }
  out << "BOUNDS\n";
  for (const Column& column : program.columns) {
    if (column.is_integer) out << " UP BND " << column.name << (column.is_allowed ? " 1\n" : " 0\n");
  }
  out << "ENDATA\n";
}

}  // namespace shadowgraph
