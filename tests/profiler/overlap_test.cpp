// Collectives overlapping kernels, in steps with hand-computed times. A kernel is a matrix product of some seconds, a
// collective sends for some seconds, and everything else is free.
#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <cmath>

#include "profiler/communication/stream_tasks.h"
#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/process_group.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/memory.h"
#include "shadowgraph/profile/profile.h"
#include "shadowgraph/profile/step_time.h"

namespace shadowgraph::overlap_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kMany = 1 << 20;  // elements that a collective sends per second

DeviceSpec products_alone() {
  DeviceSpec spec;
  spec.name = "products";
  spec.bandwidth = 1e30;
  spec.matmul = {{c10::kFloat, 2.0 * 128 * 128 * 128}};  // a 128 x 128 product takes one second
  return spec;
}
Interconnect links(double share = 0) {
  // With two processes, half of the payload is sent.
  return {.name = "links",
          .title = "links",
          .base = 0,
          .device_share = share,
          .levels = {{"wire", 0, 0, 4.0 * kMany}},
          .axes = {},
          .sources = {}};
}
OverlappedStep step_of(const Graph& graph, double share = 0) {
  const Interconnect wire = links(share);
  return OverlappedStep::of(graph, Communication::of(graph, {.interconnect = &wire}),
                            StepTime::of(graph, products_alone()));
}
std::vector<std::string> causes_of(const Graph& graph, const OverlappedStep& step) {
  const Interconnect wire = links();
  const Communication communication = Communication::of(graph, {.interconnect = &wire});
  std::vector<std::string> causes;
  for (const ExposureCause& cause : step.causes()) {
    causes.push_back(std::to_string(static_cast<int>(std::round(cause.seconds))) + " " +
                     to_string(cause, graph, communication));
  }
  return causes;
}

// A program on two processes, with arbitrary streams.
class Program {
 public:
  explicit Program(std::vector<MeshAxis> axes = {{"fsdp", 2}})
      : mesh_(std::move(axes)), session_({.mode = {.device = at::kCUDA}}), w_(at::empty({128, 128})) {}

  c10::Stream new_stream() const { return guard_.getNewStream(device_); }
  c10::Stream current() const { return guard_.getStream(device_); }
  void wait(const c10::Stream& waiting, const c10::Stream& stream) const {
    c10::Event event(at::kCUDA);
    event.record(stream);
    event.block(waiting);
  }
  // Returns the result of `seconds` matrix products of one second each.
  at::Tensor compute(int seconds) {
    at::Tensor x = w_;
    for (int i = 0; i < seconds; ++i) x = x.mm(w_);
    return x;
  }
  // Issues all-gathers that take `seconds` on a stream, without waiting.
  at::Tensor gather(const c10::Stream& stream, int seconds, const std::string& group = "fsdp") {
    const c10::StreamGuard here(stream);
    at::Tensor whole = at::empty({2 * kMany * seconds});
    at::Tensor part = at::empty({kMany * seconds});
    c10d::AllgatherOptions options;
    options.asyncOp = false;
    mesh_.group(group)->_allgather_base(whole, part, options);
    return whole;
  }
  // Issues an asynchronous all-reduce, of which every process sends everything; returns its first element.
  at::Tensor reduce(int seconds, const std::string& group) {
    std::vector<at::Tensor> sum{at::empty({kMany * seconds})};
    c10d::AllreduceOptions options;
    options.asyncOp = true;
    mesh_.group(group)->allreduce(sum, options);
    return sum[0].narrow(0, 0, 128 * 128).view({128, 128});
  }
  // All-gathers the halves of one tensor, `seconds` each; returns the first element of each.
  std::vector<at::Tensor> gather_halves(int seconds, const std::string& group = "fsdp") {
    const at::Tensor whole = at::empty({2, 2 * kMany * seconds});
    std::vector<at::Tensor> beginnings;
    for (int i = 0; i < 2; ++i) {
      at::Tensor half = whole[i];
      at::Tensor part = at::empty({kMany * seconds});
      c10d::AllgatherOptions options;
      options.asyncOp = true;
      mesh_.group(group)->_allgather_base(half, part, options);
      beginnings.push_back(half.narrow(0, 0, 128 * 128).view({128, 128}));
    }
    return beginnings;
  }
  Graph finish(const std::vector<at::Tensor>& results) { return session_.finish(results); }

