// Captures a training step (AdamW) of each built-in model at its default size on simulated CUDA. Excludes building the
// module.
//
//   capture_models             all models, each in a separate process, as a table
//   capture_models MODEL [--no-optimizer]
//                              one model: cold and warm seconds, nodes, bytes per node, resident memory
//
// Resident memory is the peak relative to the process before its first fake tensor, with libtorch loaded.
#include <torch/torch.h>

#include <cstdio>

#include "bench/measure.h"

namespace {

using namespace shadowgraph;

int measure(const std::string& name, bool with_optimizer) {
  const long before = bench::peak_resident_kib();
  const c10::Device device(at::kCUDA, 0);
  const FakeTensorMode mode({.device = device});
  const auto model = models::build(name);
  double cold = 0, warm = 1e9;
  uint32_t nodes = 0;
  size_t bytes = 0;
  long resident = 0;
  for (int i = 0; i < 4; ++i) {
    const CaptureResult capture =
        with_optimizer ? bench::capture_adamw_step(model) : capture_training_step(models::program_of(model));
    if (i == 0) {
      cold = capture.seconds;
      resident = bench::peak_resident_kib();
    } else {
      warm = std::min(warm, capture.seconds);
    }
    nodes = capture.graph.node_count();
    bytes = capture.graph.allocated_bytes();
  }
  std::printf("| %s | %u | %.1f | %.1f | %.2f | %zu | %.1f |\n", name.c_str(), nodes, cold * 1e3, warm * 1e3,
              warm * 1e6 / nodes, bytes / nodes, static_cast<double>(resident - before) / 1024);
  std::fflush(stdout);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) return measure(argv[1], argc < 3 || std::string(argv[2]) != "--no-optimizer");
  std::printf("| model | nodes | cold ms | warm ms | warm us per node | bytes per node | resident MiB above start |\n");
  std::printf("|---|---|---|---|---|---|---|\n");
  std::fflush(stdout);
  return shadowgraph::bench::run_each_model(argv[0], [](const auto&) { return static_cast<const char*>(nullptr); });
}
