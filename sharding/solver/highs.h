// Calls HiGHS's C API in a dynamically loaded library; HiGHS is not needed at build time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shadowgraph/shard/solver.h"

namespace shadowgraph {

// A mixed-integer linear program in row order; minimizes the sum of costs.
struct HighsProgram {
  std::vector<double> cost, lower, upper;  // by column
  std::vector<int32_t> integer;            // by column: 1 or 0
  std::vector<double> row_lower, row_upper;
  std::vector<int32_t> row_begin;  // terms of row r are [row_begin[r], row_begin[r + 1] or the end)
  std::vector<int32_t> column;     // column of each term
  std::vector<double> factor;

  int32_t add_column(double cost_of_it, double lowest, double highest, bool is_integer);
  void add_row(double lowest, double highest);  // terms added next belong to this row
  void add_term(int32_t of_column, double times);
};

struct HighsOptions {
  double time_limit = 0;  // seconds
  double gap = 0;         // relative
  double absolute_gap = 0;
  int threads = 1;
  std::vector<int32_t> start_columns{};
  std::vector<double> start_values{};
};

enum class HighsStatus : uint8_t { kOptimal, kInfeasible, kNone };  // kNone: stopped early

struct HighsAnswer {
  HighsStatus status = HighsStatus::kNone;
  bool found = false;
  double bound = 0;              // -infinity if unknown
  std::vector<double> values{};  // by column, if found
};

class HighsLibrary {
 public:
  // Loads the library of a path once per process. Throws Error.
  static const HighsLibrary& open(const std::string& path);

  // Solves one program at a time, since HiGHS shares its threads.
  HighsAnswer solve(const HighsProgram& program, const HighsOptions& options) const;
  // Returns an infeasible subset of the rows of the relaxation, as small as HiGHS finds; empty if it is feasible.
  std::vector<int32_t> conflicting_rows(const HighsProgram& program, double time_limit) const;

 private:
  struct Functions;
  explicit HighsLibrary(const Functions* functions) : functions_(functions) {}
  const Functions* functions_;
};

struct HighsRequest {
  const HighsLibrary& library;
  double gap = 0;  // relative
  int threads = 1;
  double time_limit = 0;          // seconds
  std::vector<uint32_t> start{};  // a feasible choice; may be empty
};

struct HighsMinimum {
  bool possible = true;            // false: proven infeasible
  AssignmentCost::Wide bound = 0;  // of all feasible choices, less HiGHS's tolerances
  std::vector<uint32_t> choice{};  // empty if none was found
};
HighsMinimum minimum_by_highs(const AssignmentProblem& problem, const HighsRequest& request);

// Explains infeasibility with HiGHS: returns pins that conflict with each other or the limit, none of which can be
// omitted, and the smallest feasible limit. If the limit is not the cause, returns the conflicting constraints between
// nodes. `problem` must be infeasible.
std::string conflict_by_highs(const AssignmentProblem& problem, const HighsRequest& request,
                              const std::vector<AssignmentPin>& pins);

}  // namespace shadowgraph
