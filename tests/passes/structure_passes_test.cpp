// fuse-groups, find-repeats and collapse on captured models: checks that their notes are correct.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <map>
#include <set>

#include "models/program.h"
#include "models/registry.h"
#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/graph/analysis.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/graph/verify.h"
#include "shadowgraph/passes/pipeline.h"
#include "shadowgraph/passes/simplify.h"
#include "tests/passes/model_captures.h"
#include "tests/random/program.h"

namespace shadowgraph {
namespace {

using ::testing::HasSubstr;

const char* const kModels[] = {"resnet18", "resnet50", "vit_b_16", "bert_base", "gpt2", "llama3_8b", "unet", "lstm_lm"};

PassResult checked(Graph& graph, const std::string& pipeline) {
  return Pipeline::parse(pipeline).run(graph, PipelineOptions::checked()).runs.back().result;
}

// Returns whether an order exists with each group as one node, given values, writes, and reads before writes.
bool groups_can_be_ordered(const Graph& graph) {
  std::map<std::string, int32_t> numbers;
  IdMap<NodeId, int32_t> group_of(-1);
  for (NodeId n : graph.nodes()) {
    const std::string group(graph.note(n, "fuse"));
    if (!group.empty()) group_of[n] = numbers.try_emplace(group, static_cast<int32_t>(numbers.size())).first->second;
  }
  try {
    return topological_order(graph, Dependences::of(graph), group_of).size() == graph.node_count();
  } catch (const GraphError&) {
    return false;
  }
}

TEST(FuseGroups, CanBeOrderedInEveryModel) {
  for (const char* name : kModels) {
    Graph graph = capture_tiny(name, {});
    const PassResult result = checked(graph, "fuse-groups");
    EXPECT_GT(result.counters[0].second, 0) << name;
    EXPECT_TRUE(groups_can_be_ordered(graph)) << name;
  }
}

TEST(FuseGroups, CanBeOrderedInRandomPrograms) {
  int groups = 0;
  const int programs = shadowgraph::testing::random_program_count(1000);
  for (int seed = 0; seed < programs; ++seed) {
    Graph graph = shadowgraph::testing::capture(shadowgraph::testing::RandomProgram::make(700000 + seed, 30));
    groups += run_pass(graph, "fuse-groups").counters[0].second != 0;
    ASSERT_TRUE(groups_can_be_ordered(graph)) << "seed " << 700000 + seed << "\n" << to_text(graph);
  }
  EXPECT_GE(groups, programs / 10) << "too few programs have groups";
}

TEST(FuseGroups, ACycleWouldBeSeen) {
  Graph graph = parse(R"(shadowgraph 1 libtorch 2.13.0
operator aten::relu(Tensor self) -> Tensor
operator aten::mm(Tensor self, Tensor mat2) -> Tensor
operator aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
s0 = 64 cpu input
s1 = 64 cpu temporary
s2 = 64 cpu temporary
s3 = 64 cpu temporary
n0: %0 = sg::input(name="x") : f32[4,4] @s0
n1: %1 = aten::relu(self=%0) : f32[4,4] @s1 | note("fuse"="g0")
n2: %2 = aten::mm(self=%1, mat2=%1) : f32[4,4] @s2
n3: %3 = aten::add.Tensor(self=%1, other=%2) : f32[4,4] @s3 | note("fuse"="g0")
n4: sg::output(values=[%3])
)");
  EXPECT_FALSE(groups_can_be_ordered(graph));
  checked(graph, "fuse-groups");  // removes the invalid note
  EXPECT_EQ(graph.note(NodeId(1), "fuse"), "");
}

Graph capture_llama(bool train) {
  const FakeTensorMode mode({.device = at::kCUDA});
  const models::BuiltModel model = models::build("llama3_8b", {.batch = 1, .seq = 128, .training = train});
  if (!train) {
    const at::NoGradGuard no_grad;
    return capture_forward(models::program_of(model)).graph;
  }
  torch::optim::AdamW adamw(model.module->parameters(), torch::optim::AdamWOptions(1e-3));
  return capture_training_step(models::program_of(model, &adamw)).graph;
}

TEST(FindRepeats, FindsTheLayersOfLlama) {
  Graph forward = capture_llama(false);
  const PassResult found = checked(forward, "find-repeats");
  EXPECT_THAT(found.report, HasSubstr("32 blocks of ")) << found.report;
  EXPECT_THAT(found.report, HasSubstr("forward, model.layers.0 .. model.layers.31")) << found.report;

  Graph step = capture_llama(true);
  // Without the views that autograd leaves between layers, repeats start at module boundaries.
  const std::string said = checked(step, "canonicalize,find-repeats").report;
  EXPECT_THAT(said, HasSubstr("forward, model.layers.0 .. model.layers.31")) << said;
  EXPECT_THAT(said, HasSubstr("backward, model.layers.31 .. model.layers.0")) << said;
}

// Blocks that share a note are equal node by node, up to value names.
TEST(FindRepeats, BlocksHaveEqualTexts) {
  for (const char* name : {"bert_base", "gpt2", "llama3_8b", "vit_b_16", "resnet50"}) {
    Graph graph = capture_tiny(name, {});
    checked(graph, "find-repeats");
    std::map<std::string, std::map<std::string, std::vector<NodeId>>> runs;
    for (NodeId n : graph.nodes()) {
      const std::string note(graph.note(n, "repeat"));
      if (!note.empty()) runs[note.substr(0, note.find(','))][note].push_back(n);
    }
    for (const auto& [run, blocks] : runs) {
      std::set<std::string> texts;
      std::string said;
      for (const auto& [block, nodes] : blocks) {
        // Notes contain the block's name; everything else must agree.
        std::string text = to_text(graph, nodes, PrintPreset::kFingerprint);
        for (size_t at = text.find(block); at != text.npos; at = text.find(block)) text.erase(at, block.size());
        texts.insert(text);
        said = block;
      }
      EXPECT_GE(blocks.size(), 2U) << name << " " << run;
      EXPECT_EQ(texts.size(), 1U) << name << " " << run << "\n" << *texts.begin() << "\n----\n" << *texts.rbegin();
      EXPECT_THAT(said, HasSubstr("of " + std::to_string(blocks.size())));
    }
  }
}

TEST(Collapse, EveryModelAtEveryLevel) {
  for (const char* name : kModels) {
    for (const bool train : {false, true}) {
      const Graph graph = capture_tiny(name, {.train = train});
      for (const char* pass : {"collapse", "collapse{depth=2}", "collapse{depth=9}", "collapse{level=composite}"}) {
        SCOPED_TRACE(std::string(name) + " " + pass);
        Graph collapsed = clone(graph);
        const PassResult result = checked(collapsed, pass);
        EXPECT_TRUE(result.changed);
        EXPECT_LT(collapsed.node_count(), graph.node_count());
        EXPECT_EQ(first_difference(parse(to_text(collapsed)), collapsed), std::nullopt);
        EXPECT_EQ(result.report.find("%,"), std::string::npos) << result.report;  // a value without a name
        EXPECT_EQ(result.report.find("%)"), std::string::npos) << result.report;
      }
    }
  }
}

TEST(ConstFold, LeavesOtherDevicesAlone) {
  for (const char* device : {"cpu", "cuda:0"}) {
    const std::string d(device);
    Graph graph = parse(
        "shadowgraph 1 libtorch 2.13.0\n"
        "operator aten::ones(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? "
        "pin_memory=None) -> Tensor\n"
        "operator aten::neg(Tensor self) -> Tensor\n"
        "operator aten::mul.Tensor(Tensor self, Tensor other) -> Tensor\n"
        "s0 = 8 " +
        d + " input\ns1 = 8 " + d + " temporary\ns2 = 8 " + d + " temporary\ns3 = 8 " + d +
        " temporary\n"
        "n0: %0 = sg::input(name=\"x\") : f32[2] @s0\n"
        "n1: %1 = aten::ones(size=[2], device=" +
        d +
        ") : f32[2] @s1\n"
        "n2: %2 = aten::neg(self=%1) : f32[2] @s2\n"
        "n3: %3 = aten::mul.Tensor(self=%0, other=%2) : f32[2] @s3\n"
        "n4: sg::output(values=[%3])\n");
    EXPECT_EQ(checked(graph, "const-fold").changed, d == "cpu");
    // Operators run for real, even inside a fake mode.
    if (d == "cpu") {
      EXPECT_TRUE(graph.constant(ConstantId(graph.constant_count() - 1)).equal(at::full({2}, -1.0)));
    }
  }
}

TEST(ConstFold, RunsForRealInsideAFakeMode) {
  Graph graph = parse(R"(shadowgraph 1 libtorch 2.13.0
operator aten::arange(Scalar end, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor
operator aten::mul.Tensor(Tensor self, Tensor other) -> Tensor
s0 = 24 cpu input
s1 = 24 cpu temporary
s2 = 24 cpu temporary
n0: %0 = sg::input(name="x") : i64[3] @s0
n1: %1 = aten::arange(end=3) : i64[3] @s1
n2: %2 = aten::mul.Tensor(self=%0, other=%1) : i64[3] @s2
n3: sg::output(values=[%2])
)");
  const FakeTensorMode mode({.device = at::kCUDA});
  EXPECT_TRUE(checked(graph, "const-fold").changed);
  const at::Tensor& folded = graph.constant(ConstantId(0));
  ASSERT_EQ(folded.numel(), 3);
  EXPECT_EQ(folded.const_data_ptr<int64_t>()[2], 2);
}

// Random numbers, uninitialized memory, and differentiable values, all derived from a constant.
TEST(ConstFold, LeavesWhatIsNotTheSameEveryTime) {
  Graph graph = parse(R"(shadowgraph 1 libtorch 2.13.0
operator aten::bernoulli(Tensor self, *, Generator? generator=None) -> Tensor
operator aten::empty_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor
operator aten::neg(Tensor self) -> Tensor
operator aten::mul.Tensor(Tensor self, Tensor other) -> Tensor
s0 = 12 cpu input
s1 = 12 cpu constant
s2 = 12 cpu temporary
s3 = 12 cpu temporary
s4 = 12 cpu temporary
s5 = 12 cpu temporary
s6 = 12 cpu temporary
s7 = 12 cpu temporary
c0 = f32[3] "AAAAPwAAAD8AAAA/"
n0: %0 = sg::input(name="x") : f32[3] @s0
n1: %1 = sg::constant(data=c0) : f32[3] @s1
n2: %2 = aten::bernoulli(self=%1) : f32[3] @s2
n3: %3 = aten::empty_like(self=%1) : f32[3] @s3
n4: %4 = aten::neg(self=%1) : f32[3] @s4 grad
n5: %5 = aten::mul.Tensor(self=%0, other=%2) : f32[3] @s5
n6: %6 = aten::mul.Tensor(self=%5, other=%3) : f32[3] @s6
n7: %7 = aten::mul.Tensor(self=%6, other=%4) : f32[3] @s7
n8: sg::output(values=[%7])
)");
  EXPECT_FALSE(checked(graph, "const-fold").changed) << to_text(graph);
}

// A draw advances the generator, even if its result is unused.
TEST(DeadStorage, KeepsDrawsThatAreOverwritten) {
  Graph graph = parse(R"(shadowgraph 1 libtorch 2.13.0
operator aten::empty.memory_format(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor
operator aten::normal_(Tensor(a!) self, float mean=0., float std=1., *, Generator? generator=None) -> Tensor(a!)
operator aten::copy_(Tensor(a!) self, Tensor src, bool non_blocking=False) -> Tensor(a!)
s0 = 16 cpu input
s1 = 16 cpu temporary
n0: %0 = sg::input(name="x") : f32[4] @s0
n1: %1 = aten::empty.memory_format(size=[4]) : f32[4] @s1
n2: %2 = aten::normal_(self=%1) : f32[4] @s1
n3: %3 = aten::copy_(self=%2, src=%0) : f32[4] @s1
n4: sg::output(values=[%3])
)");
  EXPECT_FALSE(checked(graph, "dead-storage").changed) << to_text(graph);
}

TEST(MergeConstants, SaysHowManyBytesItSaves) {
  Graph graph = parse(R"(shadowgraph 1 libtorch 2.13.0
operator aten::mul.Tensor(Tensor self, Tensor other) -> Tensor
s0 = 12 cpu input
s1 = 12 cpu constant
s2 = 12 cpu constant
s3 = 12 cpu constant
s4 = 12 cpu temporary
s5 = 12 cpu temporary
s6 = 12 cpu temporary
c0 = f32[3] "AAAAPwAAAD8AAAA/"
c1 = f32[3] "AAAAPwAAAD8AAAA/"
c2 = f32[3] "AAAAPwAAAD8AAAA/"
n0: %0 = sg::input(name="x") : f32[3] @s0
n1: %1 = sg::constant(data=c0) : f32[3] @s1
n2: %2 = sg::constant(data=c1) : f32[3] @s2
n3: %3 = sg::constant(data=c2) : f32[3] @s3
n4: %4 = aten::mul.Tensor(self=%0, other=%1) : f32[3] @s4
n5: %5 = aten::mul.Tensor(self=%4, other=%2) : f32[3] @s5
n6: %6 = aten::mul.Tensor(self=%5, other=%3) : f32[3] @s6
n7: sg::output(values=[%6])
)");
  const MergeConstantsResult merged = merge_constants(graph);
  EXPECT_EQ(merged.merged, 2);
  EXPECT_EQ(merged.bytes, 24);
}

// zeros, full and a contiguous clone would be row-major.
TEST(DeadStorage, KeepsAllocationsThatNoFactoryLaysOut) {
  Graph graph = parse(R"(shadowgraph 1 libtorch 2.13.0
operator aten::empty_strided(SymInt[] size, SymInt[] stride, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor
operator aten::zero_(Tensor(a!) self) -> Tensor(a!)
operator aten::fill_.Scalar(Tensor(a!) self, Scalar value) -> Tensor(a!)
operator aten::copy_(Tensor(a!) self, Tensor src, bool non_blocking=False) -> Tensor(a!)
s0 = 16 cpu input
s1 = 16 cpu temporary
s2 = 16 cpu temporary
s3 = 16 cpu temporary
n0: %0 = sg::input(name="x") : f32[2,2] @s0
n1: %1 = aten::empty_strided(size=[2, 2], stride=[1, 2]) : f32[2,2]{1,2} @s1
n2: %2 = aten::zero_(self=%1) : f32[2,2]{1,2} @s1
n3: %3 = aten::empty_strided(size=[2, 2], stride=[1, 2]) : f32[2,2]{1,2} @s2
n4: %4 = aten::fill_.Scalar(self=%3, value=2.0) : f32[2,2]{1,2} @s2
n5: %5 = aten::empty_strided(size=[2, 2], stride=[1, 2]) : f32[2,2]{1,2} @s3
n6: %6 = aten::copy_(self=%5, src=%0) : f32[2,2]{1,2} @s3
n7: sg::output(values=[%2, %4, %6])
)");
  EXPECT_FALSE(checked(graph, "dead-storage").changed) << to_text(graph);
}

}  // namespace
}  // namespace shadowgraph
