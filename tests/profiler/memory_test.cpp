// Memory timeline, storage kinds, saved bytes and parameter counts of graphs with hand-computed sums.
#include <gtest/gtest.h>

#include <random>

#include "ir/records.h"
#include "profiler/program_costs.h"
#include "shadowgraph/profile/profile.h"
#include "tests/profiler/test_graph.h"

namespace shadowgraph {
namespace {

using shadowgraph::testing::TestGraph;

int64_t of_kind(const BytesByKind& bytes, StorageKind kind) { return bytes[static_cast<size_t>(kind)]; }

// One training step of relu(x @ w), with a momentum buffer; 4 bytes per element.
struct TrainingStep {
  TestGraph t;
  TestGraph::Call x, w, mm, relu, loss, grad_relu, w_t, grad_w, momentum, step;
  TrainingStep() {
    x = t.input("x", {2, 3});                       // 24 bytes, node 0
    w = t.parameter("w", {3, 200});                 // 2400, node 1
    mm = t.call("aten::mm", {x, w}, {{2, 200}});    // 1600, node 2
    relu = t.call("aten::relu", {mm}, {{2, 200}});  // 1600, node 3
    loss = t.call("aten::sum", {relu}, {{}});       // 4, node 4
    t.phase = Graph::kBackward;
    grad_relu = t.call("aten::threshold_backward", {relu, relu, Argument::of_int(0)}, {{2, 200}}, relu.node);  // node 5
    w_t = t.view("aten::t", {x}, x.value(), {3, 2}, mm.node);                                                  // node 6
    grad_w = t.call("aten::mm", {w_t, grad_relu}, {{3, 200}}, mm.node);  // 2400, node 7
    t.phase = Graph::kOptimizer;
    momentum = t.call("aten::clone", {grad_w}, {{3, 200}});                                            // 2400, node 8
    step = t.view("aten::add_.Tensor", {w, momentum, Argument::of_float(-0.1)}, w.value(), {3, 200});  // node 9
    t.gradient(w, grad_w);                                                                             // node 10
    t.output({loss});                                                                                  // node 11
    t.save(mm.node, {x.value(), w.value()});
    t.save(relu.node, {relu.value()});
    t.free_after(relu.node, {t.storage(mm)});
    t.free_after(grad_relu.node, {t.storage(relu)});
    t.free_after(grad_w.node, {t.storage(grad_relu)});
  }
};

TEST(StorageKinds, FromHowTheGraphUsesThem) {
  TrainingStep s;
  const auto kinds = ProgramCosts(s.t.graph).kinds;
  EXPECT_EQ(kinds[s.t.storage(s.x)], StorageKind::kInput);
  EXPECT_EQ(kinds[s.t.storage(s.w)], StorageKind::kParameter);
  EXPECT_EQ(kinds[s.t.storage(s.mm)], StorageKind::kTemporary);  // freed in forward, not saved
  EXPECT_EQ(kinds[s.t.storage(s.relu)], StorageKind::kActivation);
  EXPECT_EQ(kinds[s.t.storage(s.loss)], StorageKind::kActivation);  // alive when backward starts
  EXPECT_EQ(kinds[s.t.storage(s.grad_relu)], StorageKind::kTemporary);
  EXPECT_EQ(kinds[s.t.storage(s.grad_w)], StorageKind::kGradient);
  EXPECT_EQ(kinds[s.t.storage(s.momentum)], StorageKind::kOptimizerState);
}

TEST(StorageKinds, WhatTheOptimizerFreesIsNotItsState) {
  const TrainingStep s;
  TrainingStep freed;
  freed.t.free_after(freed.step.node, {freed.t.storage(freed.momentum)});
  EXPECT_EQ(ProgramCosts(s.t.graph).kinds[s.t.storage(s.momentum)], StorageKind::kOptimizerState);
  EXPECT_EQ(ProgramCosts(freed.t.graph).kinds[freed.t.storage(freed.momentum)], StorageKind::kTemporary);
}

TEST(StorageKinds, AliveAtTheFirstBackwardNodeIsAnActivation) {
  TestGraph t;
  const auto x = t.input("x", {4});
  const auto early = t.call("aten::relu", {x}, {{4}});
  const auto late = t.call("aten::relu", {x}, {{4}});
  const auto last = t.call("aten::relu", {x}, {{4}});
  t.phase = Graph::kBackward;
  const auto first_backward = t.call("aten::neg", {x}, {{4}});
  const auto second_backward = t.call("aten::neg", {x}, {{4}});
  t.free_after(last.node, {t.storage(early)});  // before the first backward node, so it is not saved
  t.free_after(first_backward.node, {t.storage(late)});
  t.free_after(second_backward.node, {t.storage(last)});
  const auto kinds = ProgramCosts(t.graph).kinds;
  EXPECT_EQ(kinds[t.storage(early)], StorageKind::kTemporary);
  EXPECT_EQ(kinds[t.storage(late)], StorageKind::kActivation);
  EXPECT_EQ(kinds[t.storage(last)], StorageKind::kActivation);
  EXPECT_EQ(kinds[t.storage(first_backward)], StorageKind::kTemporary);
}

TEST(StorageKinds, RecorderIsBelieved) {
  TrainingStep s;
  s.t.graph.set_storage_kind(s.t.storage(s.mm), StorageKind::kConstant);
  EXPECT_EQ(ProgramCosts(s.t.graph).kinds[s.t.storage(s.mm)], StorageKind::kConstant);
}

TEST(StorageKinds, WithoutBackwardNothingIsAnActivation) {
  TestGraph t;
  const auto x = t.input("x", {4});
  const auto y = t.call("aten::relu", {x}, {{4}});
  t.output({y});
  EXPECT_EQ(ProgramCosts(t.graph).kinds[t.storage(y)], StorageKind::kTemporary);
}

TEST(MemoryTimeline, CountsAtTheNodeAfterAllocationBeforeFrees) {
  TrainingStep s;
  const auto timeline = MemoryTimeline::of(s.t.graph);
  ASSERT_EQ(timeline.steps(), 12U);
  const int64_t resident = 24 + 2400;
  const int64_t expected[] = {
      resident,                    // x: the parameter exists from the start
      resident,                    // w
      resident + 1600,             // mm
      resident + 1600 + 1600,      // mm's result is still live
      resident + 1600 + 4,         // mm's result is freed
      resident + 1600 + 4 + 1600,  // relu's result is still live
      resident + 4 + 1600,         // a view takes no memory
      resident + 4 + 1600 + 2400,  // mm: gradient
      resident + 4 + 2400 + 2400,  // clone: momentum
      resident + 4 + 2400 + 2400,  // add_
      resident + 4 + 2400 + 2400,  // sg::gradient
      resident + 4 + 2400 + 2400,  // sg::output
  };
  for (uint32_t step = 0; step < timeline.steps(); ++step) EXPECT_EQ(timeline.total(step), expected[step]) << step;

  const MemoryPeak& peak = timeline.peak();
  EXPECT_EQ(peak.bytes, 7228);
  EXPECT_EQ(peak.node, s.momentum.node);  // the earliest of several equal peaks
  EXPECT_EQ(peak.step, 8U);
  EXPECT_EQ(peak.phase, Graph::kOptimizer);
  EXPECT_EQ(of_kind(peak.by_kind, StorageKind::kParameter), 2400);
  EXPECT_EQ(of_kind(peak.by_kind, StorageKind::kInput), 24);
  EXPECT_EQ(of_kind(peak.by_kind, StorageKind::kActivation), 4);
  EXPECT_EQ(of_kind(peak.by_kind, StorageKind::kGradient), 2400);
  EXPECT_EQ(of_kind(peak.by_kind, StorageKind::kOptimizerState), 2400);
  EXPECT_EQ(of_kind(peak.by_kind, StorageKind::kTemporary), 0);
  // In blocks of 512: x 512, w 2560, loss 512, gradient 2560, momentum 2560.
  EXPECT_EQ(timeline.rounded_total(8), 8704);
  EXPECT_EQ(timeline.rounded_peak(), 8704);
}

TEST(MemoryTimeline, NamesWhatIsAliveAtThePeak) {
  TrainingStep s;
  mutable_node(s.t.graph, s.momentum.node).source = s.t.graph.intern("train.cpp:7");
  const auto timeline = MemoryTimeline::of(s.t.graph);
  const auto alive = live_storages(s.t.graph, timeline, timeline.peak().step, 4);
  ASSERT_EQ(alive.size(), 4U);
  EXPECT_EQ(alive[0].producer, "sg::parameter w");  // equal sizes are ordered by id
  EXPECT_EQ(alive[0].shape, (std::vector<int64_t>{3, 200}));
  EXPECT_EQ(alive[0].dtype, c10::ScalarType::Float);
  EXPECT_EQ(alive[1].producer, "aten::mm");
  EXPECT_EQ(alive[1].kind, StorageKind::kGradient);
  EXPECT_EQ(alive[2].producer, "aten::clone");
  EXPECT_EQ(alive[2].source, "train.cpp:7");
  EXPECT_EQ(alive[3].bytes, 24);
}

TEST(MemoryTimeline, ConstantMetLateExistedBefore) {
  TestGraph t;
  const auto x = t.input("x", {4});
  const auto y = t.call("aten::relu", {x}, {{4}});
  const NodeId late = t.graph.append(target_of(Builtin::kConstant), {Argument::none()});
  t.tensor(late, {100});
  t.output({y});
  const auto timeline = MemoryTimeline::of(t.graph);
  EXPECT_EQ(timeline.total(0), 16 + 400);
  EXPECT_EQ(timeline.total(1), 16 + 16 + 400);
}

TEST(MemoryTimeline, BornAndFreedAtTheSameNodeIsLiveThereOnly) {
  TestGraph t;
  const auto x = t.input("x", {4});
  const auto workspace = t.call("aten::relu", {x}, {{8}});
  t.free_after(workspace.node, {t.storage(workspace)});
  const auto y = t.call("aten::neg", {x}, {{4}});
  t.output({y});
  const auto timeline = MemoryTimeline::of(t.graph);
  EXPECT_EQ(timeline.total(1), 16 + 32);
  EXPECT_EQ(timeline.total(2), 16 + 16);
  EXPECT_EQ(timeline.peak().node, workspace.node);
}

TEST(MemoryTimeline, OneDevice) {
  TestGraph t;
  const auto x = t.input("x", {4});
  t.device = c10::Device(c10::DeviceType::CUDA, 1);
  const auto y = t.call("aten::_to_copy", {x}, {{4}});
  const auto z = t.call("aten::relu", {y}, {{4}});
  t.output({z});
  EXPECT_EQ(MemoryTimeline::of(t.graph).peak().bytes, 48);
  EXPECT_EQ(MemoryTimeline::of(t.graph, c10::Device("cuda:1")).peak().bytes, 32);
  EXPECT_EQ(MemoryTimeline::of(t.graph, c10::Device("cuda")).peak().bytes, 32);
  EXPECT_EQ(MemoryTimeline::of(t.graph, c10::Device("cuda:0")).peak().bytes, 0);
  EXPECT_EQ(MemoryTimeline::of(t.graph, c10::Device("cpu")).peak().bytes, 16);
}

TEST(MemoryTimeline, EmptyGraph) {
  const Graph graph;
  const auto timeline = MemoryTimeline::of(graph);
  EXPECT_EQ(timeline.steps(), 0U);
  EXPECT_EQ(timeline.peak().bytes, 0);
  EXPECT_FALSE(timeline.peak().node.valid());
  EXPECT_TRUE(live_storages(graph, timeline, 0, 5).empty());
}

// Random chains compared with a step-by-step simulation that uses a plain list of live storages.
TEST(MemoryTimeline, AgreesWithReplayedLifetimes) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    TestGraph t;
    std::vector<TestGraph::Call> calls = {t.input("x", {4})};
    std::vector<std::vector<StorageId>> freed(1);
    std::vector<StorageId> alive;
    for (int i = 0; i < 40; ++i) {
      calls.push_back(t.call("aten::relu", {calls.back()}, {{static_cast<int64_t>(random() % 50)}}));
      alive.push_back(t.storage(calls.back()));
      freed.emplace_back();
      while (!alive.empty() && random() % 2 == 0) {
        const size_t pick = random() % alive.size();
        freed.back().push_back(alive[pick]);
        alive.erase(alive.begin() + static_cast<std::ptrdiff_t>(pick));
      }
      t.free_after(calls.back().node, freed.back());
    }
    const auto timeline = MemoryTimeline::of(t.graph);
    int64_t live = 0;
    for (uint32_t step = 0; step < calls.size(); ++step) {
      live += t.graph.storage(t.storage(calls[step])).bytes;
      ASSERT_EQ(timeline.total(step), live) << "seed " << seed << " step " << step;
      for (StorageId id : freed[step]) live -= t.graph.storage(id).bytes;
    }
  }
}

