// Bytes and seconds of collectives: hand-computed sums, invariants, interconnect files, and overlap with compute.
#include "shadowgraph/profile/communication.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "shadowgraph/capture/capture.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/profile.h"
#include "shadowgraph/profile/step_time.h"
#include "shadowgraph/profile/traces.h"

namespace shadowgraph::communication_test {
namespace {

using ::testing::HasSubstr;
using Kind = CollectiveKind;

constexpr int64_t kMiB = int64_t{1} << 20;

// 1 ms per call; 1 us and 1 GB/s within blocks of 4; 10 us and 0.1 GB/s between them.
Interconnect simple() {
  return {.name = "simple",
          .title = "simple",
          .base = 1e-3,
          .levels = {{"inside", 4, 1e-6, 1e9}, {"between", 0, 1e-5, 1e8}},
          .axes = {},
          .sources = {}};
}
ProcessGroupInfo group_of(int64_t size, std::vector<int64_t> ranks = {}) {
  return {.name = "g", .size = size, .rank = 0, .ranks = std::move(ranks), .axis = {}};
}
double seconds(Kind kind, int64_t bytes, const ProcessGroupInfo& group, const Interconnect& links = simple()) {
  return collective_cost(kind, bytes, group, links).seconds();
}
std::vector<Kind> all_kinds() {
  std::vector<Kind> kinds;
  for (int i = 0; i < kCollectiveKindCount; ++i) kinds.push_back(static_cast<Kind>(i));
  return kinds;
}

TEST(CollectiveCost, ByHandInABlock) {
  const auto four = group_of(4);
  // (n - 1)/n of 4 MB at 1 GB/s is 3 ms, 3 hops are 3 us, a call 1 ms.
  EXPECT_NEAR(seconds(Kind::kAllGather, 4'000'000, four), 1e-3 + 3e-6 + 3e-3, 1e-12);
  EXPECT_NEAR(seconds(Kind::kReduceScatter, 4'000'000, four), 1e-3 + 3e-6 + 3e-3, 1e-12);
  EXPECT_NEAR(seconds(Kind::kAllToAll, 4'000'000, four), 1e-3 + 3e-6 + 3e-3, 1e-12);
  EXPECT_NEAR(seconds(Kind::kAllReduce, 4'000'000, four), 1e-3 + 6e-6 + 6e-3, 1e-12);
  EXPECT_NEAR(seconds(Kind::kBroadcast, 4'000'000, four), 1e-3 + 3e-6 + 4e-3, 1e-12);
  EXPECT_NEAR(seconds(Kind::kSend, 4'000'000, four), 1e-3 + 1e-6 + 4e-3, 1e-12);
  EXPECT_NEAR(seconds(Kind::kBarrier, 0, four), 1e-3 + 6e-6, 1e-12);
  EXPECT_EQ(collective_cost(Kind::kAllReduce, 4'000'000, four, simple()).algorithm, CollectiveAlgorithm::kRing);
}

TEST(CollectiveCost, ByHandAcrossBlocks) {
  // Two blocks of four: 7 hops, one of them between blocks; the ring crosses on 4 links, and 0.4 GB/s < 1 GB/s.
  EXPECT_NEAR(seconds(Kind::kAllGather, 8'000'000, group_of(8)), 1e-3 + 6e-6 + 1e-5 + 7e-3 / 0.4, 1e-12);
  // One process in each of two blocks has only its own link.
  EXPECT_NEAR(seconds(Kind::kAllGather, 8'000'000, group_of(2, {0, 4})), 1e-3 + 1e-5 + 4e-3 / 0.1, 1e-12);
  // Two processes in each of two blocks.
  EXPECT_NEAR(seconds(Kind::kAllGather, 8'000'000, group_of(4, {0, 1, 4, 5})), 1e-3 + 2e-6 + 1e-5 + 6e-3 / 0.2, 1e-12);
  // All-to-all: 4 of 8 parts leave the block through the process's own link, 8 MB / 8 * 4 at 0.1 GB/s.
  EXPECT_NEAR(seconds(Kind::kAllToAll, 8'000'000, group_of(8)), 1e-3 + 6e-6 + 1e-5 + 4e-3 / 0.1, 1e-12);
  // The ring sends to a neighbor 1 and to the other block.
  const auto eight = group_of(8);
  EXPECT_NEAR(collective_cost(Kind::kSend, 1'000'000, eight, simple(), 3).seconds(), 1e-3 + 1e-6 + 1e-3, 1e-12);
  EXPECT_NEAR(collective_cost(Kind::kSend, 1'000'000, eight, simple(), 4).seconds(), 1e-3 + 1e-5 + 1e-2, 1e-12);
}

TEST(CollectiveCost, SmallSumsOfManyTakeATree) {
  Interconnect links = simple();
  links.levels[0].size = 1;  // every process is its own block
  // 64 processes: the ring has 126 hops of 10 us, a binary tree 6 up and 6 down.
  const auto small = collective_cost(Kind::kAllReduce, 1000, group_of(64), links);
  EXPECT_EQ(small.algorithm, CollectiveAlgorithm::kTree);
  EXPECT_NEAR(small.seconds(), 1e-3 + 12e-5 + 2000 / 1e8, 1e-12);
  EXPECT_EQ(small.wire, 2000);
  const auto large = collective_cost(Kind::kAllReduce, 1'000'000'000, group_of(64), links);
  EXPECT_EQ(large.algorithm, CollectiveAlgorithm::kRing);
  EXPECT_EQ(large.wire, 2 * (1'000'000'000 / 64 * 63));
}

TEST(CollectiveCost, Laws) {
  for (const std::string& name : Interconnect::names()) {
    const Interconnect links = Interconnect::named(name);
    for (const int64_t n : {2, 3, 8, 16, 24, 256}) {
      const auto group = group_of(n);
      double last[kCollectiveKindCount] = {};
      for (const int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{1000}, kMiB, 64 * kMiB, 1024 * kMiB}) {
        for (const Kind kind : all_kinds()) {
          EXPECT_EQ(seconds(kind, bytes, group_of(1), links), 0) << to_string(kind);
          EXPECT_EQ(wire_bytes(kind, bytes, 1), 0);
          const double now = seconds(kind, bytes, group, links);
          EXPECT_GE(now, last[static_cast<int>(kind)]) << name << " " << to_string(kind) << " " << n << " " << bytes;
          EXPECT_GT(now, 0);
          last[static_cast<int>(kind)] = now;
        }
        // A ring all-reduce is a reduce-scatter and an all-gather, with one start instead of two. A tree can only be
        // faster.
        const double both =
            seconds(Kind::kReduceScatter, bytes, group, links) + seconds(Kind::kAllGather, bytes, group, links);
        const CollectiveCost sum = collective_cost(Kind::kAllReduce, bytes, group, links);
        EXPECT_LE(sum.seconds(), both - links.base + 1e-12);
        if (sum.algorithm == CollectiveAlgorithm::kRing) {
          // A single ring fills its pipeline once, two rings twice.
          const auto steps = static_cast<double>(n - 1);
          const double twice = (1 + links.ring_fill / steps) / (1 + links.ring_fill / (2 * steps));
          EXPECT_NEAR(sum.latency + sum.transfer * twice, both - links.base, 1e-9 * both);
        }
        EXPECT_EQ(wire_bytes(Kind::kAllReduce, bytes, n),
                  wire_bytes(Kind::kReduceScatter, bytes, n) + wire_bytes(Kind::kAllGather, bytes, n));
        // Broadcast and gather of one tensor do not get faster with more processes, unless those add links.
        if (!links.levels[0].groups.empty()) continue;
        EXPECT_LE(seconds(Kind::kBroadcast, bytes, group, links),
                  seconds(Kind::kBroadcast, bytes, group_of(2 * n), links));
      }
    }
  }
}

TEST(CollectiveCost, AnAxisOfItsOwn) {
  Interconnect links = simple();
  links.axes["g"].latency = 5e-6;
  links.axes["g"].bandwidth = 2e9;
  EXPECT_NEAR(seconds(Kind::kAllGather, 8'000'000, group_of(8), links), 1e-3 + 7 * 5e-6 + 7e-3 / 2, 1e-12);
  ProcessGroupInfo other = group_of(8);
  other.axis = "other";  // matched by axis, not by name
  EXPECT_EQ(seconds(Kind::kAllGather, 8'000'000, other, links), seconds(Kind::kAllGather, 8'000'000, group_of(8)));
  links.axes["g"].tables[Kind::kAllReduce] = {{1000, 1e-3}, {2000, 3e-3}};
  EXPECT_NEAR(seconds(Kind::kAllReduce, 1500, group_of(8), links), 2e-3, 1e-12);
  EXPECT_NEAR(seconds(Kind::kAllReduce, 10, group_of(8), links), 1e-3, 1e-12);
  EXPECT_NEAR(seconds(Kind::kAllReduce, 4000, group_of(8), links), 7e-3, 1e-12);
  EXPECT_EQ(collective_cost(Kind::kAllReduce, 10, group_of(8), links).algorithm, CollectiveAlgorithm::kTable);
}

TEST(InterconnectFiles, EveryFigureHasASourceAndComesBack) {
  EXPECT_GE(Interconnect::names().size(), 7U);
  for (const std::string& name : Interconnect::names()) {
    const Interconnect links = Interconnect::named(name);
    EXPECT_EQ(links.name, name);
    EXPECT_TRUE(links.sources.contains("base")) << name;
    EXPECT_TRUE(links.sources.contains("device_share")) << name;
    EXPECT_GT(links.device_share, 0) << name;
    for (const LinkLevel& level : links.levels) {
      for (const char* figure : {"latency", "bandwidth"}) {
        EXPECT_TRUE(links.sources.contains("levels." + level.name + "." + figure) ||
                    links.sources.contains(std::string("levels.*.") + figure))
            << name << " " << level.name << " " << figure;
      }
    }
    const Interconnect again = interconnect_from_json(to_json(links), name);
    EXPECT_EQ(to_json(again), to_json(links));
    EXPECT_EQ(again.levels, links.levels);
  }
  for (const std::string& name : DeviceSpec::names()) {
    const std::string links = DeviceSpec::named(name).interconnect;
    if (!links.empty()) EXPECT_EQ(Interconnect::named(links).name, links) << name;
  }
  EXPECT_THROW(Interconnect::named("nothing"), Error);
}

TEST(Machine, HasWhatIsKnownAndRefusesTheRest) {
  const Machine usual = Machine::find("h100_pcie");
  EXPECT_EQ(usual.specs().name, "h100_pcie");
  EXPECT_EQ(usual.network().name, "pcie5");
  EXPECT_EQ(usual.memory->bytes, usual.specs().memory);
  EXPECT_EQ(Machine::find("cpu", "pcie4").network().name, "pcie4");
  EXPECT_EQ(Machine::find("", "", MemoryLimit::parse("l4")).specs().name, "l4");
  EXPECT_EQ(Machine::find("", "", MemoryLimit::parse("l4"), c10::kCPU).specs().device, c10::kCPU);
  const auto refusal = [](const auto& asked) {
    try {
      asked();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(refusal([] { Machine::find("cpu").network(); }).find("--interconnect"), std::string::npos);
  EXPECT_NE(refusal([] { Machine::find("", "", {}, c10::kMPS).specs(); }).find("--spec"), std::string::npos);
}

TEST(InterconnectFiles, WhatIsNoneIsRefused) {
  const auto error = [](const char* text) {
    try {
      interconnect_from_json(nlohmann::json::parse(text), "my.json");
    } catch (const ParseError& e) {
      return std::string(e.what());
    }
    return std::string("nothing was thrown");
  };
  EXPECT_THAT(error("[]"), HasSubstr("my.json: invalid interconnect spec"));
  EXPECT_THAT(error(R"({"version": 2})"), HasSubstr("version must be 1"));
  EXPECT_THAT(error(R"({"version": 1})"), HasSubstr("levels is missing"));
  EXPECT_THAT(error(R"({"version": 1, "levels": [{"latency": 1}]})"), HasSubstr("levels[0].name is missing"));
  EXPECT_THAT(error(R"({"version": 1, "device_share": 1, "levels": [{"name": "a", "bandwidth": 1}]})"),
              HasSubstr("device_share must be less than 1"));
  EXPECT_THAT(error(R"({"version": 1, "levels": [{"name": "a"}]})"), HasSubstr("levels[0].bandwidth is missing"));
  EXPECT_THAT(error(R"({"version": 1, "levels": [{"name": "a", "bandwidth": 1, "latency": -1}]})"),
              HasSubstr("levels[0].latency is not a finite number >= 0"));
  EXPECT_THAT(error(R"({"version": 1, "levels": [{"name": "a", "bandwidth": 1}, {"name": "b", "bandwidth": 1}]})"),
              HasSubstr("levels[0] needs a size"));
  EXPECT_THAT(error(R"({"version": 1, "levels": [{"name": "a", "size": 8, "bandwidth": 1},
                                                 {"name": "b", "size": 12, "bandwidth": 1}]})"),
              HasSubstr("not a multiple of a's 8"));
  EXPECT_THAT(
      error(R"({"version": 1, "levels": [{"name": "a", "bandwidth": 1}], "axes": {"tp": {"tables": {"x": []}}}})"),
      HasSubstr("axes.tp.tables.x is not a collective"));
  EXPECT_THAT(error(R"({"version": 1, "levels": [{"name": "a", "bandwidth": 1}],
                        "axes": {"tp": {"tables": {"all_reduce": [[2, 1], [1, 1]]}}}})"),
              HasSubstr("must be in ascending order"));
  EXPECT_THAT(error(R"({"version": 1, "levels": [{"name": "a", "bandwith": 1}]})"),
              HasSubstr("levels[0].bandwidth is missing; bandwith is not a key"));
  EXPECT_THAT(error(R"({"version": 1, "levels": [{"name": "a", "bandwidth": 1, "latancy": 1}]})"),
              HasSubstr("levels[0].latancy is not a key of a level (did you mean latency?)"));
  EXPECT_THAT(error(R"({"version": 1, "levels": [{"name": "a", "bandwidth": 1e-9}]})"),
              HasSubstr("levels[0].bandwidth must be positive: a rate from 1 to 1e30 per second"));
  EXPECT_THAT(error(R"({"version": 1, "level": [], "levels": [{"name": "a", "bandwidth": 1}]})"),
              HasSubstr("level is not a key of an interconnect spec (did you mean levels?)"));
  EXPECT_THAT(error(R"({"version": 1, "levels": [{"name": "a", "bandwidth": 1}], "axes": {"tp": {"speed": 1}}})"),
              HasSubstr("axes.tp.speed is not a key"));
}

// ---- Graphs -----------------------------------------------------------------------------------------------------------

at::Tensor run(const char* name, torch::jit::Stack arguments) {
  c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(arguments);
  return arguments[0].toTensor();
}

// y = all_reduce(x), `products` independent matrix products, then z = relu(y).
Graph overlapping(int products) {
  const FakeMesh mesh({{"tp", 8}});
  Capture session({.mode = {.device = at::kCUDA}});
  const at::Tensor x = at::empty({1024, 1024});
  const at::Tensor w = at::empty({4096, 4096});
  const at::Tensor sum = run("_c10d_functional::all_reduce", {x, "sum", "tp"});
  at::Tensor beside = w;
  for (int i = 0; i < products; ++i) beside = beside.matmul(w);
  return session.finish({run("_c10d_functional::wait_tensor", {sum}).relu(), beside});
}

TEST(Communication, OfAGraphByHand) {
  const Graph graph = overlapping(1);
  const Interconnect links = Interconnect::named("h100");
  const Communication communication = Communication::of(graph, {.interconnect = &links});
  ASSERT_EQ(communication.collectives().size(), 1U);
  const Collective& sum = communication.collectives()[0];
  EXPECT_EQ(sum.kind, Kind::kAllReduce);
  EXPECT_EQ(sum.payload, 4 * kMiB);
  EXPECT_EQ(sum.cost.wire, 7 * kMiB);  // 2 x 7/8
  EXPECT_TRUE(sum.asynchronous);
  EXPECT_NEAR(sum.cost.seconds(), 6.6e-6 + 14 * 0.6e-6 + 7.0 * kMiB * (14.25 / 14) / 370.8e9, 1e-12);
  ASSERT_EQ(communication.groups().size(), 1U);
  EXPECT_EQ(communication.groups()[0].size, 8);
  EXPECT_EQ(communication.total().wire, 7 * kMiB);
  EXPECT_EQ(communication.of(Graph::kForward).calls, 1);
  EXPECT_EQ(communication.of(Graph::kBackward).calls, 0);
  EXPECT_TRUE(communication.uncovered().empty());
  // Without an interconnect, only bytes are known.
  EXPECT_EQ(Communication::of(graph).total().wire, 7 * kMiB);
  EXPECT_FALSE(Communication::of(graph).has_seconds());
}

TEST(Communication, OverlapsWithWhatDoesNotNeedIt) {
  Interconnect links = Interconnect::named("h100");
  links.device_share = 0;  // tested in overlap_test.cpp
  DeviceSpec spec = DeviceSpec::named("h100");
  spec.host_call = 0;
  for (const int products : {0, 1, 40}) {
    const Graph graph = overlapping(products);
    const Communication communication = Communication::of(graph, {.interconnect = &links});
    const StepTime time = StepTime::of(graph, spec);
    const OverlappedStep overlap = OverlappedStep::of(graph, communication, time);
    EXPECT_NEAR(overlap.compute(), time.seconds(), 1e-12);  // kernel time excludes collectives
    EXPECT_GE(overlap.seconds(), overlap.at_least());
    EXPECT_LE(overlap.seconds(), overlap.at_most() + 1e-15);
    if (products == 0) {
      EXPECT_NEAR(overlap.seconds(), overlap.at_most(), 1e-12);  // nothing overlaps it
    }
    if (products == 40) {
      EXPECT_NEAR(overlap.seconds(), overlap.compute(), 1e-12);  // fully overlapped
    }
  }
}

// A reduction that is never waited for still counts in the step.
TEST(Communication, AStepLastsUntilItsLastCollective) {
  const Interconnect links = Interconnect::named("h100");
  const FakeMesh mesh({{"dp", 8}});
  Capture session({.mode = {.device = at::kCUDA}});
  std::vector<at::Tensor> tensors{at::empty({1 << 28})};
  c10d::AllreduceOptions options;
  options.asyncOp = true;
  mesh.group("dp")->allreduce(tensors, options);
  const Graph graph = session.finish({at::empty({4}).relu()});
  const Communication communication = Communication::of(graph, {.interconnect = &links});
  const StepTime time = StepTime::of(graph, DeviceSpec::named("h100"));
  const OverlappedStep overlap = OverlappedStep::of(graph, communication, time);
  ASSERT_EQ(communication.collectives().size(), 1U);
  EXPECT_GE(overlap.seconds(), communication.collectives()[0].cost.seconds());
}

// The same reduction, synchronous: later nodes wait although they do not use it.
TEST(Communication, SynchronousCallsHoldComputingUp) {
  Interconnect links = Interconnect::named("h100");
  links.device_share = 0;
  for (const bool asynchronous : {true, false}) {
    const FakeMesh mesh({{"dp", 8}});
    Capture session({.mode = {.device = at::kCUDA}});
    std::vector<at::Tensor> tensors{at::empty({1 << 20})};
    const at::Tensor w = at::empty({4096, 4096});
    c10d::AllreduceOptions options;
    options.asyncOp = asynchronous;
    const auto work = mesh.group("dp")->allreduce(tensors, options);
    const at::Tensor product = w.matmul(w);
    work->wait();
    const Graph graph = session.finish({product, tensors[0]});
    const DeviceSpec spec = DeviceSpec::named("h100");
    const OverlappedStep overlap =
        OverlappedStep::of(graph, Communication::of(graph, {.interconnect = &links}), StepTime::of(graph, spec));
    if (asynchronous) {
      EXPECT_LT(overlap.exposed(), 1e-9);
    } else {
      EXPECT_NEAR(overlap.exposed(), overlap.communication(), 1e-5);
    }
  }
}

struct Gather : torch::autograd::Function<Gather> {
  static at::Tensor forward(torch::autograd::AutogradContext* /*context*/, const at::Tensor& part) {
    return run("_c10d_functional::all_gather_into_tensor", {part, 4, "fsdp"});
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 const torch::autograd::variable_list& gradients) {
    return {run("_c10d_functional::reduce_scatter_tensor", {gradients[0], "sum", 4, "fsdp"})};
  }
};

TEST(Communication, ForwardAndBackwardOfANodeAndAModule) {
  const FakeMesh mesh({{"fsdp", 4}});
  Capture session({.mode = {.device = at::kCUDA}});
  const at::Tensor x = at::empty({256}).requires_grad_();
  session.name_parameter(x, "layer.weight");
  at::Tensor y;
  {
    int layer = 0;
    session.name_module(&layer, "layer");
    session.enter_module(&layer, "Layer");
    y = Gather::apply(x);
    session.leave_module();
  }
  y.square().sum().backward();
  const Graph graph = session.finish({});
  const Communication communication = Communication::of(graph);
  ASSERT_EQ(communication.collectives().size(), 2U);
  const NodeId gather = communication.collectives()[0].node;
  EXPECT_EQ(communication.forward(gather).wire, 3 * 1024);  // 4 x 1 KiB, minus the process's own part
  EXPECT_EQ(communication.backward(gather).wire, 3 * 1024);
  EXPECT_EQ(communication.backward(communication.collectives()[1].node).calls, 0);
  const auto modules = communication.by_module();
  ASSERT_EQ(modules.size(), 1U);
  EXPECT_EQ(modules[0].path, "layer");
  EXPECT_EQ(modules[0].forward.payload, 4096);
  EXPECT_EQ(modules[0].backward.payload, 4096);
}

TEST(Communication, WhatIsNotKnownIsListed) {
  Graph bare;
  {
    const FakeMesh mesh({{"dp", 4}});
    Capture session;
    bare = session.finish({run("_c10d_functional::all_reduce", {at::empty({1024}), "sum", "dp"})});
  }
  // Without the node that describes the group, as in graphs from other sources.
  NodeId says;
  for (const NodeId node : bare.nodes()) {
    if (bare.target(node).name() == "sg_c10d::process_group") says = node;
  }
  ASSERT_TRUE(says.valid());
  bare.erase(says);
  const Communication unknown = Communication::of(bare);
  EXPECT_TRUE(unknown.collectives().empty());
  ASSERT_EQ(unknown.uncovered().size(), 1U);
  EXPECT_EQ(unknown.uncovered()[0].op, "_c10d_functional::all_reduce");
  EXPECT_FALSE(unknown.empty());
  // With the mesh given, the group is known.
  const Communication told = Communication::of(bare, {.interconnect = nullptr, .mesh = parse_mesh("dp=4")});
  EXPECT_EQ(told.total().wire, 2 * 3 * 1024);
}

TEST(Communication, InEveryReport) {
  const Graph graph = overlapping(1);
  const Interconnect links = Interconnect::named("h100");
  const DeviceSpec spec = DeviceSpec::named("h100");
  const Profile profile = shadowgraph::profile(graph, {.spec = &spec, .interconnect = &links});
  const nlohmann::json json = to_json(profile)["communication"];
  EXPECT_EQ(json["wire_bytes"], 7 * kMiB);
  EXPECT_EQ(json["kinds"]["all_reduce"]["calls"], 1);
  EXPECT_EQ(json["groups"][0]["name"], "tp");
  EXPECT_GE(json["overlap"]["seconds"].get<double>(), json["overlap"]["at_least_seconds"].get<double>());
  EXPECT_THAT(to_text(profile), HasSubstr("7.00 MiB sent by this process in 1 collectives"));
  EXPECT_THAT(nodes_csv(profile), HasSubstr(",7340032,"));
  bool in_its_row = false;
  const nlohmann::json trace = nlohmann::json::parse(chrome_trace(profile));
  for (const auto& event : trace["traceEvents"]) {
    if (event["name"] == "_c10d_functional::all_reduce" && event["ph"] == "X") {
      in_its_row = event["tid"] == 4 && event["args"]["wire_bytes"] == 7 * kMiB;
    }
  }
  EXPECT_TRUE(in_its_row);
  // 16 channels, 2 neighbors, three buffers, for a single group.
  EXPECT_EQ(profile.device_memory->nccl, 16 * 2 * (4'194'304 + 524'288 + 4'915'200));
  EXPECT_EQ(profile.device_memory->footprint(),
            profile.device_memory->reserved_peak + DeviceAssumptions().context + profile.device_memory->nccl);
  // Collectives need neither a FLOP formula nor a scratch rule.
  EXPECT_TRUE(profile.uncovered.empty());
  EXPECT_TRUE(profile.unknown_scratch.empty());
  // A report of a program without collectives has no communication section.
  Capture session;
  const Graph none = session.finish({at::empty({2}).relu()});
  EXPECT_FALSE(to_json(shadowgraph::profile(none, {.spec = &spec, .interconnect = &links})).contains("communication"));
}

}  // namespace
}  // namespace shadowgraph::communication_test
