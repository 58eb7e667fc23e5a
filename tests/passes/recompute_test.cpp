// The policy `optimal`: its guarantees about budgets, chains built from training steps, and node costs.
#include "shadowgraph/passes/recompute.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/optim/sgd.h>

#include <regex>

#include "models/program.h"
#include "models/registry.h"
#include "shadowgraph/capture/capture.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/graph/verify.h"
#include "shadowgraph/passes/pipeline.h"
#include "shadowgraph/profile/operator_costs.h"
#include "tests/passes/model_captures.h"

namespace shadowgraph {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kBudgets = 20;

Graph capture_usual(const std::string& name, int64_t batch, int64_t seq = 0) {
  const FakeTensorMode mode({.device = c10::kCUDA});
  const models::BuiltModel model = models::build(name, {.batch = batch, .seq = seq, .training = true});
  torch::optim::SGD sgd(model.module->parameters(), torch::optim::SGDOptions(1e-3));
  return capture_training_step(models::program_of(model, &sgd)).graph;
}

// Checks the header's guarantees at twenty budgets, from above the step's peak to below its minimum.
void expect_contract(const Graph& graph) {
  const CheckpointCurve curve = CheckpointCurve::of(graph);
  const int64_t highest = peak_of_live_bytes(graph);
  ASSERT_FALSE(curve.choices().empty());
  EXPECT_EQ(curve.choices().front().peak, highest);
  for (size_t i = 1; i < curve.choices().size(); ++i) {
    EXPECT_LT(curve.choices()[i].peak, curve.choices()[i - 1].peak) << "a choice costs more without lowering the peak";
    EXPECT_GE(curve.choices()[i].cost, curve.choices()[i - 1].cost);
  }
  const int64_t lowest = curve.choices().back().peak;
  int64_t peak = highest;
  int64_t cost = 0;
  for (int i = 0; i < kBudgets; ++i) {
    const int64_t budget = highest + (highest - lowest) / 10 - (highest - lowest) * 12 * i / 10 / (kBudgets - 1);
    const CheckpointChoice* choice = curve.within(budget);
    ASSERT_EQ(choice != nullptr, budget >= lowest);
    if (choice == nullptr) continue;
    Graph rewritten = clone(graph);
    checkpoint_segments(rewritten, choice->segments);
    EXPECT_EQ(peak_of_live_bytes(rewritten), choice->peak);
    EXPECT_LE(choice->peak, budget);
    EXPECT_LE(choice->peak, peak) << "a smaller budget gives a higher peak";
    EXPECT_GE(choice->cost, cost) << "a smaller budget recomputes less";
    peak = choice->peak;
    cost = choice->cost;
    for (const CheckpointChoice& tried : curve.tried()) {
      if (tried.peak > budget) continue;
      EXPECT_LE(choice->cost, tried.cost) << tried.policy;
    }
  }
}

TEST(LeastRecompute, KeepsItsPromises) {
  for (const char* name : {"gpt2", "llama3_8b", "resnet50"}) {
    SCOPED_TRACE(name);
    expect_contract(capture_tiny(name, {.batch = 8}));
  }
  SCOPED_TRACE("of usual size");
  expect_contract(capture_usual("gpt2", 8, 1024));
}

int64_t flops_again(const Flops& flops, const std::vector<NodeId>& repeated) {
  int64_t sum = 0;
  for (const NodeId n : repeated) sum += flops.of(n).matmul;
  return sum;
}

// Recomputes less than policy=budget, at no higher peak, for every budget that the latter accepts.
TEST(LeastRecompute, ComputesLessAgainThanTheBudgetPolicy) {
  const Graph graph = capture_usual("gpt2", 8, 1024);
  const Flops flops = Flops::of(graph);
  const CheckpointCurve curve = CheckpointCurve::of(graph);
  const auto blocks = each_region()(graph, regions_named(graph, "auto"));
  ASSERT_EQ(blocks.size(), 12U);
  for (size_t count = 1; count <= blocks.size(); ++count) {
    Graph greedy = clone(graph);
    const CheckpointResult done = checkpoint_segments(greedy, std::span(blocks).first(count));
    const CheckpointChoice* choice = curve.within(peak_of_live_bytes(greedy));
    ASSERT_NE(choice, nullptr);
    EXPECT_LT(flops_again(flops, choice->repeated), flops_again(flops, done.repeated)) << count << " blocks";
  }
}

TEST(LeastRecompute, AsAPass) {
  Graph graph = capture_tiny("gpt2", {.batch = 8});
  const CheckpointCurve curve = CheckpointCurve::of(graph);
  const int64_t lowest = curve.choices().back().peak;
  const int64_t budget = (lowest + curve.choices().front().peak) / 2;
  EXPECT_TRUE(run_pass(graph, "checkpoint", {{"policy", "optimal"}, {"bytes", std::to_string(budget)}}).changed);
  verify(graph);
  EXPECT_LE(peak_of_live_bytes(graph), budget);
  EXPECT_FALSE(run_pass(graph, "checkpoint", {{"policy", "optimal"}, {"bytes", std::to_string(budget)}}).changed);
  Graph other = capture_tiny("gpt2", {.batch = 8});
  const Graph before = clone(other);
  try {
    run_pass(other, "checkpoint", {{"policy", "optimal"}, {"bytes", std::to_string(lowest - 1)}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("has a peak of " + std::to_string(lowest)));
  }
  EXPECT_EQ(peak_of_live_bytes(other), peak_of_live_bytes(before));
  // A forward-only graph saves nothing.
  Graph forward = capture_tiny("gpt2", {.train = false});
  EXPECT_FALSE(run_pass(forward, "checkpoint", {{"policy", "optimal"}, {"bytes", "1TB"}}).changed);
}

// File sizes may be arbitrarily large: the sums that compare plans must not overflow.
TEST(LeastRecompute, StoragesThatNoSumHolds) {
  const std::string text = to_text(capture_usual("lstm_lm", 2, 3));
  const std::regex temporary("(\ns[0-9]*[05] = )[0-9]+( [a-z:0-9]+ temporary)");
  const Graph graph = parse(std::regex_replace(text, temporary, "$019223372036854775807$2"));
  const auto refusal = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  EXPECT_THAT(refusal([&] { CheckpointCurve::of(graph); }), HasSubstr("2^58 bytes"));
  EXPECT_THAT(refusal([&] { peak_of_live_bytes(graph); }), HasSubstr("2^58 bytes"));
  const CheckpointCurveOptions dear{.chain = {.cost = [](const Graph&, NodeId) { return int64_t{1} << 57; }}};
  EXPECT_THAT(refusal([&] { CheckpointCurve::of(parse(text), {}, dear); }), HasSubstr("exceeds 2^58"));
}

// ---- Offload to the CPU

TEST(LeastRecompute, WithALinkThatHidesEverything) {
  const Graph graph = capture_tiny("gpt2", {.batch = 8, .device = c10::kCUDA});
  const CheckpointCurve without = CheckpointCurve::of(graph);
  const CheckpointCurve with = CheckpointCurve::of(graph, {}, {.chain = {.link = 1e12}});
  int64_t offloaded = 0;
  int64_t free_peak = peak_of_live_bytes(graph, c10::kCUDA);
  int64_t cost = -1;
  for (const CheckpointChoice& choice : with.choices()) {
    Graph rewritten = clone(graph);
    const CheckpointResult done = checkpoint_segments(rewritten, choice.segments);
    verify(rewritten);
    EXPECT_EQ(peak_of_live_bytes(rewritten, c10::kCUDA), choice.peak);
    EXPECT_EQ(done.offloaded_bytes, choice.offloaded);
    EXPECT_GE(choice.cost, cost);
    cost = choice.cost;
    offloaded = std::max(offloaded, choice.offloaded);
    if (choice.cost == 0) free_peak = std::min(free_peak, choice.peak);
  }
  EXPECT_GT(offloaded, 0);
  EXPECT_LT(free_peak, peak_of_live_bytes(graph, c10::kCUDA)) << "free transfers do not lower the peak";
  for (const CheckpointChoice& choice : without.choices()) EXPECT_EQ(choice.offloaded, 0);
}

TEST(LeastRecompute, WhatGoesToTheHostIsFetchedBeforeItIsRead) {
  Graph graph = capture_tiny("gpt2", {.batch = 8, .device = c10::kCUDA});
  const CheckpointChain chain = CheckpointChain::of(graph, {}, {.link = 1e12});
  std::vector<CheckpointSegment> segments;
  for (size_t i = 0; i < chain.stages.size(); ++i) {
    for (size_t o = 0; o < chain.parts[i].offload.size(); ++o) {
      if (chain.parts[i].offload[o].empty()) continue;
      segments.push_back({.name = "stage",
                          .regions = {},
                          .first = chain.parts[i].first,
                          .last = chain.parts[i].last,
                          .keep = chain.parts[i].keep[o],
                          .offload = chain.parts[i].offload[o]});
      break;
    }
  }
  ASSERT_FALSE(segments.empty());
  const CheckpointResult done = checkpoint_segments(graph, segments);
  verify(graph);
  EXPECT_GT(done.offloaded, 0);
  // Copies in both directions: an offload ends on the CPU, a fetch starts there.
  int64_t there = 0;
  int64_t back = 0;
  for (const NodeId n : nodes_calling(graph, "aten::_to_copy")) {
    ValueId from;
    graph.for_each_input(n, [&](ValueId v) { from = v; });
    ValueId to;
    graph.for_each_output(n, [&](ValueId v) { to = v; });
    const bool from_host = graph.value(from).device().is_cpu();
    if (from_host == graph.value(to).device().is_cpu()) continue;  // a copy of the program itself
    ++(from_host ? back : there);
    EXPECT_EQ(graph.node(n).phase, from_host ? Graph::kBackward : Graph::kForward);
  }
  EXPECT_EQ(there, done.offloaded);
  EXPECT_EQ(back, done.offloaded);
}

// ---- Chains

TEST(CheckpointChain, OfATransformer) {
  const Graph graph = capture_usual("gpt2", 8, 1024);
  const CheckpointChain chain = CheckpointChain::of(graph);
  EXPECT_THAT(chain.not_a_chain, IsEmpty());
  // Attention and MLP of a block each end in one tensor of 8 x 1024 x 768 floats.
  int attention = 0;
  for (const ChainStage& stage : chain.stages) {
    if (stage.name.find(".attn.") == std::string::npos) continue;
    ++attention;
    EXPECT_EQ(stage.output, 8 * 1024 * 768 * 4);
    EXPECT_GT(stage.options.size(), 3U);
    for (size_t o = 1; o < stage.options.size(); ++o) {
      EXPECT_LT(stage.options[o].saved, stage.options[o - 1].saved);
      EXPECT_GT(stage.options[o].cost, stage.options[o - 1].cost);
    }
  }
  EXPECT_EQ(attention, 12);
  int64_t parameters = 0;
  for (uint32_t i = 0; i < graph.storage_count(); ++i) {
    const Storage& storage = graph.storage(StorageId(i));
    if (storage.kind == StorageKind::kParameter) parameters += storage.bytes;
  }
  EXPECT_GE(chain.elsewhere, parameters);
}

TEST(CheckpointChain, OfRegions) {
  const Graph graph = capture_tiny("gpt2", {.batch = 8});
  const auto blocks = regions_named(graph, "auto");
  const CheckpointChain chain = CheckpointChain::of(graph, blocks);
  size_t droppable = 0;
  for (const ChainStage& stage : chain.stages) {
    if (!stage.droppable) continue;
    ++droppable;
    EXPECT_THAT(stage.name, HasSubstr("transformer.h."));
  }
  EXPECT_EQ(droppable, blocks.size());
}

TEST(CheckpointChain, SaysWhatMakesItNone) {
  const Graph unet = capture_tiny("unet", {});
  const CheckpointChain chain = CheckpointChain::of(unet);
  ASSERT_FALSE(chain.not_a_chain.empty());
  EXPECT_THAT(chain.not_a_chain[0], HasSubstr("later: kept"));
  // "4096 bytes of ...": parameters and inputs, which are kept under every plan.
  int64_t kept = 0;
  for (const std::string& why : chain.not_a_chain) {
    if (why.find("later: kept") != std::string::npos) kept += std::stoll(why);
  }
  int64_t given = 0;
  for (uint32_t i = 0; i < unet.storage_count(); ++i) {
    const Storage& storage = unet.storage(StorageId(i));
    if (unet.is_placeholder(storage.born)) given += storage.bytes;
  }
  EXPECT_GT(kept, 0);
  EXPECT_GE(chain.elsewhere, given + kept);
  EXPECT_GT(chain.stages.size(), 3U);
  EXPECT_TRUE(CheckpointChain::of(capture_tiny("gpt2", {.train = false})).stages.empty());
}

// Passes cannot use the profiler's table; for forward operators of models the two agree.
TEST(CheckpointChain, CostsAreTheProfilersFlops) {
  for (const char* name : {"resnet18", "vit_b_16", "bert_base", "gpt2", "llama3_8b", "unet", "lstm_lm"}) {
    for (const c10::DeviceType device : {c10::kCPU, c10::kCUDA}) {
      const Graph graph = capture_tiny(name, {.device = device});
      const Flops flops = Flops::of(graph);
      for (const NodeId n : graph.nodes()) {
        if (graph.node(n).phase != Graph::kForward || graph.is_placeholder(n)) continue;
        EXPECT_EQ(product_flops(graph, n), flops.of(n).matmul) << name << ": " << graph.target(n).name();
      }
    }
  }
}

}  // namespace
}  // namespace shadowgraph
