// Costs of a symbolic graph at sizes that were not captured, compared with captures at these sizes.
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/optim/sgd.h>

#include "models/program.h"
#include "models/registry.h"
#include "shadowgraph/capture/capture.h"
#include "shadowgraph/passes/symbolic.h"
#include "shadowgraph/profile/fits.h"
#include "shadowgraph/profile/profile.h"

namespace shadowgraph {
namespace {

Graph step_at(int64_t batch, c10::Device device) {
  const FakeTensorMode mode({.device = device});
  const models::BuiltModel model = models::build("resnet18", {.batch = batch});
  torch::optim::SGD sgd(model.module->parameters(), torch::optim::SGDOptions(1e-2));
  return capture_training_step(models::program_of(model, &sgd)).graph;
}

SymbolicGraph all_sizes(c10::Device device) {
  std::vector<SizedGraph> captures;
  for (const int64_t batch : {2, 3, 5, 7}) captures.push_back({{{"batch", batch}}, step_at(batch, device)});
  return SymbolicGraph::fit(std::move(captures));
}

TEST(SizeSweep, ReservesWhatACaptureAtTheSizeReserves) {
  const c10::Device cuda(at::kCUDA, 0);
  const SymbolicGraph symbolic = all_sizes(cuda);
  for (const char* settings : {"", "expandable_segments:True"}) {
    const AllocatorSettings allocator = AllocatorSettings::parse(settings);
    SizeSweep sweep(symbolic, {.device = cuda, .allocator = allocator});
    for (const int64_t batch : {4, 33}) {
      const SizeCost answer = sweep.at({{"batch", batch}});
      const SizeCost there = size_cost(profile(step_at(batch, cuda), {.memory = {.allocator = allocator}}));
      ASSERT_TRUE(there.reserved_bytes.has_value());
      EXPECT_EQ(answer.reserved_bytes, there.reserved_bytes) << settings << " at " << batch;
      EXPECT_EQ(answer.footprint_bytes, there.footprint_bytes) << settings << " at " << batch;
      EXPECT_EQ(answer.peak_bytes, there.peak_bytes);
      EXPECT_EQ(answer.saved_bytes, there.saved_bytes);
      EXPECT_EQ(answer.flops.matmul, there.flops.matmul);
      EXPECT_GT(*answer.reserved_bytes, answer.peak_bytes);
    }
  }
}

TEST(SizeSweep, ACpuReservesNothing) {
  const c10::Device cpu(at::kCPU);
  const SymbolicGraph symbolic = all_sizes(cpu);
  SizeSweep sweep(symbolic, {.device = cpu});
  EXPECT_FALSE(sweep.at({{"batch", 4}}).reserved_bytes.has_value());
  EXPECT_FALSE(size_cost(profile(step_at(4, cpu))).reserved_bytes.has_value());
}

}  // namespace
}  // namespace shadowgraph
