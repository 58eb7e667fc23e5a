// Calls HiGHS' C interface in a library that is opened when it is asked for. The build needs nothing of HiGHS.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "shadowgraph/shard/solver.h"

namespace shadowgraph {

// A linear program, some of whose columns are whole numbers, row by row: minimises the sum of costs.
struct HighsProgram {
  std::vector<double> cost, lower, upper;  // by column
  std::vector<int32_t> integer;            // by column: 1 or 0
  std::vector<double> row_lower, row_upper;
  std::vector<int32_t> row_begin;  // terms of row r at [row_begin[r], row_begin[r + 1] or the end)
  std::vector<int32_t> column;     // of a term
  std::vector<double> factor;

  int32_t add_column(double cost_of_it, double lowest, double highest, bool is_integer);
  void add_row(double lowest, double highest);  // terms added after it are this row's
  void add_term(int32_t of_column, double times);
};

struct HighsOptions {
  double time_limit = 0;  // seconds
  double gap = 0;         // relative
  double absolute_gap = 0;
  int threads = 1;
  // Gives some columns a value to begin with.
  std::vector<int32_t> start_columns{};
  std::vector<double> start_values{};
};

enum class HighsStatus : uint8_t { kOptimal, kInfeasible, kNone };  // kNone: it gave up

struct HighsAnswer {
  HighsStatus status = HighsStatus::kNone;
  bool found = false;
  double cost = 0;
  double bound = 0;              // -infinity: none
  std::vector<double> values{};  // by column, if found
};

class HighsLibrary {
 public:
  // Opens the library of a path once and keeps it. Throws Error.
  static const HighsLibrary& open(const std::string& path);

  // Solves one program at a time: HiGHS' threads are shared.
  HighsAnswer solve(const HighsProgram& program, const HighsOptions& options) const;
  // Returns rows of the continuous program that contradict each other, as few as it finds; empty if they do not.
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
  std::vector<uint32_t> start{};  // a feasible choice; empty: none
};

struct HighsMinimum {
  bool possible = true;            // false: shown not to be
  AssignmentCost::Wide bound = 0;  // of all feasible choices, less what tolerances may have added
  std::vector<uint32_t> choice{};  // empty: none was found
};
HighsMinimum minimum_by_highs(const AssignmentProblem& problem, const HighsRequest& request);

// Says whether any choice is allowed and within the limit; nothing if that was not found out in the time.
std::optional<bool> is_possible_by_highs(const AssignmentProblem& problem, const HighsRequest& request);

// The least limit that something fits in.
struct LeastLimit {
  AssignmentCost::Wide bound = 0;  // nothing fits in less
  AssignmentCost::Wide usage = 0;  // of `choice`
  std::vector<uint32_t> choice{};  // empty: none was found
};
LeastLimit least_limit_by_highs(const AssignmentProblem& problem, const HighsRequest& request);

// Says why nothing fits, with HiGHS' help. It gives pins that contradict each other or the limit, none of which can be
// spared, and the least limit that something would fit in. Where no limit is in the way, it gives what ties nodes to
// one another.
struct ConflictRequest {
  const HighsLibrary& library;
  int threads = 1;
  double time_limit = 0;  // seconds
  const std::vector<AssignmentPin>& pins;
};

// `problem` must have no feasible choice.
std::string conflict_by_highs(const AssignmentProblem& problem, const ConflictRequest& request);

}  // namespace shadowgraph
