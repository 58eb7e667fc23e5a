// Runs all benchmarks of a program that measure at 100k and 1M nodes, and prints us per node and growth as a table: the bar
// is "1M nodes take <= 12 x what 100k take". Benchmarks must report in milliseconds.
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
      milliseconds[run.run_name.function_name][run.run_name.args] = run.GetAdjustedRealTime();
    }
  }
};

inline int report_growth(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  Growth growth;
  benchmark::RunSpecifiedBenchmarks(&growth);
  std::printf("\n| | us per node at 100k | at 1M | 1M / 100k (bar 12) |\n|---|---|---|---|\n");
  for (auto& [name, by_size] : growth.milliseconds) {
    std::printf("| %s | %.2f | %.2f | %.1f |\n", name.c_str(), by_size["100000"] * 1e3 / 1e5,
                by_size["1000000"] * 1e3 / 1e6, by_size["1000000"] / by_size["100000"]);
  }
  return 0;
}

}  // namespace shadowgraph::bench
