// Checkpoints of forward graphs: regions made from runs of nodes, refusals, and memory of the assumed backward.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/graph/verify.h"
#include "shadowgraph/passes/recompute.h"

namespace shadowgraph {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Two layers of matrix product and tanh; the second product is a custom operator.
constexpr const char* kForward = R"(shadowgraph 1 libtorch 2.13.0
operator aten::mm(Tensor self, Tensor mat2) -> Tensor
operator aten::tanh(Tensor self) -> Tensor
operator aten::t(Tensor(a) self) -> Tensor(a)
operator aten::linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor
s0 = 64 cpu parameter
s1 = 64 cpu input
s2 = 64 cpu temporary
s3 = 64 cpu temporary
s4 = 64 cpu temporary
s5 = 64 cpu temporary
r1 = module "layers.0" "Layer" in r0
r2 = module "layers.1" "Layer" in r0
r3 = composite aten::linear(input=%3, weight=%0, bias=None) in r2
%0 = sg::parameter(name="weight") : f32[4,4] @s0 grad
%1 = sg::input(name="x") : f32[4,4] @s1
%2 = aten::mm(self=%1, mat2=%0) : f32[4,4] @s2 grad | r1 grad_mode saved(self)
%3 = aten::tanh(self=%2) : f32[4,4] @s3 grad | r1 grad_mode saved(result[0])
%4 = aten::t(self=%0) : f32[4,4]{1,4} @s0 grad | r3 grad_mode
%5 = aten::mm(self=%3, mat2=%4) : f32[4,4] @s4 grad | r3 grad_mode saved(self, mat2)
%6 = aten::tanh(self=%5) : f32[4,4] @s5 grad | r2 grad_mode saved(result[0])
sg::output(values=[%6])
)";

std::vector<NodeId> calls_of(const Graph& graph) {
  std::vector<NodeId> calls;
  for (const NodeId n : graph.nodes()) {
    if (!graph.is_placeholder(n) && !is_end(graph.node(n).target)) calls.push_back(n);
  }
  return calls;
}

// "checkpoint mid/module layers.1", outermost first.
std::string path_of(const Graph& graph, NodeId node) {
  std::string path;
  for (RegionId r = graph.node(node).region; r != Graph::kRootRegion; r = graph.region(r).parent) {
    const Region& region = graph.region(r);
    path = std::string(to_string(region.kind)) + " " + std::string(graph.text_or_empty(region.name)) +
           (path.empty() ? "" : "/" + path);
  }
  return path;
}

std::vector<std::string> paths_of(const Graph& graph) {
  std::vector<std::string> paths;
  for (const NodeId n : calls_of(graph)) paths.push_back(path_of(graph, n));
  return paths;
}

TEST(ForwardCheckpoint, ARunOfNodesPartsModulesAndDissolvesOperators) {
  Graph graph = parse(kForward);
  const std::vector<NodeId> calls = calls_of(graph);
  const CheckpointSegment segment{.name = "mid", .regions = {}, .first = calls[1], .last = calls[2]};
  const CheckpointResult done = checkpoint_segments(graph, std::span(&segment, 1));
  verify(graph);
  EXPECT_EQ(done.segments, 1);
  EXPECT_EQ(done.recomputed, 2);
  EXPECT_THAT(paths_of(graph), ElementsAre("module layers.0", "checkpoint mid/module layers.0",
                                           "checkpoint mid/module layers.1", "module layers.1", "module layers.1"));
}

TEST(ForwardCheckpoint, ARunOfNodesTakesModulesThatItCovers) {
  Graph graph = parse(kForward);
  const std::vector<NodeId> calls = calls_of(graph);
  const std::vector<CheckpointSegment> segments{
      {.name = "all", .regions = {}, .first = calls[0], .last = calls[4]},
      {.name = "second", .regions = {}, .first = calls[2], .last = calls[4]},
  };
  EXPECT_EQ(checkpoint_segments(graph, segments).segments, 2);
  verify(graph);
  const std::string second = "checkpoint all/checkpoint second/module layers.1";
  EXPECT_THAT(paths_of(graph),
              ElementsAre("checkpoint all/module layers.0", "checkpoint all/module layers.0",
                          second + "/composite aten::linear", second + "/composite aten::linear", second));
  // Autograd keeps the inputs of the outer one: they are all parameters or inputs of the graph.
  for (const NodeId n : calls_of(graph)) {
    for (const SavedTensor& saved : graph.saved(n)) {
      const StorageId storage = graph.value(saved.value).storage;
      EXPECT_TRUE(graph.is_placeholder(graph.storage(storage).born));
    }
  }
  // The results of the first tanh and the second product are freed after their last reader; the last result is
  // returned.
  EXPECT_EQ(graph.storage(graph.value(graph.results(calls[1])[0].ref.value).storage).freed_after, calls[3]);
}