 private:
  FakeMesh mesh_;
  Capture session_;
  at::Tensor w_;
  c10::Device device_{at::kCUDA, 0};
  c10::impl::VirtualGuardImpl guard_{at::kCUDA};
};

// Two layers as run by FSDP2: the second layer's parameters are gathered while the first computes.
Graph two_layers(int gather_seconds, int layer_seconds) {
  Program p;
  const c10::Stream gathers = p.new_stream();
  p.gather(gathers, gather_seconds);
  p.wait(p.current(), gathers);
  p.gather(gathers, gather_seconds);
  at::Tensor first = p.compute(layer_seconds);
  p.wait(p.current(), gathers);
  return p.finish({first, p.compute(layer_seconds)});
}

TEST(Overlap, AGatherIsHiddenByTheLayerBefore) {
  const Graph graph = two_layers(1, 2);
  const OverlappedStep step = step_of(graph);
  EXPECT_NEAR(step.communication(), 2, 1e-9);
  EXPECT_NEAR(step.compute(), 4, 1e-9);
  EXPECT_NEAR(step.seconds(), 1 + 2 + 2, 1e-9);
  EXPECT_NEAR(step.exposed(), 1, 1e-9);
  EXPECT_THAT(causes_of(graph, step), ElementsAre("1 all_gather of fsdp, forward"));
  EXPECT_EQ(step.causes()[0].waits, 1);
}

TEST(Overlap, AGatherIsHiddenInPart) {
  const Graph graph = two_layers(3, 2);
  const OverlappedStep step = step_of(graph);
  EXPECT_NEAR(step.seconds(), 3 + 3 + 2, 1e-9);
  ASSERT_EQ(step.exposures().size(), 2U);
  EXPECT_NEAR(step.exposures()[0].seconds, 3, 1e-9);
  EXPECT_NEAR(step.exposures()[1].seconds, 1, 1e-9);
  EXPECT_EQ(graph.target(step.exposures()[1].waiter).name(), "aten::mm");
  EXPECT_NEAR(step.at_least(), 6, 1e-9);
  EXPECT_NEAR(step.at_most(), 10, 1e-9);
}

// During a gather of 2 s that occupies a quarter of the device, 1.5 s of a product complete.
TEST(Overlap, KernelsAreSlowerBesideCollectives) {
  const Graph graph = two_layers(2, 3);
  EXPECT_NEAR(step_of(graph).seconds(), 2 + 3 + 3, 1e-9);
  const OverlappedStep step = step_of(graph, 0.25);
  EXPECT_NEAR(step.slowed(), 0.5, 1e-9);
  EXPECT_NEAR(step.seconds(), 2 + 3 + 3 + 0.5, 1e-9);
  EXPECT_NEAR(step.exposed(), 2.5, 1e-9);
}

TEST(Overlap, CollectivesOfOneGroupAreSerialOnWhateverStreams) {
  for (const bool one_group : {true, false}) {
    Program p({{"a", 2}, {"b", 2}});
    const c10::Stream here = p.new_stream();
    const c10::Stream there = p.new_stream();
    p.gather(here, 2, "a");
    p.gather(there, 2, one_group ? "a" : "b");
    at::Tensor first = p.compute(1);
    p.wait(p.current(), here);
    p.wait(p.current(), there);
    const Graph graph = p.finish({first, p.compute(1)});
    EXPECT_NEAR(step_of(graph).seconds(), one_group ? 5 : 3, 1e-9);
  }
}

TEST(Overlap, AsynchronousCollectivesHaveAStreamForEachGroup) {
  for (const bool one_group : {true, false}) {
    Program p({{"a", 2}, {"b", 2}});
    const at::Tensor one = p.reduce(2, "a");
    const at::Tensor other = p.reduce(2, one_group ? "a" : "b");
    const at::Tensor beside = p.compute(1);
    const Graph graph = p.finish({one.mm(beside), other.mm(beside)});
    EXPECT_NEAR(step_of(graph).seconds(), one_group ? 5 : 4, 1e-9);
  }
}

