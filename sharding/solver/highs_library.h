// Calls HiGHS' C interface in a library that is opened when it is asked for. The build needs nothing of HiGHS.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

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

enum class HighsStatus : uint8_t { kOptimal, kInfeasible, kTime, kNone };  // kNone: it gave up

struct HighsAnswer {
  HighsStatus status = HighsStatus::kNone;
  bool found = false;
  double cost = 0;
  double bound = 0;              // -infinity: none
  std::vector<double> values{};  // by column, if found
};

class HighsLibrary {
 public:
  // Opens the library of a path once and keeps it. Throws SolverMissingError.
  static const HighsLibrary& open(const std::string& path);

  std::string version() const;
  // Solves one program at a time: HiGHS' threads are shared.
  HighsAnswer solve(const HighsProgram& program, const HighsOptions& options) const;
  // Returns rows of the continuous program that contradict each other, as few as it finds; empty if they do not.
  std::vector<int32_t> conflicting_rows(const HighsProgram& program, double time_limit) const;

 private:
  struct Functions;
  explicit HighsLibrary(const Functions* functions) : functions_(functions) {}
  const Functions* functions_;
};

}  // namespace shadowgraph
