// Reads, writes, evaluates and solves generated assignment problems of 100k and 1M nodes, or the instances of the
// IOPDDL contest (https://github.com/google/iopddl, benchmarks/*.json, unpacked):
//
//     assignment --instances DIR [--share 0.25] [--threads 2]
//
// `--share` is the fraction of the contest's time limits to use. The limits include reading.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <sstream>
#include <string>

#include "bench/growth.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/shard/solver.h"

namespace {

using namespace shadowgraph;

// A chain with skip connections: every fourth node also has an edge from the fourth node before it.
AssignmentProblem generated(int64_t nodes, bool limited) {
  constexpr uint32_t kStrategies = 4;
  constexpr int64_t kSkip = 4;
  AssignmentProblem problem;
  problem.name = "chain";
  uint64_t state = 1;
  const auto below = [&](uint64_t limit) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    return static_cast<int64_t>((state >> 33) % limit);
  };
  for (int m = 0; m < 64; ++m) {
    CostMatrix matrix{.rows = kStrategies, .columns = kStrategies};
    for (uint32_t i = 0; i < kStrategies * kStrategies; ++i) {
      matrix.costs.push_back(i % (kStrategies + 1) == 0 ? 0 : below(1000));
    }
    problem.matrices.push_back(std::move(matrix));
  }
  for (int64_t v = 0; v < nodes; ++v) {
    AssignmentNode node;
    for (uint32_t s = 0; s < kStrategies; ++s) {
      node.costs.push_back(below(1000));
      node.usages.push_back(int64_t{1024} << (kStrategies - s));
    }
    node.live = {{.begin = v, .end = v + 2 + below(8)}};
    problem.nodes.push_back(std::move(node));
    const auto edge = [&](int64_t from) {
      problem.edges.push_back({.a = static_cast<uint32_t>(from),
                               .b = static_cast<uint32_t>(v),
                               .matrix = static_cast<uint32_t>(below(64))});
    };
    if (v > 0) edge(v - 1);
    if (v >= kSkip && v % kSkip == 0) edge(v - kSkip);
  }
  if (limited) problem.usage_limit = 40 * 1024;
  return problem;
}

void write(benchmark::State& state) {
  const AssignmentProblem problem = generated(state.range(0), true);
  for (auto _ : state) {
    std::ostringstream out;
    write_assignment(problem, out);
    benchmark::DoNotOptimize(out.str().size());
  }
}
BENCHMARK(write)->Arg(100'000)->Arg(1'000'000)->Unit(benchmark::kMillisecond);

void read(benchmark::State& state) {
  std::ostringstream out;
  write_assignment(generated(state.range(0), true), out);
  const std::string text = out.str();
  for (auto _ : state) benchmark::DoNotOptimize(read_assignment(text).edges.size());
}
BENCHMARK(read)->Arg(100'000)->Arg(1'000'000)->Unit(benchmark::kMillisecond);

void evaluate_a_choice(benchmark::State& state) {
  const AssignmentProblem problem = generated(state.range(0), true);
  const std::vector<uint32_t> choice(problem.nodes.size(), 3);
  for (auto _ : state) benchmark::DoNotOptimize(evaluate(problem, choice).peak);
}
BENCHMARK(evaluate_a_choice)->Arg(100'000)->Arg(1'000'000)->Unit(benchmark::kMillisecond);

void solve_without_limit(benchmark::State& state) {
  const AssignmentProblem problem = generated(state.range(0), false);
  bool optimal = true;
  for (auto _ : state) optimal = optimal && solve(problem, {.time_limit = 600}).optimal;
  if (!optimal) state.SkipWithError("not proven optimal");
}
BENCHMARK(solve_without_limit)->Arg(100'000)->Arg(1'000'000)->Unit(benchmark::kMillisecond)->Iterations(1);

struct Instance {
  const char* name;
  double seconds;  // the contest's time limit
  double best;     // best known cost, from the results of the contest, experiments of its winners, and Gurobi (B, S, V)
};
constexpr Instance kInstances[] = {
    {"A", 60, 6548641531.},  {"B", 60, 532843.},        {"C", 60, 84102445260.},   {"D", 60, 3.094e11},
    {"G", 120, 217039.},     {"K", 180, 2242635780.},   {"L", 180, 1970993742.},   {"M", 180, 49928188600.},
    {"N", 180, 1.9947e11},   {"P", 240, 651833115436.}, {"Q", 240, 526776842042.}, {"R", 240, 3.671e11},
    {"S", 240, 1511377982.}, {"T", 240, 6.713e11},      {"U", 300, 2.444e9},       {"V", 300, 1617084.},
};

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void run_instances(const std::filesystem::path& folder, double share, size_t threads) {
  std::printf(
      "| instance | nodes | limit s | seconds | cost | best / cost | bound / cost |\n|---|---|---|---|---|---|---|\n");
  double sum = 0;
  int count = 0;
  for (const Instance& instance : kInstances) {
    // Files have one of two names.
    std::filesystem::path file = folder / (std::string(instance.name) + ".json");
    if (!std::filesystem::exists(file)) file = folder / ("asplos-2025-iopddl-" + std::string(instance.name) + ".json");
    if (!std::filesystem::exists(file)) {
      std::printf("| %s | not in %s | | | | | |\n", instance.name, folder.c_str());
      continue;
    }
    const double start = seconds_now();
    const AssignmentProblem problem = read_assignment(read_file(file.string()));
    SolveOptions options{.iterations = std::numeric_limits<int>::max(),
                         .moves = std::numeric_limits<int64_t>::max(),
                         .threads = threads};
    // Reserve 2 % for work that cannot be interrupted.
    options.time_limit = std::max(1.0, instance.seconds * share * 0.98 - (seconds_now() - start));
    const AssignmentSolution solution = solve(problem, options);
    const auto cost = static_cast<double>(solution.cost);
    const double ratio = solution.feasible ? instance.best / cost : 0;
    sum += ratio;
    ++count;
    std::printf("| %s | %zu | %.0f | %.1f | %.9g | %.4f | %.4f |\n", instance.name, problem.nodes.size(),
                instance.seconds * share, seconds_now() - start, cost, ratio,
                solution.feasible ? static_cast<double>(solution.lower_bound) / cost : 0);
    std::fflush(stdout);
  }
  if (count > 0) std::printf("\n%d instances, mean of best / cost %.4f\n", count, sum / count);
}

}  // namespace

int main(int argc, char** argv) {
  std::string folder;
  double share = 1;
  size_t threads = 1;
  for (int i = 1; i + 1 < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--instances") folder = argv[i + 1];
    if (option == "--share") share = std::atof(argv[i + 1]);
    if (option == "--threads") threads = std::strtoul(argv[i + 1], nullptr, 10);
  }
  if (!folder.empty()) {
    run_instances(folder, share, threads);
    return 0;
  }
  std::printf("Use --instances DIR to run the instances of the IOPDDL contest.\n");
  return shadowgraph::bench::report_growth(argc, argv);
}