// Two halves of one tensor are gathered; the product of the first runs while the second is sent.
TEST(Overlap, AReaderOfOnePartDoesNotWaitForAnother) {
  Program p;
  const std::vector<at::Tensor> halves = p.gather_halves(2);
  const at::Tensor first = halves[0].mm(halves[0]);
  const Graph graph = p.finish({first, halves[1].mm(halves[1])});
  EXPECT_NEAR(step_of(graph).seconds(), 2 + 2 + 1, 1e-9);
  EXPECT_NEAR(step_of(graph).exposed(), 2 + 1, 1e-9);
}

// A layer's gradients are reduced while the previous layer computes, and the optimizer waits for the last reduction.
TEST(Overlap, WhatWaitsIsNamedByItsPhase) {
  Program p;
  const c10::Stream sums = p.new_stream();
  {
    const PhaseScope backward("backward");
    p.compute(2);
    p.wait(sums, p.current());
    p.gather(sums, 1);
    p.compute(2);
    p.wait(sums, p.current());
    p.gather(sums, 3);
  }
  const PhaseScope optimizer("optimizer");
  p.wait(p.current(), sums);
  const Graph graph = p.finish({p.compute(1)});
  const OverlappedStep step = step_of(graph);
  EXPECT_NEAR(step.seconds(), 2 + 2 + 3 + 1, 1e-9);
  EXPECT_THAT(causes_of(graph, step), ElementsAre("3 all_gather of fsdp, backward, until the optimizer"));
}

TEST(Overlap, KernelsOfSeveralStreamsTakeTurns) {
  Program p;
  const c10::Stream side = p.new_stream();
  at::Tensor beside;
  {
    const c10::StreamGuard here(side);
    beside = p.compute(2);
  }
  const Graph graph = p.finish({beside, p.compute(3)});
  EXPECT_NEAR(step_of(graph).seconds(), 5, 1e-9);
}

