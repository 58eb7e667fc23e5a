// Recompute reports: the table, JSON and diagram of the memory/time curve, and the export to other solvers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <set>

#include "shadowgraph/draw/draw.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/operator_costs.h"
#include "shadowgraph/profile/recompute.h"
#include "shadowgraph/profile/step_time.h"
#include "tests/passes/model_captures.h"

namespace shadowgraph {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

size_t count_of(const std::string& text, const std::string& word) {
  size_t count = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++count;
  return count;
}

TEST(RecomputeFigures, OfACurve) {
  const Graph graph = capture_tiny("gpt2", {.batch = 8, .device = c10::kCUDA});
  const StepTime time = StepTime::of(graph, DeviceSpec::named("h100"));
  const CheckpointCurve curve = CheckpointCurve::of(graph);
  const RecomputeCurve figures = RecomputeCurve::of(graph, curve, &time);
  ASSERT_EQ(figures.points.size(), curve.choices().size());
  const Flops flops = Flops::of(graph);
  for (size_t i = 0; i < figures.points.size(); ++i) {
    const RecomputePoint& point = figures.points[i];
    int64_t again = 0;
    for (const NodeId n : curve.choices()[i].repeated) again += flops.of(n).matmul;
    EXPECT_EQ(point.flops, again);
    EXPECT_EQ(point.peak, curve.choices()[i].peak);
    EXPECT_EQ(point.dropped + point.in_part, static_cast<int64_t>(point.segments.size()));
    EXPECT_TRUE(point.seconds.has_value());
  }
  EXPECT_EQ(figures.points.front().flops, 0);
  // Two blocks: the alternatives are one of them, or "each".
  EXPECT_EQ(figures.others.size(), 4U);

  const nlohmann::json json = to_json(figures);
  EXPECT_EQ(json["points"].size(), figures.points.size());
  EXPECT_EQ(json["points"].back()["peak_bytes"], figures.points.back().peak);
  EXPECT_FALSE(to_json(RecomputeCurve::of(graph, curve))["points"][0].contains("seconds_again"));
  const std::string text = to_text(figures);
  EXPECT_EQ(count_of(text, "\n"), figures.points.size() + 3);
  const std::string svg = to_svg(figures, "a < b");
  EXPECT_THAT(svg, StartsWith("<svg "));
  EXPECT_THAT(svg, EndsWith("</svg>\n"));
  EXPECT_THAT(svg, HasSubstr("a &lt; b"));
  EXPECT_EQ(count_of(svg, "<title>"), figures.points.size() + figures.others.size());
}

// Costs can be given in seconds instead of FLOPs.
TEST(RecomputeFigures, CostsMayBeTimes) {
  const Graph graph = capture_tiny("llama3_8b", {.batch = 8, .device = c10::kCUDA});
  const StepTime time = StepTime::of(graph, DeviceSpec::named("h100"));
  const CheckpointCurve curve = CheckpointCurve::of(graph, {}, {.chain = {.cost = nanoseconds(time)}});
  ASSERT_GT(curve.choices().size(), 1U);
  for (const CheckpointChoice& choice : curve.choices()) {
    double nanoseconds = 0;
    for (const NodeId n : choice.repeated) nanoseconds += std::ceil(time.of(n).seconds * 1e9);
    EXPECT_EQ(static_cast<double>(choice.cost), nanoseconds);
  }
}

TEST(RecomputeFigures, AChainForOtherSolvers) {
  const Graph graph = capture_tiny("llama3_8b", {.batch = 8, .device = c10::kCUDA});
  const StepTime time = StepTime::of(graph, DeviceSpec::named("h100"));
  const CheckpointChain chain = CheckpointChain::of(graph);
  const nlohmann::json json = chain_json(graph, chain, &time);
  EXPECT_EQ(json["schema"], "shadowgraph-chain/1");
  ASSERT_EQ(json["stages"].size(), chain.stages.size());
  int64_t flops = 0;
  int64_t last = -1;
  for (const auto& stage : json["stages"]) {
    flops += stage["forward_flops"].get<int64_t>();
    EXPECT_GT(stage["first_node"].get<int64_t>(), last);  // stages are contiguous
    last = stage["last_node"].get<int64_t>();
    EXPECT_EQ(stage["options"][0]["saved_bytes"], stage["saved_bytes"]);
    EXPECT_GE(stage["saved_bytes"], stage["output_bytes"]);
    EXPECT_TRUE(stage.contains("forward_seconds"));
  }
  // A stage's seconds are those of its nodes and of their backward nodes.
  double forward = 0, backward = 0, of_forward = 0, of_backward = 0;
  for (const auto& stage : json["stages"]) {
    forward += stage["forward_seconds"].get<double>();
    backward += stage["backward_seconds"].get<double>();
  }
  for (const NodeId n : graph.nodes()) {
    const PhaseId phase = graph.node(n).phase;
    if (phase == Graph::kForward) of_forward += time.of(n).seconds;
    if (phase == Graph::kBackward && graph.node(n).forward.valid()) of_backward += time.of(n).seconds;
  }
  EXPECT_NEAR(forward, of_forward, 1e-12);
  EXPECT_NEAR(backward, of_backward, 1e-12);
  // Every forward node belongs to one stage.
  EXPECT_EQ(flops, Flops::of(graph).of_phase(Graph::kForward).matmul);
  EXPECT_FALSE(chain_json(graph, chain)["stages"][0].contains("forward_seconds"));
  const Graph skips = capture_tiny("unet", {});
  const nlohmann::json none = chain_json(skips, CheckpointChain::of(skips));
  EXPECT_FALSE(none["linear"]);
  EXPECT_FALSE(none["why_not_a_chain"].empty());
}

// Two names of one tied weight: its bytes count once.
TEST(RecomputeFigures, TiedParametersAreOne) {
  const Graph graph = parse(R"(shadowgraph 1 libtorch 2.13.0
operator aten::mm(Tensor self, Tensor mat2) -> Tensor
operator aten::sum(Tensor self, *, ScalarType? dtype=None) -> Tensor
operator aten::ones_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor
s0 = 64 cuda:0 parameter
s1 = 64 cuda:0 input
s2 = 64 cuda:0 temporary
s3 = 4 cuda:0 temporary
s4 = 4 cuda:0 temporary
r1 = module "" "Model" call 0 in r0
r2 = module "head" "Linear" call 0 in r1
n0: %0 = sg::parameter(name="head.weight") : f32[4,4] @s0 grad
n1: %1 = sg::parameter(name="head.tied") : f32[4,4] @s0 grad
n2: %2 = sg::input(name="x") : f32[4,4] @s1
n3: %3 = aten::mm(self=%2, mat2=%0) : f32[4,4] @s2 grad | r2 grad_mode saved(self)
n4: %4 = aten::sum(self=%3) : f32[] @s3 grad | r1 grad_mode free(s2)
n5: %5 = aten::ones_like(self=%4) : f32[] @s4 | r1 backward of n4
n6: sg::output(values=[%4])
)");
  const nlohmann::json info = sac_ilp_module_info(graph, StepTime::of(graph, DeviceSpec::named("h100")));
  for (const auto& module : info["mod_stats"]) EXPECT_EQ(module["param_per_module"], 64) << module["fqn"];
}

TEST(RecomputeFigures, ModulesForPyTorchsIlp) {
  const Graph graph = capture_tiny("gpt2", {.batch = 8, .device = c10::kCUDA});
  const StepTime time = StepTime::of(graph, DeviceSpec::named("h100"));
  const nlohmann::json info = sac_ilp_module_info(graph, time);
  const auto& stats = info["mod_stats"];
  ASSERT_GT(stats.size(), 10U);
  const auto& order = info["mod_order"];
  for (const char* which : {"fw_pre_order", "fw_post_order", "bw_pre_order", "bw_post_order"}) {
    EXPECT_EQ(order[which].size(), stats.size()) << which;
  }
  int64_t parameters = 0;
  for (uint32_t i = 0; i < graph.storage_count(); ++i) {
    const Storage& storage = graph.storage(StorageId(i));
    if (storage.kind == StorageKind::kParameter) parameters += storage.bytes;
  }
  EXPECT_EQ(stats[0]["fqn"], "Model");
  EXPECT_EQ(stats[0]["param_per_module"], parameters);
  EXPECT_EQ(order["fw_post_order"].back(), "Model");
  std::set<std::string> names;
  for (size_t i = 0; i < stats.size(); ++i) {
    const auto& of = stats[i];
    EXPECT_EQ(of["fqn"], order["fw_pre_order"][i]);
    EXPECT_TRUE(names.insert(of["fqn"]).second);
    EXPECT_LE(of["param_per_module"], stats[0]["param_per_module"]);
    EXPECT_EQ(of["slopes"].size(), of["n_segments"]);
    EXPECT_EQ(of["intercepts"].size(), of["n_segments"]);
    if (of["is_leaf"]) continue;
    EXPECT_GE(of["sac_memory"], of["act_fw_per_module"]) << of["fqn"];
    // The curve is convex and runs from no recompute to full recompute.
    ASSERT_GE(of["n_segments"], 1);
    EXPECT_LE(of["n_segments"], 4);
    for (size_t s = 1; s < of["slopes"].size(); ++s) {
      EXPECT_GE(of["slopes"][s].get<double>(), of["slopes"][s - 1].get<double>() - 1e-12);
    }
    EXPECT_NEAR(of["slopes"].back().get<double>() + of["intercepts"].back().get<double>(), 1, 1e-9);
    EXPECT_NEAR(of["intercepts"].front().get<double>(), 0, 1e-12);
  }
}

}  // namespace
}  // namespace shadowgraph
