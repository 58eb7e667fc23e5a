// Elementwise FLOPs: hand-computed sums for each rule, and every row evaluated on malformed operands.
#include "profiler/cost/elementwise_table.h"

#include <gtest/gtest.h>

#include <set>

#include "core/libtorch/kernels.h"
#include "ir/operators/operator_name.h"
#include "ir/operators/schema_changes.h"
#include "profiler/cost/flop_table.h"
#include "shadowgraph/profile/profile.h"
#include "tests/profiler/test_graph.h"

namespace shadowgraph {
namespace {

using shadowgraph::testing::TestGraph;

// Returns the FLOPs of one call of `op`, evaluated in a graph.
NodeFlops work(TestGraph& t, const std::string& op, const std::vector<Argument>& arguments,
               const std::vector<std::vector<int64_t>>& results) {
  const auto call = t.call(op, arguments, results);
  return Flops::of(t.graph).of(call.node);
}

TEST(ElementwiseTable, Pointwise) {
  TestGraph t;
  const auto x = t.input("x", {2, 3});
  const Argument one = Argument::of_int(1);
  EXPECT_EQ(work(t, "aten::relu", {x}, {{2, 3}}).elementwise, 6);
  EXPECT_EQ(work(t, "aten::add.Tensor", {x, x, one}, {{2, 3}}).elementwise, 6);
  // includes alpha * y
  EXPECT_EQ(work(t, "aten::add_.Tensor", {x, x, Argument::of_float(-0.1)}, {{2, 3}}).elementwise, 12);
  EXPECT_EQ(work(t, "aten::mul.Tensor", {x, x}, {{4, 2, 3}}).elementwise, 24);  // counts the broadcast result
  EXPECT_EQ(work(t, "aten::addcmul_", {x, x, x, one}, {{2, 3}}).elementwise, 18);
  const NodeFlops exp = work(t, "aten::exp", {x}, {{2, 3}});
  EXPECT_EQ(exp.elementwise, 0);
  EXPECT_EQ(exp.transcendental, 6);
  const NodeFlops gelu = work(t, "aten::gelu", {x}, {{2, 3}});
  EXPECT_EQ(gelu.elementwise, 24);
  EXPECT_EQ(gelu.transcendental, 6);
}

TEST(ElementwiseTable, PowersByExponent) {
  TestGraph t;
  const auto x = t.input("x", {10});
  const auto power = [&](Argument exponent) { return work(t, "aten::pow.Tensor_Scalar", {x, exponent}, {{10}}); };
  EXPECT_EQ(power(Argument::of_int(1)), NodeFlops());
  EXPECT_EQ(power(Argument::of_int(2)).elementwise, 10);
  EXPECT_EQ(power(Argument::of_int(2)).transcendental, 0);
  EXPECT_EQ(power(Argument::of_float(3)).elementwise, 20);
  EXPECT_EQ(power(Argument::of_float(0.5)).transcendental, 10);
}

TEST(ElementwiseTable, Norms) {
  TestGraph t;
  const auto x = t.input("x", {2, 4, 5});  // 40 elements
  const auto w = t.parameter("w", {4});
  const Argument none;
  const Argument yes = Argument::of_bool(true);
  const Argument no = Argument::of_bool(false);
  const auto batch_norm = [&](Argument weight, Argument training) {
    return work(t, "aten::native_batch_norm", {x, weight, weight, w, w, training}, {{2, 4, 5}, {4}, {4}}).elementwise;
  };
  EXPECT_EQ(batch_norm(w, yes), 200);
  EXPECT_EQ(batch_norm(none, yes), 160);
  EXPECT_EQ(batch_norm(w, no), 80);
  EXPECT_EQ(batch_norm(none, no), 40);
  EXPECT_EQ(work(t, "aten::native_layer_norm", {x, t.ints({5}), w, w}, {{2, 4, 5}, {2, 4, 1}, {2, 4, 1}}).elementwise,
            200);
  EXPECT_EQ(work(t, "aten::native_layer_norm", {x, t.ints({5})}, {{2, 4, 5}}).elementwise, 160);
  EXPECT_EQ(work(t, "aten::native_layer_norm_backward", {x, x, t.ints({5}), w, w, w}, {{2, 4, 5}}).elementwise, 200);
  const NodeFlops softmax = work(t, "aten::_softmax", {x, Argument::of_int(2), no}, {{2, 4, 5}});
  EXPECT_EQ(softmax.elementwise, 160);
  EXPECT_EQ(softmax.transcendental, 40);
}

TEST(ElementwiseTable, ReductionsAndPooling) {
  TestGraph t;
  const auto x = t.input("x", {1, 2, 8, 8});  // 128 elements
  EXPECT_EQ(work(t, "aten::sum", {x}, {{}}).elementwise, 128);
  EXPECT_EQ(work(t, "aten::mean.dim", {x, t.ints({2, 3})}, {{1, 2}}).elementwise, 128);
  EXPECT_EQ(work(t, "aten::var_mean.correction", {x}, {{}, {}}).elementwise, 512);
  // 2*4*4 results of a 3x3 window; a single number is the window size in both dimensions.
  EXPECT_EQ(work(t, "aten::max_pool2d_with_indices", {x, t.ints({3, 3})}, {{1, 2, 4, 4}, {1, 2, 4, 4}}).elementwise,
            288);
  EXPECT_EQ(work(t, "aten::avg_pool2d", {x, t.ints({3})}, {{1, 2, 4, 4}}).elementwise, 288);
  const auto gradient = t.input("g", {1, 2, 4, 4});
  EXPECT_EQ(work(t, "aten::avg_pool2d_backward", {gradient, x, t.ints({3, 3})}, {{1, 2, 8, 8}}).elementwise, 288);
  EXPECT_EQ(
      work(t, "aten::max_pool2d_with_indices_backward", {gradient, x, t.ints({3, 3})}, {{1, 2, 8, 8}}).elementwise, 32);
  EXPECT_EQ(work(t, "aten::_adaptive_avg_pool2d", {x, t.ints({1, 1})}, {{1, 2, 1, 1}}).elementwise, 128);
  EXPECT_EQ(work(t, "aten::sort", {x}, {{1, 2, 8, 8}, {1, 2, 8, 8}}).elementwise, 128 * 3);  // log2 of 8
}

TEST(ElementwiseTable, BiasOfProducts) {
  TestGraph t;
  const auto b = t.parameter("b", {7});
  const auto x = t.input("x", {3, 5});
  const auto w = t.parameter("w", {5, 7});
  const NodeFlops addmm = work(t, "aten::addmm", {b, x, w}, {{3, 7}});
  EXPECT_EQ(addmm.matmul, 210);
  EXPECT_EQ(addmm.elementwise, 21);
  EXPECT_EQ(work(t, "aten::mm", {x, w}, {{3, 7}}).elementwise, 0);

  const auto image = t.input("image", {2, 3, 4, 4});
  const auto weight = t.parameter("weight", {5, 3, 1, 1});
  const auto bias = t.parameter("bias", {5});
  const Argument ones = t.ints({1, 1});
  const Argument zeros = t.ints({0, 0});
  const Argument no = Argument::of_bool(false);
  std::vector<Argument> convolution = {image, weight, bias, ones, zeros, ones, no, zeros, Argument::of_int(1)};
  EXPECT_EQ(work(t, "aten::convolution", convolution, {{2, 5, 4, 4}}).elementwise, 160);
  EXPECT_EQ(work(t, "aten::convolution", convolution, {{2, 5, 4, 4}}).matmul, 960);  // 2 * 2 * 15 * 16
  convolution[2] = Argument::none();
  EXPECT_EQ(work(t, "aten::convolution", convolution, {{2, 5, 4, 4}}).elementwise, 0);

  const auto gradient = t.input("gradient", {2, 5, 4, 4});
  const NodeFlops backward = work(t, "aten::convolution_backward",
                                  {gradient, image, weight, t.ints({5}), ones, zeros, ones, no, zeros,
                                   Argument::of_int(1), t.bools({true, true, true})},
                                  {{2, 3, 4, 4}, {5, 3, 1, 1}, {5}});
  EXPECT_EQ(backward.matmul, 1920);
  EXPECT_EQ(backward.elementwise, 160);
}

TEST(ElementwiseTable, AttentionAndRecurrentLayers) {
  TestGraph t;
  const auto q = t.input("q", {2, 4, 3, 8});
  const auto k = t.input("k", {2, 4, 5, 8});
  const NodeFlops attention =
      work(t, "aten::_scaled_dot_product_flash_attention_for_cpu", {q, k, k}, {{2, 4, 3, 8}, {2, 4, 3}});
  EXPECT_EQ(attention.matmul, 3840);      // 2 * 2*4*3*5 * 16
  EXPECT_EQ(attention.elementwise, 600);  // 120 scores * 5
  EXPECT_EQ(attention.transcendental, 120);
  EXPECT_EQ(attention.beyond_pytorch, kFlopsOfCpuFlashCounted ? 0 : 3840);

  const auto x = t.input("x", {5, 3, 4});
  const auto w0 = t.parameter("w0", {24, 4});
  const auto w1 = t.parameter("w1", {24, 6});
  const auto b = t.parameter("b", {24});
  const auto h = t.input("h", {1, 3, 6});
  const NodeFlops lstm = work(t, "aten::mkldnn_rnn_layer",
                              {x, w0, w1, b, b, h, h, Argument::of_bool(false), t.ints({}), Argument::of_int(2),
                               Argument::of_int(6), Argument::of_int(1)},
                              {{5, 3, 6}, {1, 3, 6}, {1, 3, 6}, {0}});
  EXPECT_EQ(lstm.matmul, 7200);
  EXPECT_EQ(lstm.elementwise, 15 * 6 * 25);
  EXPECT_EQ(lstm.transcendental, 15 * 6 * 5);
  // By mode: relu, tanh, GRU.
  const NodeFlops units[] = {{.elementwise = 4, .transcendental = 0},
                             {.elementwise = 3, .transcendental = 1},
                             {.elementwise = 19, .transcendental = 3}};
  for (const int mode : {0, 1, 3}) {
    const NodeFlops cell = work(t, "aten::mkldnn_rnn_layer",
                                {x, w0, w1, b, b, h, h, Argument::of_bool(false), t.ints({}), Argument::of_int(mode),
                                 Argument::of_int(6), Argument::of_int(1)},
                                {{5, 3, 6}, {1, 3, 6}, {1, 3, 6}, {0}});
    const NodeFlops& unit = units[mode == 3 ? 2 : mode];
    EXPECT_EQ(cell.elementwise, 15 * 6 * unit.elementwise) << mode;
    EXPECT_EQ(cell.transcendental, 15 * 6 * unit.transcendental) << mode;
  }
}

TEST(ElementwiseTable, ForeachAndFusedOptimizers) {
  TestGraph t;
  const auto a = t.parameter("a", {10});
  const auto b = t.parameter("b", {2, 3});
  const Argument list = t.graph.make_list(std::vector<Argument>{a, b});
  EXPECT_EQ(work(t, "aten::_foreach_mul_.Scalar", {list, Argument::of_float(0.9)}, {}).elementwise, 16);
  EXPECT_EQ(work(t, "aten::_foreach_add_.List", {list, list, Argument::of_float(-0.1)}, {}).elementwise, 32);
  EXPECT_EQ(work(t, "aten::_foreach_sqrt_", {list}, {}).transcendental, 16);
  EXPECT_EQ(work(t, "aten::_foreach_zero_", {list}, {}), NodeFlops());
  const NodeFlops adamw = work(t, "aten::_fused_adamw_", {list, list, list, list, list, list}, {});
  EXPECT_EQ(adamw.elementwise, 16 * 13);
  EXPECT_EQ(adamw.transcendental, 16);
}

TEST(ElementwiseTable, ScatterAddsOnlyWhenItAccumulates) {
  TestGraph t;
  const auto x = t.input("x", {10});
  const auto values = t.input("v", {4});
  const Argument indices = t.graph.make_list(std::vector<Argument>{values});
  EXPECT_EQ(work(t, "aten::index_put_", {x, indices, values, Argument::of_bool(false)}, {{10}}).elementwise, 0);
  EXPECT_EQ(work(t, "aten::index_put_", {x, indices, values, Argument::of_bool(true)}, {{10}}).elementwise, 4);
  EXPECT_EQ(work(t, "aten::embedding_dense_backward", {values, x, Argument::of_int(9)}, {{9, 2}}).elementwise, 4);
}

TEST(ElementwiseTable, FourierTransforms) {
  TestGraph t;
  const auto x = t.input("x", {2, 8});
  EXPECT_EQ(work(t, "aten::_fft_c2c", {x, t.ints({1})}, {{2, 8}}).elementwise, 240);      // 5 * 16 * log2 8
  EXPECT_EQ(work(t, "aten::_fft_c2c", {x, t.ints({0, -1})}, {{2, 8}}).elementwise, 320);  // 5 * 16 * (1 + 3)
  EXPECT_EQ(work(t, "aten::_fft_r2c", {x, t.ints({1})}, {{2, 5}}).elementwise, 120);
  EXPECT_EQ(work(t, "aten::_fft_c2r", {t.input("y", {2, 5}), t.ints({1})}, {{2, 8}}).elementwise, 120);
}

TEST(ElementwiseTable, Distances) {
  TestGraph t;
  const auto x = t.input("x", {3, 4});
  const auto y = t.input("y", {5, 4});
  const auto distance = [&](double p) {
    return work(t, "aten::_cdist_forward", {x, y, Argument::of_float(p)}, {{3, 5}});
  };
  EXPECT_EQ(distance(2).elementwise, 180);  // 15 pairs * 4 * 3
  EXPECT_EQ(distance(2).transcendental, 15);
  EXPECT_EQ(distance(1).transcendental, 0);
  EXPECT_EQ(distance(3).transcendental, 75);  // 15 * 4 powers and 15 roots
  const auto gradient = t.input("g", {3, 5});
  EXPECT_EQ(work(t, "aten::_cdist_backward", {gradient, x, y, Argument::of_float(2)}, {{3, 4}}).elementwise, 240);
}

TEST(ElementwiseTable, SamplingAndResampling) {
  TestGraph t;
  const auto image = t.input("image", {1, 2, 8, 8});
  const auto grid = t.input("grid", {1, 3, 3, 2});
  const auto gradient = t.input("g", {1, 2, 3, 3});
  const auto sampled = [&](int64_t mode) {
    return work(t, "aten::grid_sampler_2d", {image, grid, Argument::of_int(mode)}, {{1, 2, 3, 3}}).elementwise;
  };
  EXPECT_EQ(sampled(0), 18 * 7);  // bilinear: 4 products, 3 additions
  EXPECT_EQ(sampled(1), 0);       // nearest
  EXPECT_EQ(sampled(2), 18 * 31);
  EXPECT_EQ(work(t, "aten::grid_sampler_2d_backward", {gradient, image, grid, Argument::of_int(0)}, {{1, 2, 8, 8}})
                .elementwise,
            18 * 2 * 4 * 3);  // gradients of the input (4 taps) and of two coordinates
  const auto theta = t.input("theta", {2, 2, 3});
  EXPECT_EQ(work(t, "aten::affine_grid_generator", {theta, t.ints({2, 1, 4, 4})}, {{2, 4, 4, 2}}).elementwise, 64 * 5);
  // Half the size: windows of 4. Rows 2*8*4*4, columns 2*4*4*4, with 2 channels.
  EXPECT_EQ(work(t, "aten::_upsample_bilinear2d_aa", {image, t.ints({4, 4})}, {{1, 2, 4, 4}}).elementwise, 768);
  // Twice the size: windows of 2. Rows 2*8*16*2, columns 2*16*16*2, with 2 channels.
  EXPECT_EQ(work(t, "aten::_upsample_bilinear2d_aa", {image, t.ints({16, 16})}, {{1, 2, 16, 16}}).elementwise, 3072);
  EXPECT_EQ(work(t, "aten::_upsample_bicubic2d_aa", {image, t.ints({8, 8})}, {{1, 2, 8, 8}}).elementwise, 2048);
}

TEST(ElementwiseTable, BagsUniqueAndCtc) {
  TestGraph t;
  const auto weight = t.parameter("weight", {10, 6});
  const auto indices = t.input("indices", {4});
  const auto offsets = t.input("offsets", {2});
  const Argument no = Argument::of_bool(false);
  const std::vector<std::vector<int64_t>> results = {{2, 6}, {4}, {2}, {2}};
  EXPECT_EQ(work(t, "aten::_embedding_bag", {weight, indices, offsets}, results).elementwise, 24);  // 4 rows of 6
  EXPECT_EQ(work(t, "aten::_embedding_bag", {weight, indices, offsets, no, Argument::of_int(0), no, indices}, results)
                .elementwise,
            48);
  EXPECT_EQ(work(t, "aten::_unique2", {t.input("x", {2, 4})}, {{8}, {0}, {0}}).elementwise, 24);  // 8 * log2 8
  const auto paths = t.input("log_probs", {5, 2, 9});
  const NodeFlops ctc = work(t, "aten::_ctc_loss", {paths}, {{2}, {2, 5, 7}});
  EXPECT_EQ(ctc.elementwise, 630);  // 70 steps
  EXPECT_EQ(ctc.transcendental, 280);
}

TEST(Flops, ViewsAreFreeTagsCountAndTheRestIsListed) {
  TestGraph t;
  const auto x = t.input("x", {2, 3});
  t.view("aten::t", {x}, x.value(), {3, 2});              // a view according to its schema
  t.view("aten::unfold", {x}, x.value(), {2, 1, 3});      // another view, without a row
  const auto tagged = t.call("aten::i0", {x}, {{2, 3}});  // no row, but tagged pointwise
  t.call("aten::fft_fft", {x}, {{2, 3}});                 // no formula
  t.call("aten::fft_fft", {x}, {{2, 3}});
  t.call("aten::mm", {x, x}, {{2, 3}});  // invalid: 3 does not match 2
  t.graph.append(t.graph.intern_target(Target(TargetKind::kFunction, "mine::fused(Tensor x) -> Tensor")), {x});
  const Flops flops = Flops::of(t.graph);
  EXPECT_EQ(ElementwiseFormula::of(t.graph.target(tagged.node)).coverage, ElementwiseCoverage::kPointwiseTag);
  EXPECT_EQ(flops.of(tagged.node).elementwise, 6);
  const std::vector<UncoveredOperator> expected = {{"aten::fft_fft", 2}, {"aten::mm", 1}, {"mine::fused", 1}};
  EXPECT_EQ(flops.uncovered(), expected);
}

TEST(Flops, ByPhase) {
  TestGraph t;
  const auto x = t.input("x", {3, 3});
  t.call("aten::mm", {x, x}, {{3, 3}});
  t.phase = Graph::kBackward;
  t.call("aten::mm", {x, x}, {{3, 3}});
  t.call("aten::mm", {x, x}, {{3, 3}});
  t.phase = Graph::kOptimizer;
  t.call("aten::mul_.Tensor", {x, x}, {{3, 3}});
  const Flops flops = Flops::of(t.graph);
  EXPECT_EQ(flops.of_phase(Graph::kForward).matmul, 54);
  EXPECT_EQ(flops.of_phase(Graph::kBackward).matmul, 108);
  EXPECT_EQ(flops.of_phase(Graph::kOptimizer).matmul, 0);
  EXPECT_EQ(flops.of_phase(Graph::kOptimizer).elementwise, 9);
}

TEST(ElementwiseTable, NoRuleTrustsItsOperands) {
  std::set<std::string> names;
  const std::vector<int64_t> empty;
  const Operand kinds[] = {
      {}, Operand::of_tensor(empty), Operand::of_tensors({}), Operand::of_ints(empty), Operand::of_number(1e300)};
  for (const ElementwiseRow& row : elementwise_table()) {
    for_each_name(row.names, [&](std::string_view name) { EXPECT_TRUE(names.emplace(name).second) << name; });
    row.rule({}, row.each);
    for (const Operand& operand : kinds) {
      const std::vector<Operand> operands(30, operand);
      row.rule({.arguments = operands, .results = operands}, row.each);
    }
  }
}

// A row for an operator that does not exist is a typo.
TEST(ElementwiseTable, EveryRowNamesAnOperator) {
  std::set<std::string> known;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) known.insert(name.name);
  const auto exists = [&](std::string name) {
    name = std::string(without_overload(name));
    const std::string in_place = name + "_";
    // Defined in Python: tests/package/test_parallel_programs.py and test_operator_costs.py call them.
    const bool is_of_python =
        name.starts_with("fsdp::") || name.starts_with("bitsandbytes::") || name.starts_with("torch_attn::");
    const bool is_of_another_version = !operator_in_this_libtorch(name).empty() || !why_removed(name).empty();
    return name.starts_with("sg::") || name.starts_with("sg_random::") || is_of_python || known.contains(name) ||
           known.contains(in_place) || is_of_another_version;
  };
  const auto all_exist = [&](std::string_view names) {
    for_each_name(names, [&](std::string_view name) { EXPECT_TRUE(exists(full_name(name))) << name; });
  };
  for (const ElementwiseRow& row : elementwise_table()) all_exist(row.names);
  for (const FlopRow& row : flop_table()) all_exist(row.names);
}

// Operators with matrix FLOPs also need an elementwise row, or reports would say "no formula"; composites are exempt.
TEST(ElementwiseTable, KnowsWhatElseMatrixProductsCompute) {
  for (const FlopRow& row : flop_table()) {
    for_each_name(row.names, [&](std::string_view written) {
      const std::string name = full_name(written);
      const bool composite = name.starts_with("aten::lstm") || name.starts_with("aten::gru") ||
                             name.starts_with("aten::rnn_") || name == "aten::miopen_rnn";
      EXPECT_TRUE(composite || row.counts_all || find_elementwise_row(name) != nullptr) << name;
    });
  }
}

}  // namespace
}  // namespace shadowgraph
