// Scratch memory of kernels: rules for the CPU compared with libtorch's allocations on this machine, and hand-computed
// sums for CUDA.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/optim/adamw.h>

#include <filesystem>

#include "ir/operators/operator_name.h"
#include "models/program.h"
#include "models/registry.h"
#include "profiler/cost/scratch_rules.h"
#include "shadowgraph/capture/capture.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/profile/measure.h"
#include "shadowgraph/profile/operator_costs.h"
#include "shadowgraph/profile/profile.h"
#include "tests/profiler/test_graph.h"

namespace shadowgraph {
namespace {

using shadowgraph::testing::TestGraph;
using ::testing::HasSubstr;

Graph step_of(const std::string& name, c10::ScalarType dtype = c10::kFloat) {
  const FakeTensorMode mode({.device = at::kCPU});
  const auto model = models::build(name, {.dtype = dtype, .tiny = true});
  torch::optim::AdamW optimizer(model.module->parameters(), torch::optim::AdamWOptions(1e-3));
  return capture_training_step(models::program_of(model, &optimizer)).graph;
}

class ScratchOf : public ::testing::TestWithParam<std::string> {};

// Calls without a rule are measured. If there is a rule, or a call is declared to need none, the measurement must
// agree. Scalars that calls convert to tensors do not count.
TEST_P(ScratchOf, ARuleIsWhatTheKernelTakes) {
  for (const c10::ScalarType dtype : {c10::kFloat, c10::kBFloat16}) {
    const Graph graph = step_of(GetParam(), dtype);
    MeasuredCalls calls;
    const MeasureReport report = measure_calls(graph, calls, {.repeats = 0});
    EXPECT_GT(report.measured, 20u);
    const Scratch rules = Scratch::of(graph);
    const Scratch measured = Scratch::of(graph, &calls);
    std::set<std::string> told;
    for (const NodeId node : graph.nodes()) {
      const NodeScratch& rule = rules.of(node);
      const NodeScratch& real = measured.of(node);
      if (real.source != ScratchSource::kMeasured || rule.source == ScratchSource::kUnknown) continue;
      const std::string& op = graph.target(node).name();
      if (std::abs(real.bytes - rule.bytes) > 16 && told.insert(op).second) {
        ADD_FAILURE() << call_signature(graph, node) << " takes " << real.bytes << " bytes, the rule says "
                      << rule.bytes;
      }
    }
    const auto unknown_calls = [](const Scratch& scratch) {
      int64_t calls = 0;
      for (const UncoveredOperator& row : scratch.unknown()) calls += row.count;
      return calls;
    };
    EXPECT_LE(unknown_calls(measured), unknown_calls(rules));
  }
}
INSTANTIATE_TEST_SUITE_P(Zoo, ScratchOf,
                         ::testing::Values("resnet18", "unet", "gpt2", "bert_base", "vit_b_16", "lstm_lm"),
                         [](const auto& name) { return name.param; });

TEST(Scratch, WhatIsNotKnownIsListedAndCounted) {
  TestGraph t;
  const auto x = t.input("x", {4, 4});
  t.call("aten::relu", {x}, {{4, 4}});
  t.call("aten::linalg_qr", {x}, {{4, 4}, {4, 4}});
  t.call("aten::linalg_qr", {x}, {{4, 4}, {4, 4}});
  const Scratch scratch = Scratch::of(t.graph);
  EXPECT_EQ(scratch.unknown(), (std::vector<UncoveredOperator>{{"aten::linalg_qr", 2}}));
  EXPECT_THAT(to_text(profile(t.graph)), HasSubstr("lower bound: scratch memory of 2 calls of 1 operator is unknown"));
}

TEST(Scratch, OperandsOfAnotherDtypeAreConvertedOnTheCpu) {
  TestGraph t;
  const auto x = t.input("x", {100});
  t.dtype = c10::kHalf;
  const auto y = t.input("y", {100});
  t.dtype = c10::kFloat;
  const auto sum = t.call("aten::add.Tensor", {x, y, Argument::of_int(1)}, {{100}});
  const NodeScratch scratch = Scratch::of(t.graph).of(sum.node);
  EXPECT_EQ(scratch.bytes, 400);
  MeasuredCalls calls;
  measure_calls(t.graph, calls);
  EXPECT_NEAR(static_cast<double>(calls.find(call_signature(t.graph, sum.node))->scratch), 400, 64);
}

int64_t cuda_rule(const std::string& op, std::vector<Operand> arguments) {
  for (const ScratchRow& row : scratch_rows(c10::kCUDA)) {
    bool named = false;
    for_each_name(row.names, [&](std::string_view name) { named |= full_name(name) == op; });
    if (named) return row.bytes(OperandShapes{.arguments = arguments}).value_or(-1);
  }
  ADD_FAILURE() << "no row " << op;
  return -2;
}

TEST(Scratch, CudaRulesByHand) {
  const std::vector<int64_t> q{2, 16, 1000, 64}, k{2, 4, 1000, 64};
  const auto tensor = [](const std::vector<int64_t>& sizes, int64_t bytes = 2) {
    return Operand::of_tensor(sizes, bytes);
  };
  // 1000 rows are padded to 1024: softmax sums take 4*2*16*1024, dq 4*2*1024*16*64.
  const int64_t dq = 4 * 2 * 16 * 1024 + 4 * 2 * 1024 * 16 * 64;
  EXPECT_EQ(
      cuda_rule("aten::_scaled_dot_product_flash_attention_backward", {tensor(q), tensor(q), tensor(q), tensor(q)}),
      dq);
  // Four key heads for sixteen query heads: dk and dv have sixteen, 2*2*1000*16*64*2.
  EXPECT_EQ(
      cuda_rule("aten::_scaled_dot_product_flash_attention_backward", {tensor(q), tensor(q), tensor(k), tensor(k)}),
      dq + 2 * 2 * 1000 * 16 * 64 * 2);
  // There are enough row blocks for all multiprocessors: 2*16*16 = 512 of 264.
  EXPECT_EQ(
      cuda_rule("aten::_scaled_dot_product_flash_attention", {tensor(q), tensor(q), tensor(q), Operand::of_number(0)}),
      0);
  // One token with eight heads against 4096 keys: split along the keys.
  const std::vector<int64_t> one{1, 8, 1, 64}, keys{1, 8, 4096, 64};
  EXPECT_GT(cuda_rule("aten::_scaled_dot_product_flash_attention",
                      {tensor(one), tensor(keys), tensor(keys), Operand::of_number(0)}),
            0);
  // For few indices, embedding's backward needs no scratch; with 8192 it sorts: 5 arrays of int64.
  const std::vector<int64_t> gradient{100, 8}, few{100}, wide{8192, 8}, many{8192};
  EXPECT_EQ(
      cuda_rule("aten::embedding_dense_backward", {tensor(gradient, 4), tensor(few, 8), Operand::of_number(1000)}), 0);
  const int64_t pieces = 819 + 1000;
  EXPECT_EQ(cuda_rule("aten::embedding_dense_backward", {tensor(wide, 4), tensor(many, 8), Operand::of_number(1000)}),
            std::max<int64_t>(5 * 8192 * 8, (3 * 8192 + 2000 + pieces) * 8 + pieces * 8 * 4));
  // Norms of lists: one partial result per tensor for every 65536 elements of the largest tensor.
  const std::vector<int64_t> big{200000}, small{10};
  const std::vector<Shape> list{big, small};
  EXPECT_EQ(cuda_rule("aten::_foreach_norm.Scalar", {Operand::of_tensors(list, 2)}), 2 * 4 * 4);
  // FSDP2's copies keep int64 tables: 3 and 4 entries per tensor (one more for reductions), and one per block. Splits
  // of 1000 and 2000 floats take 4000 and 8000 bytes per chunk, in tiles of 2048 bytes: 2 + 4 blocks.
  const std::vector<int64_t> gathered{2, 3000}, splits{1000, 2000};
  const std::vector<Operand> split{tensor(gathered, 4), Operand::of_ints(splits), Operand::of_number(1)};
  for (const char* name : {"aten::split_with_sizes_copy.out", "fsdp::split_with_sizes_copy"}) {
    EXPECT_EQ(cuda_rule(name, split), 8 * (4 * 2 + 1 + 2 + 4));
  }
  // 8 x 19532 blocks are 37 times what 132 processors hold twice: 7 chunks per block, 6 tiles each.
  const std::vector<int64_t> large{8, 20'000'000}, parts{16'000'000, 4'000'000};
  EXPECT_EQ(
      cuda_rule("fsdp::split_with_sizes_copy", {tensor(large, 2), Operand::of_ints(parts), Operand::of_number(1)}),
      8 * (4 * 2 + 1 + 2605 + 652));
  // An eighth of 1000 rows of 64 floats takes 32000 bytes; of 10 floats it is 2, padded: 16 + 1 blocks. bfloat16
  // gradients are cast on the way; other casts use other kernels.
  const std::vector<int64_t> weight{1000, 64}, bias{10}, flat{64016};
  const std::vector<Shape> gradients{weight, bias};
  const auto cat = [&](int64_t from, int64_t to) {
    return cuda_rule("fsdp::chunk_cat", {Operand::of_tensors(gradients, from), Operand::of_number(0),
                                         Operand::of_number(8), tensor(flat, to)});
  };
  EXPECT_EQ(cat(2, 4), 8 * (6 * 2 + 2 + 16 + 1));
  EXPECT_EQ(cat(4, 4), 8 * (6 * 2 + 2 + 16 + 1));
  EXPECT_EQ(cat(4, 2), -1);
  EXPECT_EQ(cuda_rule("fsdp::all_gather_copy_in", {Operand::of_tensors(gradients, 4)}), 0);
  // 100000 rows of 64: at most 32768/2 blocks, 3125 of 32 rows; weight and bias.
  const std::vector<int64_t> rows{100000, 64}, normalized{64}, mask{1, 1, 1};
  EXPECT_EQ(
      cuda_rule(
          "aten::native_layer_norm_backward",
          {tensor(rows, 4), tensor(rows, 4), Operand::of_ints(normalized), {}, {}, {}, {}, Operand::of_ints(mask)}),
      2 * (3125 + 1) * 64 * 4);
  const std::vector<int64_t> bench{4096, 768};
  EXPECT_EQ(
      cuda_rule(
          "aten::native_layer_norm_backward",
          {tensor(bench, 4), tensor(bench, 4), Operand::of_ints(normalized), {}, {}, {}, {}, Operand::of_ints(mask)}),
      0);
}

TEST(Scratch, CudaRulesOfAttentionByCudnnAndOfPairs) {
  const std::vector<int64_t> q{2, 16, 1000, 64}, k{2, 4, 1000, 64};
  const auto tensor = [](const std::vector<int64_t>& sizes) { return Operand::of_tensor(sizes, 2); };
  const std::string attention = "aten::_scaled_dot_product_cudnn_attention";
  EXPECT_EQ(cuda_rule(attention.c_str(), {tensor(q), tensor(q), tensor(q)}), 0);
  // dq in float and one sum per row; then dk and dv with sixteen heads instead of four.
  const int64_t own = 4 * 2 * 16 * 1000 * (64 + 1);
  EXPECT_EQ(cuda_rule((attention + "_backward").c_str(), {tensor(q), tensor(q), tensor(q), tensor(q)}), own);
  EXPECT_EQ(cuda_rule((attention + "_backward").c_str(), {tensor(q), tensor(q), tensor(k), tensor(k)}),
            own + 2 * 2 * 16 * 1000 * (64 + 64));
  // A million values use 123 blocks, as in a sum; each keeps a float and its index.
  const std::vector<int64_t> wide{4, 1000000};
  EXPECT_EQ(cuda_rule("aten::max.dim", {Operand::of_tensor(wide, 4), Operand::of_number(-1)}), 16 * 4 * 123 + 4 * 4);
  // A mask is converted to indices, whose number depends on data.
  const std::vector<int64_t> places{7};
  const std::vector<Shape> list{places};
  EXPECT_EQ(cuda_rule("aten::index", {tensor(q), Operand::of_tensors(list, 8)}), 0);
  EXPECT_EQ(cuda_rule("aten::index", {tensor(q), Operand::of_tensors(list, 1)}), -1);
}

// Reduced elements are contiguous, or one row apart: Reduce.cuh splits the two cases into blocks differently.
TEST(Scratch, CudaReductionsOverTheFirstAndTheLastDimension) {
  const std::vector<int64_t> tall{4096, 1024}, wide{4, 1000000}, first{0}, last{-1};
  // 32 x 4 threads compute 4 sums each over 1024 values: 64 blocks of 16. Each block has 32 x 4 partial results per
  // sum, and each of 1024 / 4 / 32 = 8 groups of sums has a semaphore.
  EXPECT_EQ(cuda_rule("aten::sum.dim_IntList", {Operand::of_tensor(tall, 4), Operand::of_ints(first)}),
            4 * 1024 * 64 * (32 * 4) + 4 * 8);
  // 128 x 4 threads compute one sum, 1954 of a million values each: 123 blocks of 16 values.
  EXPECT_EQ(cuda_rule("aten::sum.dim_IntList", {Operand::of_tensor(wide, 4), Operand::of_ints(last)}),
            4 * 4 * 123 + 4 * 4);
}

TEST(MeasuredCalls, FilesGoThereAndBackForThisMachineAlone) {
  TestGraph t;
  const auto x = t.input("x", {8, 8});
  const auto y = t.call("aten::mm", {x, x}, {{8, 8}});
  MeasuredCalls calls;
  const MeasureReport report = measure_calls(t.graph, calls);
  EXPECT_EQ(report.measured, 1u);
  EXPECT_EQ(measure_calls(t.graph, calls).known, 1u);
  const std::string path = ::testing::TempDir() + "/calls/of/this.json";
  calls.write_file(path);
  const MeasuredCalls again = MeasuredCalls::read_file(path);
  ASSERT_NE(again.find(call_signature(t.graph, y.node)), nullptr);
  EXPECT_GT(again.find(call_signature(t.graph, y.node))->seconds, 0);
  std::string text = read_file(path);
  text.replace(text.find("libtorch"), 8, "elsewhere");
  write_file(path, text);
  EXPECT_EQ(MeasuredCalls::read_file(path).size(), 0u);
  write_file(path, "{\"version\": 1}");
  EXPECT_THROW(MeasuredCalls::read_file(path), ParseError);
  write_file(path, "garbage");
  EXPECT_THROW(MeasuredCalls::read_file(path), ParseError);
  EXPECT_EQ(MeasuredCalls::read_file(path + ".none").size(), 0u);
}

TEST(MeasureCalls, WhatCannotRunIsLeftOutWithItsReason) {
  TestGraph t;
  const auto x = t.input("x", {8, 8});
  const auto y = t.input("y", {7, 7});
  t.call("aten::mm", {x, y}, {{8, 7}});
  t.call("aten::add.Tensor", {x, x}, {{8, 8}});  // without alpha
  t.device = c10::Device("cuda:0");
  const auto z = t.input("z", {4});
  t.call("aten::relu", {z}, {{4}});
  MeasuredCalls calls;
  const MeasureReport report = measure_calls(t.graph, calls);
  EXPECT_EQ(report.measured, 0u);
  ASSERT_EQ(report.left_out.size(), 3u);
  EXPECT_THAT(report.left_out[0].reason, HasSubstr("a required argument is missing"));
  EXPECT_THAT(report.left_out[1].reason, HasSubstr("mat1 and mat2"));
  EXPECT_THAT(report.left_out[2].reason, HasSubstr("cuda"));
  const FakeTensorMode mode({.device = at::kCPU});
  EXPECT_THROW(measure_calls(t.graph, calls), Error);
}

TEST(MeasureCalls, DrawsLeaveTheGeneratorAsItWas) {
  TestGraph t;
  const auto x = t.input("x", {1000});
  t.view("aten::uniform_", {x, Argument::of_float(0), Argument::of_float(1)}, x.value(), {1000});
  at::manual_seed(5);
  const at::Tensor expected = at::rand({4});
  at::manual_seed(5);
  MeasuredCalls calls;
  EXPECT_EQ(measure_calls(t.graph, calls).measured, 1u);
  EXPECT_TRUE(at::equal(at::rand({4}), expected));
}

TEST(CallSignature, TellsCallsApartByWhatAKernelSees) {
  TestGraph t;
  const auto x = t.input("x", {4, 4});
  const auto y = t.input("y", {4, 4});
  const auto one = t.call("aten::add.Tensor", {x, y, Argument::of_int(1)}, {{4, 4}});
  const auto same = t.call("aten::add.Tensor", {y, x, Argument::of_int(1)}, {{4, 4}});
  const auto scaled = t.call("aten::add.Tensor", {x, y, Argument::of_int(2)}, {{4, 4}});
  const auto doubled = t.call("aten::add.Tensor", {x, x, Argument::of_int(1)}, {{4, 4}});
  EXPECT_EQ(call_signature(t.graph, one.node), call_signature(t.graph, same.node));
  EXPECT_NE(call_signature(t.graph, one.node), call_signature(t.graph, scaled.node));
  EXPECT_NE(call_signature(t.graph, one.node), call_signature(t.graph, doubled.node));
}

// Measured on an H100 (bench/gpu/h100/workspaces.json); equal in bytes except for rounding.
TEST(CudnnScratch, IsOperandsWithChannelsLast) {
  const auto taken = [](std::vector<int64_t> x, std::vector<int64_t> weight, std::vector<int64_t> out, int64_t stride,
                        int64_t groups, int64_t element, bool last) {
    const std::vector<int64_t> strides = {stride, stride};
    Operand image = Operand::of_tensor(x, element), result = Operand::of_tensor(out, element);
    image.channels_last = result.channels_last = last;
    const std::vector<Operand> arguments = {image,
                                            Operand::of_tensor(weight, element),
                                            Operand(),
                                            Operand::of_ints(strides),
                                            Operand(),
                                            Operand(),
                                            Operand::of_number(0),
                                            Operand(),
                                            Operand::of_number(static_cast<double>(groups))};
    const std::vector<Operand> results = {result};
    TestGraph t;
    const ScratchRow* row = find_scratch_row(t.graph.target(t.graph.intern_operator("aten::convolution")), c10::kCUDA);
    return *row->bytes({.arguments = arguments, .results = results});
  };
  constexpr double kMebi = 1 << 20;
  EXPECT_NEAR(taken({16, 320, 64, 64}, {320, 320, 3, 3}, {16, 320, 64, 64}, 1, 1, 4, false) / kMebi, 163.52, 0.01);
  EXPECT_EQ(taken({16, 320, 64, 64}, {320, 320, 3, 3}, {16, 320, 64, 64}, 1, 1, 2, true), 0);
  EXPECT_NEAR(taken({4, 3, 224, 224}, {64, 3, 7, 7}, {4, 64, 112, 112}, 2, 1, 2, false) / kMebi, 9.24, 0.02)
      << "three channels are padded to eight";
  EXPECT_NEAR(taken({4, 3, 224, 224}, {64, 3, 7, 7}, {4, 64, 112, 112}, 2, 1, 2, true) / kMebi, 3.11, 0.02);
  EXPECT_NEAR(taken({4, 3, 224, 224}, {64, 3, 7, 7}, {4, 64, 112, 112}, 2, 1, 4, false) / kMebi, 14.58, 0.01);
  EXPECT_EQ(taken({4, 128, 56, 56}, {128, 1, 7, 7}, {4, 128, 56, 56}, 1, 128, 4, false), 0);
  EXPECT_EQ(taken({16, 64, 56, 56}, {256, 64, 1, 1}, {16, 256, 56, 56}, 1, 1, 4, false), 0);
  EXPECT_NEAR(taken({16, 256, 28, 28}, {512, 256, 1, 1}, {16, 512, 14, 14}, 2, 1, 2, false) / kMebi, 9.19, 0.01);
  EXPECT_GT(taken({4, 1, 28, 28}, {32, 1, 3, 3}, {4, 32, 26, 26}, 1, 1, 4, false), 0) << "one channel is no group";
}

}  // namespace
}  // namespace shadowgraph
