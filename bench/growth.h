// Benchmarks at 100k and 1M nodes, in a table with the scaling factor. They must report milliseconds and run on one
// thread, since CPU time is used.
#pragma once

#include <benchmark/benchmark.h>

#include <cstdio>
#include <map>
#include <string>
#include <vector>

namespace shadowgraph::bench {

class Growth : public benchmark::ConsoleReporter {
 public:
  std::map<std::string, std::map<std::string, double>> milliseconds;
  void ReportRuns(const std::vector<Run>& runs) override {
    ConsoleReporter::ReportRuns(runs);
    for (const Run& run : runs) {
      milliseconds[run.run_name.function_name][run.run_name.args] = run.GetAdjustedCPUTime();
    }
  }
};

inline Growth run_benchmarks(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  Growth growth;
  benchmark::RunSpecifiedBenchmarks(&growth);
  return growth;
}

// Adds a counter with the time per node, for a benchmark whose argument is a number of nodes.
inline void count_nodes(benchmark::State& state) {
  state.counters["us/node"] =
      benchmark::Counter(static_cast<double>(state.range(0)) / 1e6,
                         benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

// Prints the table of benchmarks that ran at both sizes.
inline void print_growth(const Growth& growth) {
  std::printf("\n| | us per node at 100k | at 1M | 1M / 100k (aim 12) |\n|---|---|---|---|\n");
  for (const auto& [name, by_size] : growth.milliseconds) {
    const auto small = by_size.find("100000");
    const auto large = by_size.find("1000000");
    if (small == by_size.end() || large == by_size.end()) continue;
    std::printf("| %s | %.2f | %.2f | %.1f |\n", name.c_str(), small->second * 1e3 / 1e5, large->second * 1e3 / 1e6,
                large->second / small->second);
  }
}

inline int report_growth(int argc, char** argv) {
  print_growth(run_benchmarks(argc, argv));
  return 0;
}

}  // namespace shadowgraph::bench