TEST(SavedBytes, ByStorageOnce) {
  TrainingStep s;
  // mm saves x (24) and w (2400), relu its result (1600): only the last was allocated by the step.
  EXPECT_EQ(SavedBytes::of(s.t.graph), (SavedBytes{.all = 4024, .activations = 1600, .storages = 3}));
  // A view of the same storage, or another node saving the same tensor, changes nothing.
  s.t.save(s.loss.node, {s.w_t.value(), s.relu.value()});
  EXPECT_EQ(SavedBytes::of(s.t.graph), (SavedBytes{.all = 4024, .activations = 1600, .storages = 3}));
}

TEST(ParameterCount, SharedOnes) {
  TestGraph t;
  const auto embedding = t.parameter("wte.weight", {10, 4});
  t.parameter("lm_head.weight", {10, 4}, t.storage(embedding));  // tied: same storage, same view
  t.dtype = c10::ScalarType::Half;
  t.parameter("bias", {4});
  t.placeholder(Builtin::kBuffer, "mask", {5, 5});
  t.input("x", {100});
  const auto count = ParameterCount::of(t.graph);
  EXPECT_EQ(count.parameters, 44);
  EXPECT_EQ(count.parameter_bytes, 160 + 8);
  EXPECT_EQ(count.parameter_tensors, 2);
  EXPECT_EQ(count.buffers, 25);
  EXPECT_EQ(count.buffer_bytes, 50);
}

TEST(ParameterCount, PartsOfOneStorageCountEach) {
  TestGraph t;
  const auto flat = t.parameter("weight_ih", {24});
  const auto second = t.parameter("weight_hh", {24}, t.storage(flat));
  mutable_value(t.graph, second.value()).offset = 24;
  EXPECT_EQ(ParameterCount::of(t.graph).parameters, 48);
}

// Takes about a second for a million nodes on one core; the bound is loose, for slow machines and sanitizers.
// bench/graph_text measures the time.
TEST(MemoryTimeline, LongChains) {
  TestGraph t;
  auto previous = t.input("x", {4});
  const TargetId relu = t.graph.intern_operator("aten::relu");
  for (int i = 0; i < 200'000; ++i) {
    auto next = t.append(relu, {previous});
    next.values.push_back(t.tensor(next.node, {4}));
    if (i > 0) t.free_after(next.node, {t.storage(previous)});
    previous = next;
  }
  EXPECT_EQ(MemoryTimeline::of(t.graph).peak().bytes, 48);
}

}  // namespace
}  // namespace shadowgraph
