// Measures pipeline simulation of a Llama 3 70B step (bf16, AdamW), its Chakra traces, and the split of 1M nodes.
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <string>

#include "bench/measure.h"
#include "bench/training_chain.h"
#include "shadowgraph/plan/exports.h"
#include "shadowgraph/plan/pipeline.h"

namespace {

using namespace shadowgraph;

class Clock {
 public:
  // Prints a row with the CPU time since the previous row.
  void row(const char* what, const std::string& size, const char* aim) {
    const auto now = std::clock();
    std::printf("| %s | %s | %.2f | %ld | %s |\n", what, size.c_str(),
                static_cast<double>(now - begin_) / CLOCKS_PER_SEC, bench::peak_resident_kib() / 1024, aim);
    std::fflush(stdout);
    begin_ = std::clock();
  }

 private:
  std::clock_t begin_ = std::clock();
};

}  // namespace

int main() {
  const DeviceSpec h100 = DeviceSpec::named("h100");
  const Interconnect links = Interconnect::named("h100");
  const StageOptions options{.spec = &h100, .interconnect = &links};
  constexpr int32_t kRanks = 16, kMicrobatches = 128, kProcesses = 64;
  std::printf("| what | size | CPU s | peak MB so far | aim |\n|---|---|---|---|---|\n");
  Clock clock;
  const Graph step = bench::adamw_step("llama3_70b", {.dtype = c10::kBFloat16});
  clock.row("capture of Llama 3 70B", std::to_string(step.node_count()) + " nodes", "-");
  const PipelineStages stages = PipelineStages::balanced(step, kRanks, options);
  clock.row("split into 16 stages", "-", "-");
  const auto schedule = PipelineSchedule::named("1f1b", {.ranks = kRanks, .microbatches = kMicrobatches});
  const PipelineRun run = PipelineRun::of(stages, schedule, {.interconnect = &links, .rank_stride = kProcesses});
  clock.row("1F1B of 128 micro-batches on all ranks", "-", "2 s with capture and split");
  const auto folder = std::filesystem::temp_directory_path() / "shadowgraph_bench_chakra";
  const ChakraFiles files = write_chakra(run, folder.string(), {.name = "llama", .processes_per_stage = kProcesses});
  clock.row("Chakra traces", std::to_string(files.files) + " files, " + std::to_string(files.bytes >> 20) + " MiB",
            "20 s");
  std::filesystem::remove_all(folder);
  const Graph chain = bench::training_step(1'000'000);
  clock.row("a generated step", std::to_string(chain.node_count()) + " nodes", "-");
  (void)PipelineStages::balanced(chain, kRanks, options);
  clock.row("split into 16 stages", "-", "2 s");
}
