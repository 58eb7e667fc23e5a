// Regions that the pass `checkpoint` chooses, tensors that it keeps, and refusals. tests/core/replay checks numerics.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "shadowgraph/graph/analysis.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/graph/verify.h"
#include "shadowgraph/passes/pipeline.h"
#include "shadowgraph/passes/recompute.h"
#include "tests/passes/model_captures.h"

namespace shadowgraph {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

struct Line {
  std::string result;  // name of the result, for $name in later lines
  std::string call;    // &name refers to the node that creates it
};

// Replaces names by value numbers, as the text format requires.
std::string numbered(const std::vector<Line>& lines) {
  std::map<std::string, std::string> numbers;
  std::string text;
  for (size_t i = 0; i < lines.size(); ++i) {
    std::string call = lines[i].call;
    for (const auto& [name, number] : numbers) {
      for (size_t at = call.find(name); at != std::string::npos; at = call.find(name)) {
        call.replace(at, name.size(), number);
      }
    }
    const std::string node = fmt::format("n{}", i);
    text += node + ": ";
    if (!lines[i].result.empty()) {
      const std::string value = fmt::format("%{}", numbers.size() / 2);
      text += value + " = ";
      numbers["$" + lines[i].result] = value;
      numbers["&" + lines[i].result] = node;
    }
    text += call + "\n";
  }
  return text;
}

// y = exp(sin(x)) in the module "block", and its backward; `between` follows it in forward, `inside` is part of it.
Graph block(const std::vector<Line>& inside = {}, const std::vector<Line>& between = {},
            const std::string& of_exp = "$sin") {
  std::vector<Line> lines{{"in", "sg::input(name=\"x\") : f32[16] @s0"},
                          {"sin", "aten::sin(self=$in) : f32[16] @s1 | r2"}};
  lines.insert(lines.end(), inside.begin(), inside.end());
  lines.push_back({"exp", "aten::exp(self=" + of_exp + ") : f32[16] @s2 | r2 saved(result[0])"});
  lines.insert(lines.end(), between.begin(), between.end());
  lines.push_back({"out", "aten::mul.Tensor(self=$exp, other=$exp) : f32[16] @s3 | r1"});
  lines.push_back({"dexp", "aten::mul.Tensor(self=$out, other=$exp) : f32[16] @s4 | r2 backward of &exp free(s2, s3)"});
  lines.push_back(
      {"dsin", "aten::mul.Tensor(self=$dexp, other=$sin) : f32[16] @s5 | r2 backward of &sin free(s1, s4)"});
  lines.push_back({"", "sg::output(values=[$dsin])"});
  return parse(
      "shadowgraph 1 libtorch 2.13.0\n"
      "operator aten::sin(Tensor self) -> Tensor\n"
      "operator aten::exp(Tensor self) -> Tensor\n"
      "operator aten::zero_(Tensor(a!) self) -> Tensor(a!)\n"
      "operator aten::mul.Tensor(Tensor self, Tensor other) -> Tensor\n"
      "operator aten::_local_scalar_dense(Tensor self) -> Scalar\n"
      "operator aten::mul.Scalar(Tensor self, Scalar other) -> Tensor\n"
      "s0 = 64 cpu input\ns1 = 64 cpu temporary\ns2 = 64 cpu temporary\ns3 = 64 cpu temporary\n"
      "s4 = 64 cpu temporary\ns5 = 64 cpu temporary\ns6 = 64 cpu temporary\n"
      "r1 = module \"net\" \"Net\" in r0\nr2 = module \"net.block\" \"Block\" in r1\n" +
      numbered(lines));
}

CheckpointResult checkpoint(Graph& graph, const std::string& modules = "net.block") {
  const auto regions = regions_named(graph, modules);
  const auto segments = each_region()(graph, regions);
  const CheckpointResult done = checkpoint_segments(graph, segments);
  verify(graph);
  return done;
}

TEST(CheckpointPass, ComputesAgainWhatBackwardReads) {
  Graph graph = block();
  const int64_t before = peak_of_live_bytes(graph);
  const CheckpointResult done = checkpoint(graph);
  EXPECT_EQ(done.segments, 1);
  EXPECT_EQ(done.recomputed, 2);
  EXPECT_EQ(done.redirected, 2);
  EXPECT_EQ(done.kept, 0);
  EXPECT_EQ(nodes_calling(graph, "aten::exp").size(), 2);
  const NodeId again = nodes_calling(graph, "aten::exp")[1];
  EXPECT_EQ(graph.node(again).phase, Graph::kBackward);
  EXPECT_EQ(graph.node(again).forward, nodes_calling(graph, "aten::exp")[0]);
  EXPECT_TRUE(recompute_regions(graph)[graph.node(again).region].valid());
  EXPECT_LE(peak_of_live_bytes(graph), before);
  // A second run changes nothing.
  Graph twice = clone(graph);
  EXPECT_EQ(checkpoint(twice).segments, 0);
  EXPECT_EQ(first_difference(graph, twice), std::nullopt);
}

TEST(CheckpointPass, KeepsWhatCannotBeMadeAgain) {
  // The input is written between forward and backward.
  Graph written = block({}, {{"zero", "aten::zero_(self=$in) : f32[16] @s0"}});
  CheckpointResult done = checkpoint(written);
  EXPECT_EQ(done.recomputed, 1);  // exp is recomputed from the saved sine
  EXPECT_EQ(done.kept, 1);
  EXPECT_THAT(done.obstacles, ElementsAre(Pair("aten::sin: an operand is written to before backward", 1)));
  // A tensor of the block is written outside.
  Graph outside = block({}, {{"zero", "aten::zero_(self=$exp) : f32[16] @s2 | r1"}});
  done = checkpoint(outside);
  EXPECT_EQ(done.kept, 1);
  EXPECT_EQ(done.recomputed, 1);
  EXPECT_THAT(done.obstacles, ElementsAre(Pair("written to outside its segment", 1)));
  // A host read is not repeated; its first result is reused.
  Graph read = block({{"number", "aten::_local_scalar_dense(self=$sin) : float | r2"},
                      {"scaled", "aten::mul.Scalar(self=$sin, other=$number) : f32[16] @s6 | r2"}},
                     {}, "$scaled");
  done = checkpoint(read);
  EXPECT_EQ(done.kept, 0);
  EXPECT_EQ(done.recomputed, 3);
  EXPECT_EQ(nodes_calling(read, "aten::_local_scalar_dense").size(), 1);
}

TEST(CheckpointPass, RefusesSegmentsThatAreNone) {
  Graph graph = block();
  const Graph before = clone(graph);
  const RegionId net(1);
  const RegionId inner(2);
  const auto refused = [&](std::vector<CheckpointSegment> segments, const char* what) {
    try {
      checkpoint_segments(graph, segments);
      FAIL() << what;
    } catch (const GraphError& error) {
      EXPECT_THAT(error.what(), HasSubstr(what));
    }
  };
  refused({{"a", {}}}, "segment 'a': it has no regions");
  refused({{"a", {RegionId(99)}}}, "a region does not exist");
  refused({{"a", {Graph::kRootRegion}}}, "a region does not exist");
  refused({{"a", {net, inner}}}, "'net' and 'net.block' have different parents");
  refused({{"a", {inner}}, {"b", {inner}}}, "is in another segment");
  std::vector<NodeId> forward;
  for (const NodeId n : graph.nodes()) {
    if (graph.node(n).phase == Graph::kForward && !graph.is_placeholder(n)) forward.push_back(n);
  }
  ASSERT_GE(forward.size(), 2U);
  const NodeId first = forward[0], second = forward[1];
  const auto from_to = [](const char* name, NodeId from, NodeId to) {
    return CheckpointSegment{.name = name, .regions = {}, .first = from, .last = to};
  };
  refused({{"a", {inner}}, from_to("b", first, second)}, "segments given by regions and segments given by nodes");
  refused({{"a", {inner}, first, second}}, "it has both nodes and regions");
  refused({from_to("a", first, NodeId())}, "a node does not exist");
  refused({from_to("a", second, first)}, "its last node comes before its first");
  refused({from_to("a", graph.first(), second)}, "its first or last node is not a forward node");
  refused({from_to("a", first, second), from_to("b", first, second)}, "'a' and 'b' overlap");
  EXPECT_EQ(first_difference(graph, before), std::nullopt);
}

TEST(CheckpointPass, SaysWhichModulesThereAre) {
  Graph graph = block();
  try {
    run_pass(graph, "checkpoint", {{"modules", "layer.*"}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("no region matches modules=layer.*; available regions include:\n  net\n  net.block"));
  }
  EXPECT_THROW(run_pass(graph, "checkpoint", {{"policy", "best"}}), Error);
  EXPECT_THROW(run_pass(graph, "checkpoint", {{"modules", "net"}, {"policy", "every"}, {"every", "0"}}), Error);
  EXPECT_FALSE(run_pass(graph, "checkpoint").changed);  // no region is marked
}

// ---- Choosing

std::vector<std::string> names(const Graph& graph, const std::string& patterns) {
  std::vector<std::string> result;
  for (const RegionId r : regions_named(graph, patterns)) result.push_back(graph.text(graph.region(r).name));
  return result;
}

TEST(CheckpointChoice, ByName) {
  const Graph graph = capture_tiny("gpt2", {});
  const auto layers = names(graph, "transformer.h.*");
  ASSERT_GE(layers.size(), 2);
  EXPECT_EQ(layers[0], "transformer.h.0");
  EXPECT_EQ(layers, names(graph, "auto"));
  EXPECT_EQ(names(graph, "transformer.h.?"), layers);
  EXPECT_THAT(names(graph, "*.h.0+*.h.0.mlp"), ElementsAre("transformer.h.0", "transformer.h.0.mlp"));
  EXPECT_TRUE(names(graph, "").empty());
}

TEST(CheckpointChoice, Policies) {
  const Graph graph = capture_tiny("gpt2", {.batch = 8});
  const auto layers = regions_named(graph, "auto");
  EXPECT_EQ(every_kth_region(2)(graph, layers).size(), (layers.size() + 1) / 2);
  size_t covered = 0;
  for (const auto& segment : square_root_segments()(graph, layers)) covered += segment.regions.size();
  EXPECT_EQ(covered, layers.size());

  Graph all = clone(graph);
  checkpoint_segments(all, each_region()(all, layers));
  const int64_t highest = peak_of_live_bytes(graph);
  const int64_t lowest = peak_of_live_bytes(all);
  ASSERT_LT(lowest, highest);
  EXPECT_TRUE(within_budget(highest)(graph, layers).empty());
  for (const int64_t budget : {lowest, (lowest + highest) / 2, highest - 1}) {
    Graph within = clone(graph);
    const auto segments = within_budget(budget)(within, layers);
    EXPECT_FALSE(segments.empty());
    checkpoint_segments(within, segments);
    EXPECT_LE(peak_of_live_bytes(within), budget);
  }
  EXPECT_THROW(within_budget(lowest - 1)(graph, layers), Error);
}

// ---- Random numbers

TEST(CheckpointPass, RandomNodesThatAreDrawnTwiceAreNotDropped) {
  Graph graph = capture_tiny("gpt2", {});
  ASSERT_TRUE(run_pass(graph, "checkpoint", {{"modules", "auto"}}).changed);
  EXPECT_FALSE(nodes_calling(graph, "sg_random::get_state").empty());
  const size_t draws = nodes_calling(graph, "aten::bernoulli_").size();
  run_pass(graph, "dce", {{"random", "drop"}});
  EXPECT_EQ(nodes_calling(graph, "aten::bernoulli_").size(), draws);
}

TEST(CheckpointPass, RandomNodesWithinOneSegmentShareAState) {
  Graph graph = capture_tiny("gpt2", {});
  const auto layers = regions_named(graph, "auto");
  const CheckpointResult done = checkpoint_segments(graph, each_region()(graph, layers));
  EXPECT_LE(done.random_states, 2 * static_cast<int64_t>(layers.size()));
  EXPECT_EQ(nodes_calling(graph, "sg_random::exchange_state").size(),
            nodes_calling(graph, "sg_random::set_state").size());
}

}  // namespace
}  // namespace shadowgraph
