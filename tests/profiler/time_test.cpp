// Bytes moved by calls, kernel classes, device specs, and step time: hand-computed sums.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>

#include "shadowgraph/graph/text.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/measure.h"
#include "shadowgraph/profile/operator_costs.h"
#include "shadowgraph/profile/profile.h"
#include "shadowgraph/profile/step_time.h"
#include "tests/profiler/test_graph.h"

namespace shadowgraph {
namespace {

using shadowgraph::testing::TestGraph;
using ::testing::HasSubstr;

NodeTraffic traffic(const TestGraph& t, const TestGraph::Call& call) { return Traffic::of(t.graph).of(call.node); }

TEST(Traffic, EveryOperandOnceAndEveryResultOnce) {
  TestGraph t;
  const auto a = t.input("a", {8, 16});
  const auto b = t.input("b", {16});
  EXPECT_EQ(traffic(t, t.call("aten::add.Tensor", {a, b}, {{8, 16}})), (NodeTraffic{512 + 64, 512}));
  EXPECT_EQ(traffic(t, t.call("aten::mul.Tensor", {a, a}, {{8, 16}})), (NodeTraffic{512, 512}));
  EXPECT_EQ(traffic(t, t.view("aten::t", {a}, a.value(), {16, 8})), NodeTraffic());
  EXPECT_EQ(traffic(t, t.call("aten::empty_like", {a}, {{8, 16}})), NodeTraffic());
  EXPECT_EQ(traffic(t, t.call("aten::zeros_like", {a}, {{8, 16}})).written, 512);
}

TEST(Traffic, InPlaceReadsAndWritesButOverwritingDoesNotRead) {
  TestGraph t;
  const auto a = t.input("a", {128});
  const auto b = t.input("b", {128});
  EXPECT_EQ(traffic(t, t.view("aten::add_.Tensor", {a, b}, a.value(), {128})), (NodeTraffic{1024, 512}));
  EXPECT_EQ(traffic(t, t.view("aten::copy_", {a, b}, a.value(), {128})), (NodeTraffic{512, 512}));
  EXPECT_EQ(traffic(t, t.view("aten::zero_", {a}, a.value(), {128})), (NodeTraffic{0, 512}));
}

TEST(Traffic, OfATableOnlyTheRowsTaken) {
  TestGraph t;
  const auto table = t.parameter("table", {1000, 64});
  t.dtype = c10::kLong;
  const auto rows = t.input("rows", {10});
  t.dtype = c10::kFloat;
  EXPECT_EQ(traffic(t, t.call("aten::embedding", {table, rows}, {{10, 64}})), (NodeTraffic{2560 + 80, 2560}));
}

TEST(KernelClass, ByNameAndOperands) {
  TestGraph t;
  const auto x = t.input("x", {1, 8, 4, 4});
  const auto conv = [&](const TestGraph::Call& weight, int64_t groups) {
    const auto call = t.call("aten::convolution",
                             {x,
                              weight,
                              {},
                              t.ints({1, 1}),
                              t.ints({0, 0}),
                              t.ints({1, 1}),
                              Argument::of_bool(false),
                              t.ints({0, 0}),
                              Argument::of_int(groups)},
                             {{1, 8, 4, 4}});
    return kernel_class(t.graph, call.node);
  };
  EXPECT_EQ(conv(t.parameter("a", {8, 8, 3, 3}), 1), KernelClass::kConvolution);
  EXPECT_EQ(conv(t.parameter("b", {8, 8, 1, 1}), 1), KernelClass::kPointwiseConvolution);
  EXPECT_EQ(conv(t.parameter("c", {8, 2, 3, 3}), 4), KernelClass::kGroupedConvolution);
  EXPECT_EQ(conv(t.parameter("d", {8, 1, 3, 3}), 8), KernelClass::kDepthwiseConvolution);
  const auto of = [&](const char* op, std::vector<Argument> arguments) {
    return kernel_class(t.graph, t.call(op, std::move(arguments), {{4, 4}}).node);
  };
  EXPECT_EQ(of("aten::mm", {x, x}), KernelClass::kMatmul);
  EXPECT_EQ(of("aten::relu", {x}), KernelClass::kPointwise);
  EXPECT_EQ(kernel_class(t.graph, t.view("aten::relu_", {x}, x.value(), {1, 8, 4, 4}).node),
            KernelClass::kPointwiseInPlace);
  EXPECT_EQ(of("aten::gelu", {x}), KernelClass::kTranscendental);
  EXPECT_EQ(of("aten::_softmax", {x}), KernelClass::kSoftmax);
  EXPECT_EQ(of("aten::sum.dim_IntList", {x}), KernelClass::kReduction);
  EXPECT_EQ(of("aten::_flash_attention_forward", {x}), KernelClass::kAttention);
  EXPECT_EQ(of("shadowgraph::flex_attention", {x}), KernelClass::kAttention);
  EXPECT_EQ(of("shadowgraph::flex_attention_backward", {x}), KernelClass::kAttentionBackward);
  EXPECT_EQ(of("aten::native_layer_norm", {x}), KernelClass::kNormalization);
  EXPECT_EQ(of("aten::clone", {x}), KernelClass::kCopy);
  EXPECT_EQ(of("aten::bernoulli_.float", {x}), KernelClass::kRandom);
  EXPECT_EQ(of("aten::zeros_like", {x}), KernelClass::kFill);
  EXPECT_EQ(kernel_class(t.graph, x.node), KernelClass::kFree);
  for (int i = 0; i < kKernelClassCount; ++i) {
    EXPECT_EQ(find_named<KernelClass>(to_string(static_cast<KernelClass>(i))), static_cast<KernelClass>(i));
  }
}

// 1 TFLOP/s, 1 GB/s, 10 us per kernel.
DeviceSpec simple() {
  DeviceSpec spec;
  spec.name = "simple";
  spec.bandwidth = 1e9;
  spec.matmul = {{c10::kFloat, 1e12}, {c10::kBFloat16, 4e12}};
  spec.classes[KernelClass::kOther].fixed = 1e-5;
  return spec;
}

struct Product {
  TestGraph t;
  TestGraph::Call mm;
  explicit Product(int64_t n, c10::ScalarType dtype = c10::kFloat) {
    t.dtype = dtype;
    const auto a = t.input("a", {n, n});
    mm = t.call("aten::mm", {a, a}, {{n, n}});
  }
};

TEST(StepTime, TheLongerOfComputingAndMoving) {
  const Product large(8192);
  const StepTime time = StepTime::of(large.t.graph, simple());
  const double flops = 2.0 * 8192 * 8192 * 8192;
  EXPECT_NEAR(time.seconds(), 1e-5 + flops / 1e12, 1e-9);
  EXPECT_EQ(time.of(large.mm.node).bound, TimeBound::kCompute);
  EXPECT_NEAR(time.flop_utilization(), flops / 1e12 / time.seconds(), 1e-9);
  const Product small(64);
  const StepTime short_time = StepTime::of(small.t.graph, simple());
  EXPECT_NEAR(short_time.seconds(), 1e-5 + 2 * 64 * 64 * 4 / 1e9, 1e-9);
  EXPECT_EQ(short_time.of(small.mm.node).bound, TimeBound::kMemory);
}

// A program on a GPU whose host has a link of 0.1 GB/s and memory of 0.5 GB/s: 1 MiB of float32 is copied to the
// device, multiplied there, copied back, and doubled on the host.
struct OverTheLink {
  TestGraph t;
  TestGraph::Call there, product, back, on_host;
  OverTheLink(bool non_blocking, c10::ScalarType dtype = c10::kFloat) {
    t.graph.metadata.device = c10::Device(c10::kCUDA, 0);
    t.dtype = dtype;
    const auto host = t.input("host", {512, 512});
    t.device = c10::Device(c10::kCUDA, 0);
    const auto copy = [&](const TestGraph::Call& from) {
      const Argument blocking = Argument::of_bool(non_blocking);
      return t.call("aten::_to_copy", {from, {}, {}, {}, {}, blocking}, {{512, 512}});
    };
    there = copy(host);
    product = t.call(dtype == c10::kChar ? "aten::_int_mm" : "aten::mm", {there, there}, {{512, 512}});
    t.device = c10::Device(c10::kCPU);
    back = copy(product);
    on_host = t.call("aten::add.Tensor", {back, back}, {{512, 512}});
  }
};
DeviceSpec with_host() {
  DeviceSpec spec = simple();
  spec.host_call = 1e-6;
  spec.host = HostSpec{.link = 1e8, .bandwidth = 5e8};
  return spec;
}

TEST(StepTime, CopiesOverTheHostsLink) {
  const double bytes = 512 * 512 * 4, copied = 1e-5 + bytes / 1e8;
  for (const bool non_blocking : {false, true}) {
    const OverTheLink program(non_blocking);
    const StepTime time = StepTime::of(program.t.graph, with_host());
    const NodeTime &there = time.of(program.there.node), &product = time.of(program.product.node);
    const NodeTime &back = time.of(program.back.node), &on_host = time.of(program.on_host.node);
    EXPECT_EQ(there.bound, TimeBound::kLink);
    EXPECT_NEAR(there.seconds, copied, 1e-12);
    // In order with kernels. The host issues the product after a copy that blocks.
    EXPECT_NEAR(product.start, there.start + copied + (non_blocking ? 0 : 1e-6), 1e-12);
    EXPECT_NEAR(back.seconds, copied, 1e-12);
    EXPECT_EQ(product.issued < there.start + copied, non_blocking) << "the host waits for a copy that blocks";
    EXPECT_EQ(on_host.bound, TimeBound::kHost);
    EXPECT_NEAR(on_host.seconds, 2 * bytes / 5e8, 1e-12);  // reads one tensor, writes one
    EXPECT_NEAR(time.seconds(KernelClass::kCopy), 2 * copied, 1e-12);
    EXPECT_EQ(time.calls(), 3) << "the host's addition launches no kernel";
    EXPECT_TRUE(time.uncovered().empty());
    if (!non_blocking) EXPECT_NEAR(time.seconds(), back.start + copied + on_host.seconds, 1e-12);
  }
}

TEST(StepTime, ListsCallsWithoutALink) {
  const OverTheLink program(false);
  const StepTime time = StepTime::of(program.t.graph, simple());
  ASSERT_EQ(time.uncovered().size(), 2U);
  EXPECT_EQ(time.uncovered()[0].op, "aten::_to_copy");
  EXPECT_EQ(time.uncovered()[0].count, 2);
  EXPECT_EQ(time.uncovered()[1].op, "aten::add.Tensor");
  const DeviceSpec spec = simple();
  const Profile costs = profile(program.t.graph, {.spec = &spec});
  EXPECT_THAT(to_text(costs), HasSubstr("lower bound: part of the time of 3 calls of 2 operators is unknown"));
  EXPECT_EQ(to_json(costs)["time"]["uncovered"][0]["op"], "aten::_to_copy");
}

// An estimate for another device than the graph's own: what is on the CPU counts as on the device.
TEST(StepTime, AProgramOfTheCpuHasNoHost) {
  TestGraph t;
  const auto x = t.input("x", {512, 512});
  const auto copy = t.call("aten::_to_copy", {x}, {{512, 512}});
  EXPECT_NE(StepTime::of(t.graph, with_host()).of(copy.node).bound, TimeBound::kHost);
}

TEST(StepTime, ProductsOfInt8AtTheirRate) {
  DeviceSpec spec = with_host();
  spec.matmul[c10::kChar] = 8e12;
  const OverTheLink program(false, c10::kChar);
  EXPECT_NEAR(StepTime::of(program.t.graph, spec).of(program.product.node).compute, 2.0 * 512 * 512 * 512 / 8e12,
              1e-12);
}

// An operator without a formula makes the FLOPs, the time and the utilization lower bounds.
TEST(StepTime, MarksEveryFigureThatLacksAFormula) {
  TestGraph t;
  const auto x = t.input("x", {8, 8});
  t.call("aten::linalg_matrix_exp", {x}, {{8, 8}});
  const DeviceSpec spec = simple();
  const Profile costs = profile(t.graph, {.spec = &spec});
  ASSERT_EQ(costs.time()->uncovered().size(), 1U);
  EXPECT_EQ(costs.time()->uncovered()[0].op, "aten::linalg_matrix_exp");
  EXPECT_THAT(to_text(costs), HasSubstr("lower bound: FLOPs of 1 call of 1 operator are unknown"));
  EXPECT_THAT(to_text(costs), HasSubstr("lower bound: part of the time of 1 call of 1 operator is unknown"));
}

// 10 us, plus 2 * 8 * 8 * 4 bytes at 1 GB/s: half a microsecond.
TEST(StepTime, ATinyKernelIsBoundByWhatEveryCallTakes) {
  const Product tiny(8);
  EXPECT_EQ(StepTime::of(tiny.t.graph, simple()).of(tiny.mm.node).bound, TimeBound::kFixed);
}

TEST(StepTime, AnotherDtypeByItsPeakOrItsScale) {
  const Product product(8192, c10::kBFloat16);
  const double flops = 2.0 * 8192 * 8192 * 8192;
  EXPECT_NEAR(StepTime::of(product.t.graph, simple()).seconds(), 1e-5 + flops / 4e12, 1e-9);
  DeviceSpec measured = simple();
  measured.classes[KernelClass::kMatmul] = {.compute = {{1, 5e11}}};
  EXPECT_NEAR(StepTime::of(product.t.graph, measured).seconds(), flops / 2e12, 1e-9);
  measured.classes[KernelClass::kMatmul].scale[c10::kBFloat16] = 8;
  EXPECT_NEAR(StepTime::of(product.t.graph, measured).seconds(), flops / 4e12, 1e-9);
}

TEST(StepTime, AGroupedWeightGradientComputesWhatItsGroupsNeed) {
  TestGraph t;
  const auto gradient = t.input("gradient", {2, 8, 16, 16});
  const auto x = t.input("x", {2, 8, 16, 16});
  const auto weight = t.parameter("weight", {8, 1, 3, 3});
  const auto backward = [&](bool input, bool of_weight) {
    const std::vector<Argument> mask{Argument::of_bool(input), Argument::of_bool(of_weight), Argument::of_bool(false)};
    return t.call("aten::convolution_backward",
                  {gradient,
                   x,
                   weight,
                   {},
                   t.ints({1, 1}),
                   t.ints({1, 1}),
                   t.ints({1, 1}),
                   Argument::of_bool(false),
                   t.ints({0, 0}),
                   Argument::of_int(8),
                   t.graph.make_list(mask)},
                  {{2, 8, 16, 16}, {8, 1, 3, 3}});
  };
  const auto both = backward(true, true), one = backward(true, false);
  const double forward = 2.0 * 2 * 8 * 16 * 16 * 3 * 3;
  const StepTime time = StepTime::of(t.graph, simple());
  EXPECT_NEAR(time.of(both.node).compute, 2 * forward / 1e12, 1e-15);
  EXPECT_NEAR(time.of(one.node).compute, forward / 1e12, 1e-15);
  EXPECT_EQ(Flops::of(t.graph).of(both.node).matmul, static_cast<int64_t>(forward) * 9) << "as PyTorch counts";
}

TEST(StepTime, AClassWithoutAnEntryIsTheOneItIsACaseOf) {
  TestGraph t;
  const auto x = t.input("x", {1 << 20});
  const auto in_place = t.view("aten::relu_", {x}, x.value(), {1 << 20});
  DeviceSpec spec = simple();
  spec.classes[KernelClass::kPointwise].fixed = 1.0;
  EXPECT_GT(StepTime::of(t.graph, spec).of(in_place.node).seconds, 1.0);
  spec.classes[KernelClass::kPointwiseInPlace].fixed = 2.0;
  EXPECT_GT(StepTime::of(t.graph, spec).of(in_place.node).seconds, 2.0);
  EXPECT_LT(StepTime::of(t.graph, simple()).of(in_place.node).seconds, 0.1) << "of kOther";
}

TEST(StepTime, AStepOfShortKernelsWaitsForTheHost) {
  TestGraph t;
  auto x = t.input("x", {4});
  for (int i = 0; i < 10; ++i) x = t.call("aten::relu", {x}, {{4}});
  DeviceSpec spec = simple();
  spec.host_call = 5e-5;
  const StepTime time = StepTime::of(t.graph, spec);
  // The tenth call is issued at 500 us and takes 10 us + 32 ns.
  EXPECT_NEAR(time.seconds(), 5e-4 + 1e-5 + 3.2e-8, 1e-9);
  EXPECT_NEAR(time.busy(), 10 * (1e-5 + 3.2e-8), 1e-9);
  EXPECT_EQ(time.calls(), 10);
  spec.host_call = 0;
  EXPECT_NEAR(StepTime::of(t.graph, spec).seconds(), 10 * (1e-5 + 3.2e-8), 1e-9);
}

TEST(StepTime, WhatWasMeasuredComesFirst) {
  const Product product(64);
  MeasuredCalls calls;
  calls.set(call_signature(product.t.graph, product.mm.node), {.scratch = 100, .seconds = 0.25});
  DeviceSpec cpu = simple();
  cpu.device = c10::kCPU;
  EXPECT_EQ(StepTime::of(product.t.graph, cpu, &calls).seconds(), 0.25);
  EXPECT_LT(StepTime::of(product.t.graph, simple(), &calls).seconds(), 0.01) << "must not be used for another device";
  EXPECT_EQ(profile(product.t.graph, {.measured = &calls}).peak_with_scratch.bytes, 2 * 64 * 64 * 4 + 100);
}

TEST(DeviceSpec, RatesAreInterpolatedInTheLogarithms) {
  DeviceSpec spec = simple();
  spec.classes[KernelClass::kCopy].memory = {{100, 1e6}, {10000, 1e8}};
  EXPECT_NEAR(spec.memory_rate(KernelClass::kCopy, 1000), 1e7, 1);
  EXPECT_NEAR(spec.memory_rate(KernelClass::kCopy, 1), 1e6, 1);
  EXPECT_NEAR(spec.memory_rate(KernelClass::kCopy, 1e9), 1e8, 1);
}

TEST(DeviceSpec, EveryKnownDeviceReadsBackAndNamesItsSources) {
  ASSERT_THAT(DeviceSpec::names(),
              ::testing::IsSupersetOf({"a100", "h100", "h200", "b200", "v100", "l4", "rtx4090", "mi300x", "cpu"}));
  for (const std::string& name : DeviceSpec::names()) {
    const DeviceSpec spec = DeviceSpec::named(name);
    EXPECT_EQ(spec.name, name);
    EXPECT_GT(spec.memory, 0) << name;
    EXPECT_FALSE(spec.sources.empty()) << name;
    EXPECT_EQ(to_json(device_spec_from_json(to_json(spec), name)), to_json(spec)) << name;
    if (spec.sources.contains("*")) continue;
    for (const char* figure : {"memory_bytes", "bandwidth", "matmul", "vector", "transcendental", "host_call"}) {
      EXPECT_TRUE(spec.sources.contains(figure)) << name << ": " << figure;
    }
    ASSERT_TRUE(spec.host) << name;
    EXPECT_TRUE(spec.sources.contains("host.link")) << name;
    EXPECT_EQ(spec.host->bandwidth > 0, spec.sources.contains("host.bandwidth")) << name;
    EXPECT_EQ(spec.host->memory > 0, spec.sources.contains("host.memory_bytes")) << name;
  }
  EXPECT_THROW(DeviceSpec::named("h1000"), Error);
}

TEST(DeviceSpec, FilesGoThereAndBackAndNonsenseIsRefused) {
  const std::string path = ::testing::TempDir() + "/spec.json";
  simple().write_file(path);
  EXPECT_EQ(to_json(DeviceSpec::read_file(path)), to_json(simple()));
  const auto refused = [&](const std::string& text, const std::string& why) {
    write_file(path, text);
    try {
      DeviceSpec::read_file(path);
      ADD_FAILURE() << text;
    } catch (const ParseError& error) {
      EXPECT_THAT(error.what(), HasSubstr(why)) << text;
      EXPECT_THAT(error.what(), HasSubstr("spec.json"));
    }
  };
  refused("{", "");
  refused("[]", "the document is not an object but a list");
  refused(R"({"version": 2})", "version");
  refused(R"({"version": 1, "device": "gpu"})", "'gpu'");
  refused(R"({"version": 1})", "bandwidth");
  refused(R"({"version": 1, "bandwidth": -1})", "bandwidth");
  refused(R"({"version": 1, "bandwidth": 1})", "matmul");
  refused(R"({"version": 1, "bandwidth": 1, "matmul": {}})", "float32");
  refused(R"({"version": 1, "bandwidth": 1, "matmul": {"float32": 1}, "classes": {"x": {}}})",
          "classes.x is not a kernel class");
  refused(R"({"version": 1, "bandwidth": 1, "matmul": {"float32": 1, "fp8": 1}})", "matmul.fp8");
  refused(R"({"version": 1, "bandwidth": 1, "matmul": {"float32": 1}, "host": {"link": 0}})",
          "host.link must be positive");
  refused(R"({"version": 1, "bandwidth": 1, "matmul": {"float32": 1}, "classes": {"copy": {"scale": {"bf16": 2}}}})",
          "copy.scale.bf16");
  refused(
      R"({"version": 1, "bandwidth": 1, "matmul": {"float32": 1}, "classes": {"copy": {"memory": [[2, 1], [1, 1]]}}})",
      "classes.copy.memory must be in ascending order");
  refused(R"({"version": 1, "base": "h100", "memory": 80})",
          "memory is not a key of a device spec (did you mean memory_bytes?)");
  refused(R"({"version": 1, "base": "h100", "memory_bytes": 80})", "memory_bytes must be a number of bytes from 1 MiB");
  refused(R"({"version": 1, "base": "h100", "memory_bytes": 1e30})", "memory_bytes must be a number of bytes");
  refused(R"({"version": 1, "base": "h100", "matmul": {"float16": 0}})", "matmul.float16 must be positive");
  refused(R"({"version": 1, "base": "h100", "vector": 1e-300})", "vector must be positive: a rate from 1 to 1e30");
  refused(R"({"version": 1, "base": "h100", "host_call": 1e300})", "host_call must be at most 1e6 seconds");
  refused(R"({"version": 1, "base": "h100", "gpu": {"moved": 1e-9}})",
          "gpu.moved must be positive: a factor from 1e-6");
  refused(R"({"version": 1, "base": "h100", "gpu": {"streams": 1}})", "gpu.streams is not a key of gpu (did you mean");
  refused(R"({"version": 1, "base": "h100", "host": {"latency": 1}})", "host.latency is not a key of host; expected");
  refused(R"({"version": 1, "base": "cpu", "classes": {"copy": {"fix": 1}}})", "classes.copy.fix is not a key");
  std::filesystem::remove(path);
  EXPECT_THROW(DeviceSpec::read_file(path), FileError);
}

TEST(Calibrate, GivesASpecThatReadsBack) {
  // A short run measures the first kernels only; the other classes fall back on them.
  const DeviceSpec spec = calibrate({.seconds = 0.2});
  EXPECT_GT(spec.matmul.at(c10::kFloat), 1e6);
  EXPECT_EQ(spec.device, c10::kCPU);
  EXPECT_FALSE(spec.classes.at(KernelClass::kMatmul).compute.empty());
  EXPECT_GT(spec.bandwidth, 1e6);
  EXPECT_EQ(to_json(device_spec_from_json(to_json(spec), "cpu")), to_json(spec));
}

}  // namespace
}  // namespace shadowgraph
