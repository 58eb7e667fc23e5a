// Compares the time of profiling with that of capturing: a training step (AdamW) of each built-in model at its default
// size on simulated CUDA. Profiles with all features: FLOPs, memory, scratch, the caching allocator over three steps,
// time on an H100, findings, a static plan, tables and JSON. Reports the minimum of several runs.
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include <cstdio>

#include "bench/measure.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/profile.h"

namespace {

using namespace shadowgraph;

// Returns the minimum time of several runs in milliseconds.
template <class F>
double fastest(F&& run) {
  return bench::seconds(run, 5) * 1e3;
}

void measure(const std::string& name, const DeviceSpec& spec) {
  const FakeTensorMode mode({.device = c10::Device(at::kCUDA, 0)});
  const auto model = models::build(name);
  Graph graph;
  const double capture = fastest([&] { graph = bench::capture_adamw_step(model).graph; });
  const double figures = fastest([&] { profile(graph); });
  size_t bytes = 0;
  const double everything = fastest([&] {
    const Profile costs = profile(graph, {.spec = &spec});
    bytes = to_text(costs.summary()).size() + to_text(costs).size() + to_json(costs).dump().size();
  });
  std::printf("| %s | %u | %.2f | %.2f | %.2f | %.2f | %zu |\n", name.c_str(), graph.node_count(), capture, figures,
              everything, everything / capture, bytes);
  std::fflush(stdout);
}

}  // namespace

int main() {
  const DeviceSpec spec = DeviceSpec::named("h100");
  std::printf(
      "| model | nodes | capture ms | profile ms | everything ms | everything / capture (aim 3) | bytes written |\n");
  std::printf("|---|---|---|---|---|---|---|\n");
  for (const auto& info : models::available()) measure(info.name, spec);
  return 0;
}
