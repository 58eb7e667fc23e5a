// GPU kernel time models, as stated in docs/time.md: hand-computed sums. bench/published compares them with published
// measurements.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "profiler/time/kernel_work.h"
#include "shadowgraph/profile/operator_costs.h"
#include "shadowgraph/profile/step_time.h"
#include "tests/profiler/test_graph.h"

namespace shadowgraph {
namespace {

using shadowgraph::testing::TestGraph;

// 100 multiprocessors with 1e10 FLOP/s each in float32, and 1e12 B/s of memory bandwidth, of which matrix products
// reach 85 %.
DeviceSpec hundred() {
  DeviceSpec spec;
  spec.bandwidth = 2e12;
  spec.matmul = {{c10::kFloat, 2e12}, {c10::kHalf, 16e12}};
  spec.gpu =
      GpuSpec{.multiprocessors = 100, .stream = 1e12, .matmul = 0.5, .attention = 0.5, .attention_backward = 0.25};
  return spec;
}

double product(double rows, double columns, double inner, double batch = 1) {
  return gpu_product(
             hundred(),
             {.batch = batch, .rows = rows, .columns = columns, .inner = inner, .result_bytes = 4 * rows * columns},
             c10::kFloat)
      .compute;
}

TEST(GpuProduct, OneTileMoreThanAWaveIsAWaveMore) {
  const double tile = 2.0 * 128 * 256 * 4096 / 1e10 + 3e-6;
  EXPECT_NEAR(product(100.0 * 128, 256, 4096), tile, 1e-9);
  // Smaller tiles are less efficient, but they fill the second wave.
  const double beyond = product(101.0 * 128, 256, 4096);
  EXPECT_GT(beyond, 1.01 * tile);
  EXPECT_LT(beyond, 2 * tile);
  EXPECT_NEAR(product(128, 256, 4096, 100), tile, 1e-9) << "the same in a batch";
}

TEST(GpuProduct, AFewTilesAreCutAlongWhatIsSummed) {
  const double whole = 2.0 * 128 * 256 * 16384 / 1e10 + 3e-6;
  const double parts = 2.0 * 128 * 256 * 1024 / 1e10 + 3e-6 + 16 * 128 * 256 * 8 / 0.85e12;
  EXPECT_LE(product(128, 256, 16384), parts);
  EXPECT_LT(product(128, 256, 16384), whole / 10);
}

TEST(GpuProduct, HalfOfWhatIsWrittenIsNotHidden) {
  const ProductSeconds seconds = gpu_product(
      hundred(), {.batch = 1, .rows = 1000, .columns = 1000, .inner = 64, .result_bytes = 4e6}, c10::kFloat);
  EXPECT_NEAR(seconds.written_after, 2e6 / 0.85e12, 1e-12);
}

// Measurements in the FlashAttention-2 paper: A100, head dimension 128, forward. It counts half the FLOPs for causal.
TEST(GpuAttention, ReachesWhatItsPaperSays) {
  const auto reached = [](int64_t length) {
    return 0.72 * 312 * 0.5 / attention_work({.queries = length, .keys = length, .causal = true});
  };
  EXPECT_NEAR(reached(512), 99, 15);
  EXPECT_NEAR(reached(2048), 171, 15);
  EXPECT_NEAR(reached(16384), 200, 25);
  EXPECT_LT(attention_work({.queries = 8192, .keys = 8192, .causal = true}),
            0.6 * attention_work({.queries = 8192, .keys = 8192}));
  EXPECT_EQ(attention_work({.queries = 1, .keys = 8192, .causal = true}), attention_work({.queries = 1, .keys = 8192}))
      << "a single query attends to all keys";
}

TEST(GpuKernels, ShareOneLawOnEveryDevice) {
  TestGraph t;
  t.dtype = c10::kHalf;
  const auto a = t.input("a", {12800, 4096});
  const auto b = t.input("b", {4096, 256});
  const auto mm = t.call("aten::mm", {a, b}, {{12800, 256}});
  DeviceSpec spec = hundred();
  const StepTime time = StepTime::of(t.graph, spec);
  const double tile = 2.0 * 128 * 256 * 4096 / 8e10 + 3e-6;
  EXPECT_NEAR(time.of(mm.node).seconds, 2e-6 + tile + 0.5 * 2 * 12800 * 256 / 0.85e12, 1e-9);
  spec.gpu->sustained = 0.5;
  EXPECT_NEAR(StepTime::of(t.graph, spec).of(mm.node).compute, 2 * (tile - 3e-6) + 3e-6, 1e-9);
  spec.classes[KernelClass::kMatmul].compute = {{1, 1e12}};
  EXPECT_NEAR(StepTime::of(t.graph, spec).of(mm.node).compute, 2.0 * 12800 * 256 * 4096 / 8e12, 1e-9)
      << "measurements take precedence over the model";
}

TEST(GpuKernels, HopperTakesTf32AlongWhatIsSummedAlone) {
  TestGraph t;
  const auto a = t.input("a", {12800, 4096});
  const auto b = t.input("b", {4096, 256});
  const auto weight = t.input("weight", {256, 4096});
  const auto turned = t.call("aten::t", {weight}, {});
  const std::vector<int64_t> sizes = {4096, 256}, strides = {1, 4096};
  const StorageId storage = t.graph.value(weight.value()).storage;
  const ValueId along = t.graph.add_tensor_result(
      turned.node, {.dtype = c10::kFloat, .sizes = sizes, .strides = strides, .storage = storage, .device = t.device});
  const auto slow = t.call("aten::mm", {a, b}, {{12800, 256}});
  const auto fast = t.call("aten::mm", {a, Argument::of_value(along)}, {{12800, 256}});
  const auto added = t.call("aten::addmm", {b, a, Argument::of_value(along)}, {{12800, 256}});
  DeviceSpec spec = hundred();
  const auto seconds = [&](const TestGraph::Call& call) { return StepTime::of(t.graph, spec).of(call.node).compute; };
  spec.vector = 1e12;  // float32 products use TF32
  EXPECT_EQ(seconds(slow), seconds(fast)) << "equal on other devices";
  spec.architecture = "sm_90";
  EXPECT_NEAR(seconds(slow) - 1.5e-6, (seconds(fast) - 1.5e-6) / 0.6, 1e-9);
  EXPECT_NEAR(seconds(added), seconds(fast), 1e-5) << "the layout of the addend does not matter";
  spec.vector = 2e12;
  EXPECT_EQ(seconds(slow), seconds(fast)) << "float32 without TF32";
  EXPECT_NEAR(seconds(slow), 2.0 * 128 * 256 * 4096 / (0.82 * 2e10) + 1.5e-6, 1e-9) << "not supported by tensor cores";
}

TEST(GpuKernels, AFilledCopyIsMovedTwice) {
  TestGraph t;
  const auto scores = t.input("scores", {8, 1024, 1024});
  const auto mask = t.input("mask", {8, 1024, 1024});
  const auto in_place = t.call("aten::masked_fill_.Scalar", {scores, mask, Argument::of_int(0)}, {{8, 1024, 1024}});
  const auto copied = t.call("aten::masked_fill.Scalar", {scores, mask, Argument::of_int(0)}, {{8, 1024, 1024}});
  const StepTime time = StepTime::of(t.graph, hundred());
  const double bytes = 4.0 * 8 * 1024 * 1024;
  EXPECT_NEAR(time.of(copied.node).memory, 5 * bytes / 0.85e12, 1e-9) << "read, written, read, masked, written";
  EXPECT_LT(time.of(in_place.node).memory, time.of(copied.node).memory);
}

TEST(GpuKernels, WhatIsMultipliedByZeroIsNotRead) {
  TestGraph t;
  const auto room = t.input("room", {8, 64, 64});
  const auto a = t.input("a", {8, 64, 16});
  const auto b = t.input("b", {8, 16, 64});
  const auto read = [&](int64_t beta) {
    const auto call = t.call("aten::baddbmm", {room, a, b, Argument::of_int(beta), Argument::of_int(1)}, {{8, 64, 64}});
    return Traffic::of(t.graph).of(call.node).read;
  };
  EXPECT_EQ(read(1) - read(0), 4 * 8 * 64 * 64);
  // `beta` of another operator is not a scaling factor.
  const auto target = t.input("target", {8, 64, 64});
  const auto loss =
      t.call("aten::smooth_l1_loss", {room, target, Argument::of_int(0), Argument::of_float(0)}, {{8, 64, 64}});
  EXPECT_EQ(Traffic::of(t.graph).of(loss.node).read, 2 * 4 * 8 * 64 * 64);
}

TEST(GpuAttention, IsTimedByItsKernel) {
  EXPECT_EQ(attention_kernel("_scaled_dot_product_flash_attention", KernelClass::kAttention, c10::kBFloat16), 1);
  EXPECT_LT(attention_kernel("_scaled_dot_product_cudnn_attention", KernelClass::kAttention, c10::kBFloat16), 0.6);
  EXPECT_EQ(attention_kernel("_scaled_dot_product_efficient_attention", KernelClass::kAttention, c10::kBFloat16), 2);
  EXPECT_LT(attention_kernel("_scaled_dot_product_efficient_attention", KernelClass::kAttention, c10::kFloat), 1)
      << "scaled by the fraction of peak reached with 16 bits";
}

TEST(GpuProduct, RowsBetweenVectorsAreSlow) {
  DeviceSpec spec = hundred();
  spec.architecture = "sm_90";
  const auto compute = [&](bool whole_vectors, c10::ScalarType dtype) {
    return gpu_product(spec, {.batch = 1, .rows = 12800, .columns = 256, .inner = 4096, .whole_vectors = whole_vectors},
                       dtype)
        .compute;
  };
  EXPECT_NEAR(compute(false, c10::kHalf) - 1.5e-6, (compute(true, c10::kHalf) - 1.5e-6) / 0.35, 1e-9);
  EXPECT_EQ(compute(false, c10::kFloat), compute(true, c10::kFloat));
}

TEST(GpuProduct, OfWholeVectorsIsReadOffTheStrides) {
  const auto seconds = [](int64_t inner) {
    TestGraph t;
    t.dtype = c10::kHalf;
    const auto mm = t.call("aten::mm", {t.input("a", {4096, inner}), t.input("b", {inner, 2048})}, {{4096, 2048}});
    return StepTime::of(t.graph, DeviceSpec::named("h100")).of(mm.node).compute;
  };
  EXPECT_GT(seconds(4100), 2 * seconds(4096));
}

TEST(GpuProduct, IsOfTf32WhereTheGraphSaysSo) {
  TestGraph t;
  const auto mm = t.call("aten::mm", {t.input("a", {4096, 4096}), t.input("b", {4096, 4096})}, {{4096, 4096}});
  const DeviceSpec h100 = DeviceSpec::named("h100");
  const double whole = StepTime::of(t.graph, h100).of(mm.node).compute;
  t.graph.metadata.set("float32_matmul", "tf32");
  EXPECT_LT(StepTime::of(t.graph, h100).of(mm.node).compute, whole / 6);
}

TEST(GpuSpec, BothKindsOfFloat8AreAlike) {
  const DeviceSpec h100 = DeviceSpec::named("h100");
  EXPECT_EQ(h100.peak(KernelClass::kMatmul, c10::kFloat8_e5m2), h100.peak(KernelClass::kMatmul, c10::kFloat8_e4m3fn));
  EXPECT_GT(h100.peak(KernelClass::kMatmul, c10::kFloat8_e5m2), 1.9e15);
}

TEST(GpuSpec, ABaseIsChangedInPart) {
  const auto read = [](const char* text) { return device_spec_from_json(nlohmann::json::parse(text), "mine"); };
  const DeviceSpec slower = read(R"({"version": 1, "base": "h100", "gpu": {"sustained": 0.5}})");
  EXPECT_EQ(slower.gpu->sustained, 0.5);
  EXPECT_EQ(slower.gpu->stream, DeviceSpec::named("h100").gpu->stream);
  EXPECT_EQ(slower.memory, DeviceSpec::named("h100").memory);
  EXPECT_THROW(read(R"({"version": 1, "base": "h1000"})"), Error);
  EXPECT_THROW(read(R"({"version": 1, "base": "h100", "gpu": {"sustained": 0}})"), ParseError);
  EXPECT_THROW(read(R"({"version": 1, "base": "h100", "gpu": {"multiprocessors": 0}})"), ParseError);
  EXPECT_THROW(read(R"({"version": 1, "bandwidth": 1, "matmul": {"float32": 1}, "gpu": {"multiprocessors": 1}})"),
               ParseError);
}

}  // namespace
}  // namespace shadowgraph