// Copies between device and host at one megabyte per second, overlapping products.
TEST(Overlap, CopiesOfEnginesRunBesideKernelsOneAfterAnother) {
  Program p;
  const at::Tensor kept = p.compute(1);
  const auto away = [&](int megabytes) {
    return at::empty({megabytes * 250'000}).to(at::Device(at::kCPU), at::kFloat, /*non_blocking=*/true);
  };
  const at::Tensor first = away(2), second = away(3);
  const at::Tensor last = p.compute(3);
  Graph graph = p.finish({kept, first, second, last});
  for (const NodeId node : graph.nodes()) {
    if (graph.target(node).name() == "aten::_to_copy") graph.set_note(node, "kernel", "copy engine");
  }
  DeviceSpec spec = products_alone();
  spec.host = {.link = 1e6};
  const Interconnect wire = links();
  const StepTime time = StepTime::of(graph, spec);
  EXPECT_NEAR(time.seconds(), 1 + 2 + 3, 1e-9);
  EXPECT_NEAR(time.busy(), 4, 1e-9);
  const OverlappedStep step = OverlappedStep::of(graph, Communication::of(graph, {.interconnect = &wire}), time);
  EXPECT_NEAR(step.seconds(), 1 + 2 + 3, 1e-9);
}

// A kernel waits for its operands, even if the program forgot to wait.
TEST(Overlap, AKernelWaitsForWhatItReads) {
  Program p;
  const at::Tensor whole = p.gather(p.new_stream(), 2);
  const Graph graph = p.finish({p.compute(1), whole.narrow(0, 0, 128).view({1, 128}).mm(at::empty({128, 1}))});
  EXPECT_GT(step_of(graph).seconds(), 2);
}

TEST(Overlap, NotesOfStreamsComeBackFromText) {
  const Graph graph = two_layers(3, 2);
  const std::string text = to_text(graph);
  EXPECT_THAT(text, HasSubstr("note(\"event\"=\"1\", \"stream\"=\"1\")"));
  EXPECT_THAT(text, HasSubstr("note(\"waits\"=\"1\")"));
  EXPECT_EQ(step_of(parse(text)).seconds(), step_of(graph).seconds());
}

// If a pass has erased the node of an event, waiting for it waits for everything issued so far.
TEST(Overlap, AnEventThatIsGoneStandsForAllThatWasIssued) {
  Graph graph = two_layers(1, 2);
  for (const NodeId node : graph.nodes()) graph.set_note(node, "event", "");
  EXPECT_NEAR(step_of(graph).seconds(), 1 + 1 + 2 + 2, 1e-9);
}

TEST(Overlap, NotesThatAreNoNumbersAreRefused) {
  Graph graph = two_layers(1, 2);
  graph.set_note(graph.last(), "waits", "the others");
  EXPECT_THROW(step_of(graph), Error);
}

// The host issues both before the device starts, so the step begins with host time.
TEST(Overlap, TheHostIsWaitedForByItself) {
  StreamSchedule schedule;
  const uint32_t kernel = schedule.add({.issued = 2, .seconds = 1}, {});
  const uint32_t gather = schedule.add({.issued = 2, .seconds = 3, .is_collective = true}, {});
  const uint32_t both[] = {kernel, gather};
  schedule.add({.issued = 2, .seconds = 1}, both);
  schedule.run(0);
  EXPECT_EQ(schedule.seconds(), 6);
  EXPECT_EQ(schedule.waits_for_host(), 2);
  ASSERT_EQ(schedule.waits().size(), 1U);
  EXPECT_EQ(schedule.waits()[0].seconds, 2);
}

// One rank computes 2 s before it sends, the other 1 s before it receives: the 1 s transfer starts at 2.
TEST(Overlap, DevicesMeet) {
  StreamSchedule schedule;
  const uint32_t meeting = schedule.add_rendezvous(2);
  const uint32_t long_kernel[] = {schedule.add({.seconds = 2}, {})};
  const uint32_t sent = schedule.add({.seconds = 1, .is_collective = true, .meeting = meeting}, long_kernel);
  const uint32_t kernel[] = {schedule.add({.seconds = 1, .device = 1}, {})};
  const uint32_t received[] = {
      schedule.add({.seconds = 0.5, .is_collective = true, .device = 1, .meeting = meeting}, kernel)};
  schedule.add({.seconds = 1, .device = 1}, received);
  schedule.run(0);
  EXPECT_EQ(schedule.start(sent), 2);
  EXPECT_EQ(schedule.end(received[0]), 3);
  EXPECT_EQ(schedule.seconds(), 4);
  EXPECT_EQ(schedule.device(0).computing, 2);
  EXPECT_EQ(schedule.device(0).end, 3);
  EXPECT_EQ(schedule.device(1).computing, 2);
  double waited = 0;
  for (const StreamSchedule::Wait& wait : schedule.waits()) waited += wait.device == 1 ? wait.seconds : 0;
  EXPECT_EQ(waited, 2);
  EXPECT_TRUE(schedule.stuck().empty());
  const uint32_t nobody_comes =
      schedule.add({.seconds = 1, .is_collective = true, .device = 1, .meeting = schedule.add_rendezvous(2)}, received);
  schedule.run(0);
  EXPECT_EQ(schedule.stuck(), std::vector<uint32_t>{nobody_comes});
}

// ---- Memory with several streams

int64_t reserved(const Graph& graph) { return device_memory(graph, {.steps = 1, .scratch = false}).reserved_peak; }

TEST(StreamMemory, ABlockIsOfTheStreamThatTookIt) {
  constexpr int64_t kBlock = 64 << 20;
  for (const bool side : {false, true}) {
    Program p;
    const c10::Stream stream = side ? p.new_stream() : p.current();
    {
      const c10::StreamGuard here(stream);
      at::empty({kBlock}, at::kByte).add_(1);
    }
    const Graph graph = p.finish({at::empty({kBlock}, at::kByte).add_(1)});
    // 128 x 128 floats fit in a small segment.
    EXPECT_EQ(reserved(graph), (2 << 20) + kBlock * (side ? 2 : 1));
  }
}

TEST(StreamMemory, ABlockThatAnotherStreamUsesIsNotReusedInItsStep) {
  constexpr int64_t kBlock = 64 << 20;
  for (const bool used : {false, true}) {
    Program p;
    const c10::Stream side = p.new_stream();
    {
      const at::Tensor block = at::empty({kBlock}, at::kByte);
      if (used) block.record_stream(side);
    }
    const Graph graph = p.finish({at::empty({kBlock}, at::kByte).add_(1)});
    EXPECT_EQ(reserved(graph), (2 << 20) + kBlock * (used ? 2 : 1));
  }
}

}  // namespace
}  // namespace shadowgraph::overlap_test