TEST(ForwardCheckpoint, NothingInASegmentIsKept) {
  Graph graph = parse(kForward);
  const std::string before = to_text(graph);
  const std::vector<NodeId> calls = calls_of(graph);
  const StorageId kept = graph.value(graph.results(calls[1])[0].ref.value).storage;
  const CheckpointSegment segment{.name = "mid", .regions = {}, .first = calls[0], .last = calls[4], .keep = {kept}};
  try {
    checkpoint_segments(graph, std::span(&segment, 1));
    ADD_FAILURE() << "no error was thrown";
  } catch (const GraphError& error) {
    EXPECT_THAT(error.what(), HasSubstr("recompute whole functions"));
  }
  EXPECT_EQ(to_text(graph), before);
}

// Forward saves both tanh results. The second is also the output, which stays allocated.
TEST(ForwardCheckpoint, TheAssumedBackwardHoldsGradientsAndWhatWasSaved) {
  const Graph graph = parse(kForward);
  const Graph step = assumed_step(graph);
  verify(step);
  for (const NodeId n : graph.nodes()) EXPECT_EQ(step.node(n).target, graph.node(n).target);
  // At the second product's backward: weight, x, both results, the incoming gradient, and the two computed gradients.
  EXPECT_EQ(peak_of_live_bytes(step), 7 * 64);
  int64_t gradients = 0;
  for (const NodeId n : step.nodes()) gradients += step.node(n).target == target_of(Builtin::kGradient) ? 1 : 0;
  EXPECT_EQ(gradients, 1);
}

// The gradient of a sum is passed through to an operand of its size, and allocated for a broadcast one.
TEST(ForwardCheckpoint, TheAssumedGradientOfABroadcastOperandHasItsSize) {
  const Graph step = assumed_step(parse(R"(shadowgraph 1 libtorch 2.13.0
operator aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
s0 = 64 cpu parameter
s1 = 16 cpu parameter
s2 = 64 cpu temporary
%0 = sg::parameter(name="weight") : f32[4,4] @s0 grad
%1 = sg::parameter(name="bias") : f32[4] @s1 grad
%2 = aten::add.Tensor(self=%0, other=%1) : f32[4,4] @s2 grad | grad_mode
sg::output(values=[%2])
)"));
  verify(step);
  std::vector<StorageId> gradients;
  for (const NodeId n : step.nodes()) {
    if (step.node(n).target != target_of(Builtin::kGradient)) continue;
    gradients.push_back(step.value(step.arguments(n)[1].ref.value).storage);
  }
  ASSERT_EQ(gradients.size(), 2U);
  EXPECT_NE(gradients[0], gradients[1]);
  EXPECT_EQ(step.storage(gradients[0]).bytes, 64);
  EXPECT_EQ(step.storage(gradients[1]).bytes, 16);
}

TEST(ForwardCheckpoint, TheCurveOfAForwardHasWholeSegments) {
  const Graph graph = parse(kForward);
  const CheckpointCurve curve = CheckpointCurve::of(graph);
  ASSERT_FALSE(curve.choices().empty());
  for (const CheckpointChoice& choice : curve.tried()) {
    for (const CheckpointSegment& segment : choice.segments)
      EXPECT_TRUE(segment.keep.empty() && segment.offload.empty());
    Graph marked = clone(graph);
    checkpoint_segments(marked, choice.segments);
    verify(marked);
  }
  EXPECT_THROW(CheckpointCurve::of(graph, {}, {.chain = {.link = 1}}), Error);
}

}  // namespace
}  // namespace shadowgraph
