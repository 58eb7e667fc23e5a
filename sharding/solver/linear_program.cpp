#include "sharding/solver/linear_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>
#include <tuple>

#include "shadowgraph/sharding/assignment_files.h"
#include "sharding/solver/plain_problem.h"

namespace shadowgraph {

namespace {

using Column = LinearProgram::Column;
using Row = LinearProgram::Row;
using Term = LinearProgram::Term;

// Adds one row for each set of what lives at once that is part of no other: where something ends after something began.
void add_limits(LinearProgram& program, const AssignmentProblem& problem, const std::vector<uint32_t>& first) {
  std::vector<std::tuple<int64_t, bool, uint32_t>> events;  // ends before begins
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

}  // namespace

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
  struct Entry {
    uint32_t row = 0;
    int64_t factor = 0;
  };
  std::vector<std::vector<Entry>> entries(program.columns.size());
  out << "NAME shadowgraph\nROWS\n N cost\n";
  for (uint32_t r = 0; r < program.rows.size(); ++r) {
    const Row& row = program.rows[r];
    out << (row.is_equation ? " E " : " L ") << row.name << '\n';
    for (const Term& term : row.terms) entries[term.column].push_back({.row = r, .factor = term.factor});
  }
  out << "COLUMNS\n";
  // Columns of nodes come first, and are the whole ones.
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
    for (const Entry& entry : entries[c]) {
      out << ' ' << column.name << ' ' << program.rows[entry.row].name << ' ' << entry.factor << '\n';
    }
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
