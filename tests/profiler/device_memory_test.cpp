// Device memory while a graph runs: the caching allocator over the nodes of a program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shadowgraph/error.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/memory.h"
#include "shadowgraph/profile/profile.h"
#include "tests/profiler/test_graph.h"

namespace shadowgraph {
namespace {

using shadowgraph::testing::TestGraph;
using ::testing::HasSubstr;

constexpr int64_t kMega = kMebibyte / 4;  // floats

// A step with a parameter of 30 MiB, an activation of 50 MiB and a gradient of 30 MiB.
struct Step {
  TestGraph t;
  TestGraph::Call w, x, y, gradient;
  explicit Step(ProgramMode mode = ProgramMode::kTrain) {
    t.device = c10::Device("cuda:0");
    t.graph.metadata.device = t.device;
    t.graph.metadata.mode = mode;
    w = t.parameter("w", {30 * kMega});
    x = t.input("x", {12 * kMega});
    y = t.call("aten::relu", {x}, {{50 * kMega}});
    t.phase = Graph::kBackward;
    gradient = t.call("aten::relu", {y}, {{30 * kMega}}, y.node);
    t.gradient(w, gradient);
    t.free_after(gradient.node, {t.storage(y)});
  }
};

TEST(DeviceMemory, SumsOfAStepThatRepeats) {
  const Step step;
  const DeviceMemory memory = device_memory(step.t.graph);
  // Parameter and input take 42 MiB, then 50, then 30 more.
  EXPECT_EQ(memory.allocated_peak, (30 + 12 + 50 + 30) * kMebibyte);
  EXPECT_EQ(memory.reserved_after, (std::vector<int64_t>{122 * kMebibyte, 122 * kMebibyte, 122 * kMebibyte}));
  EXPECT_EQ(memory.cublas_workspace, 0);
  EXPECT_EQ(memory.footprint(), 122 * kMebibyte + DeviceAssumptions().context);
  EXPECT_EQ(memory.fragmentation(), 0);
}

TEST(DeviceMemory, InferenceRunsOnce) {
  const Step step(ProgramMode::kInfer);
  EXPECT_EQ(device_memory(step.t.graph).reserved_after.size(), 1u);
}

TEST(DeviceMemory, WhatDoesNotFitIsToldWithTheNode) {
  const Step step;
  DeviceMemoryOptions options;
  options.assumptions.context = 0;
  options.capacity = 122 * kMebibyte;
  EXPECT_NO_THROW(device_memory(step.t.graph, options));
  options.capacity = 100 * kMebibyte;
  try {
    device_memory(step.t.graph, options);
    FAIL();
  } catch (const OutOfMemoryError& error) {
    EXPECT_THAT(error.what(), HasSubstr("node 3, aten::relu"));
  }
  const Profile costs = profile(step.t.graph, {.memory = options});
  EXPECT_FALSE(costs.device_memory.has_value());
  EXPECT_THAT(to_text(costs), HasSubstr("does not fit: node 3, aten::relu"));
}

TEST(DeviceMemory, MatrixProductsTakeCublasWorkspaceOnce) {
  TestGraph t;
  t.device = c10::Device("cuda:0");
  t.graph.metadata.device = t.device;
  const auto a = t.input("a", {16, 16});
  const auto b = t.call("aten::mm", {a, a}, {{16, 16}});
  t.call("aten::mm", {b, b}, {{16, 16}});
  DeviceMemoryOptions options;
  EXPECT_EQ(device_memory(t.graph, options).reserved_peak, 2 * kMebibyte + 32 * kMebibyte);
  options.assumptions.cublas_workspace = 8519680;  // in a segment of 20 MiB, like all sizes between 1 and 10 MiB
  EXPECT_EQ(device_memory(t.graph, options).reserved_peak, 22 * kMebibyte);
}

// The autograd engine's thread has a separate cuBLAS handle.
TEST(DeviceMemory, BackwardHasAWorkspaceOfItsOwn) {
  TestGraph t;
  t.device = c10::Device("cuda:0");
  t.graph.metadata.device = t.device;
  const auto a = t.input("a", {16, 16});
  const auto b = t.call("aten::mm", {a, a}, {{16, 16}});
  t.phase = Graph::kBackward;
  t.call("aten::mm", {b, b}, {{16, 16}});
  t.call("aten::mm", {b, a}, {{16, 16}});
  const DeviceMemory memory = device_memory(t.graph);
  EXPECT_EQ(memory.cublas_workspace, 2 * 32 * kMebibyte);
  EXPECT_EQ(memory.allocated_peak, 2 * 32 * kMebibyte + 4 * 1024);
  EXPECT_EQ(memory.allocated_after, std::vector<int64_t>{memory.allocated_peak});
}

TEST(DeviceMemory, WorkspacesFollowFromTheDevice) {
  const auto of = [](const char* name) { return DeviceAssumptions::of(DeviceSpec::named(name)).workspace(); };
  for (const char* name : {"h100", "h200", "b200", "b300", "rtx5090"}) EXPECT_EQ(of(name), 32 * kMebibyte) << name;
  for (const char* name : {"a100", "a10g", "l4", "t4", "v100"}) EXPECT_EQ(of(name), 8'519'680) << name;
  EXPECT_EQ(of("mi300x"), 128 * kMebibyte);
  EXPECT_EQ(DeviceAssumptions().workspace(), 32 * kMebibyte);
  EXPECT_THAT(DeviceAssumptions().why_workspace(), HasSubstr("assuming sm_90"));
  EXPECT_EQ(cublas_workspace(":4096:8"), 32 * kMebibyte);
  EXPECT_EQ(cublas_workspace(":4096:2:16:8"), 8'519'680);
  for (const char* wrong : {"", "4096:8", ":4096", ":4096:", ":-1:2", ":4096:8 "}) {
    EXPECT_THROW(cublas_workspace(wrong), Error) << wrong;
  }
  TestGraph t;
  t.device = c10::Device("cuda:0");
  t.graph.metadata.device = t.device;
  const auto a = t.input("a", {16, 16});
  t.call("aten::mm", {a, a}, {{16, 16}});
  const DeviceSpec a100 = DeviceSpec::named("a100");
  const Profile costs = profile(t.graph, {.spec = &a100});
  EXPECT_EQ(costs.device_memory->cublas_workspace, 8'519'680);
  EXPECT_THAT(to_text(costs), HasSubstr("including 8.12 MiB of cuBLAS workspaces (sm_80)"));
}

TEST(DeviceMemory, WhoKeepsFreeMemoryFromBeingGivenBack) {
  TestGraph t;
  t.device = c10::Device("cuda:0");
  t.graph.metadata.device = t.device;
  const auto x = t.input("x", {4});  // 512 bytes of a segment of 2 MiB
  // Both in one segment of 20 MiB; the space freed by the first is too small for a large block.
  const auto first = t.call("aten::relu", {x}, {{6 * kMega}});
  const auto second = t.call("aten::relu", {x}, {{6 * kMega}});
  t.free_after(second.node, {t.storage(first)});
  const auto large = t.call("aten::relu", {x}, {{15 * kMega}});
  t.output({second, large});
  const auto pinned = fragmentation_causes(t.graph);
  ASSERT_EQ(pinned.size(), 2u);
  EXPECT_EQ(pinned[0].storage, t.storage(second));
  EXPECT_EQ(pinned[0].bytes, 6 * kMebibyte);
  EXPECT_EQ(pinned[0].stuck, 14 * kMebibyte);
  EXPECT_EQ(pinned[0].segment, 20 * kMebibyte);
  EXPECT_EQ(pinned[1].storage, t.storage(x));
  EXPECT_EQ(pinned[1].stuck, 2 * kMebibyte - 512);
}

TEST(DeviceMemory, EachDeviceHasAnAllocatorOfItsOwn) {
  TestGraph t;
  t.device = c10::Device("cuda:0");
  t.graph.metadata.device = t.device;
  const auto x = t.input("x", {30 * kMega});
  t.device = c10::Device("cuda:1");
  const auto there = t.call("aten::_to_copy", {x}, {{12 * kMega}});
  t.output({there});
  const Profile costs = profile(t.graph);
  EXPECT_EQ(costs.device_memory->reserved_peak, 30 * kMebibyte);
  ASSERT_EQ(costs.other_devices.size(), 1u);
  EXPECT_EQ(costs.other_devices[0].device, c10::Device("cuda:1"));
  EXPECT_EQ(costs.other_devices[0].memory->reserved_peak, 12 * kMebibyte);
  EXPECT_THAT(to_text(costs), HasSubstr("also on cuda:1"));
}

TEST(DeviceMemory, OtherSettingsAreTried) {
  const Step step;
  const auto outcomes = other_settings(step.t.graph);
  ASSERT_EQ(outcomes.size(), 4u);
  for (size_t i = 1; i < outcomes.size(); ++i) EXPECT_LE(outcomes[i - 1].reserved_peak, outcomes[i].reserved_peak);
}

}  // namespace
}  // namespace shadowgraph
