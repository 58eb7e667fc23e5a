// Tests every row of the FLOP table on hand-written shapes, with the sums in comments. They equal PyTorch's own
// formulas (tests/golden/profiler/flop_calls.jsonl, made by make_flop_calls.py there) exactly.
#include "profiler/cost/flop_table.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <deque>
#include <fstream>
#include <set>

#include "core/libtorch/kernels.h"
#include "ir/operators/operator_name.h"

namespace shadowgraph {
namespace {

using Sizes = std::vector<int64_t>;

// Owns the shapes that an OperandShapes refers to.
class Call {
 public:
  Call& tensor(Sizes sizes) { return add(Operand::of_tensor(keep(std::move(sizes)))); }
  Call& ints(Sizes values) { return add(Operand::of_ints(keep(std::move(values)))); }
  Call& number(double value) { return add(Operand::of_number(value)); }
  Call& none() { return add({}); }
  Call& tensors(const std::vector<Sizes>& list) {
    auto& shapes = lists_.emplace_back();
    for (const Sizes& sizes : list) shapes.push_back(keep(sizes));
    return add(Operand::of_tensors(shapes));
  }
  Call& skip(size_t count) {
    for (size_t i = 0; i < count; ++i) none();
    return *this;
  }
  Call& returns(Sizes sizes) {
    results_.push_back(Operand::of_tensor(keep(std::move(sizes))));
    return *this;
  }
  std::optional<int64_t> flops(std::string_view op) const {
    const FlopRow* row = find_flop_row(op);
    return row != nullptr ? row->rule({.arguments = arguments_, .results = results_}) : std::nullopt;
  }

 private:
  Shape keep(Sizes sizes) { return sizes_.emplace_back(std::move(sizes)); }
  Call& add(Operand operand) {
    arguments_.push_back(operand);
    return *this;
  }
  std::deque<Sizes> sizes_;
  std::deque<std::vector<Shape>> lists_;
  std::vector<Operand> arguments_;
  std::vector<Operand> results_;
};

TEST(FlopTable, MatrixProducts) {
  const int64_t mm = 210;   // 2 * 3 * 5 * 7
  const int64_t bmm = 420;  // twice that
  for (const char* op : {"aten::mm", "aten::mm.out", "aten::_int_mm", "aten::_scaled_mm", "aten::_scaled_mm_v2"}) {
    EXPECT_EQ(Call().tensor({3, 5}).tensor({5, 7}).flops(op), mm) << op;
  }
  for (const char* op : {"aten::addmm", "aten::addmm_", "aten::_addmm_activation"}) {
    EXPECT_EQ(Call().tensor({7}).tensor({3, 5}).tensor({5, 7}).flops(op), mm) << op;
  }
  EXPECT_EQ(Call().tensor({2, 3, 5}).tensor({2, 5, 7}).flops("aten::bmm"), bmm);
  for (const char* op : {"aten::baddbmm", "aten::baddbmm_", "aten::addbmm", "aten::addbmm_"}) {
    EXPECT_EQ(Call().tensor({2, 3, 7}).tensor({2, 3, 5}).tensor({2, 5, 7}).flops(op), bmm) << op;
  }
  EXPECT_EQ(Call().tensor({3, 5}).tensor({5}).flops("aten::mv"), 30);  // 2 * 3 * 5
  EXPECT_EQ(Call().tensor({3}).tensor({3, 5}).tensor({5}).flops("aten::addmv"), 30);
  EXPECT_EQ(Call().tensor({3}).tensor({3, 5}).tensor({5}).flops("aten::addmv_"), 30);
  EXPECT_EQ(Call().tensor({11}).tensor({11}).flops("aten::dot"), 22);
  EXPECT_EQ(Call().tensor({11}).tensor({11}).flops("aten::vdot"), 22);
  EXPECT_EQ(Call().tensor({3, 5}).tensor({3}).tensor({5}).flops("aten::addr"), 30);
  EXPECT_EQ(Call().tensor({3, 5}).tensor({3}).tensor({5}).flops("aten::addr_"), 30);
  EXPECT_EQ(Call().tensor({2, 3, 5}).tensor({7, 5}).flops("aten::linear"), bmm);  // 2 * (2*3) * 5 * 7
  EXPECT_EQ(Call().tensor({2, 3, 5}).tensor({7, 5}).flops("aten::mkldnn_linear"), bmm);
  EXPECT_EQ(Call().tensor({4, 1, 3, 5}).tensor({2, 5, 7}).returns({4, 2, 3, 7}).flops("aten::matmul"),
            1680);  // 8 products of 210
}

TEST(FlopTable, GroupedProducts) {
  for (const char* op : {"aten::_grouped_mm", "aten::_scaled_grouped_mm"}) {
    EXPECT_EQ(Call().tensor({6, 5}).tensor({2, 5, 7}).flops(op), 420) << op;     // 6 rows among 2 groups: 2*6*5*7
    EXPECT_EQ(Call().tensor({2, 3, 5}).tensor({5, 8}).flops(op), 240) << op;     // 8 columns among 2 groups: 2*3*8*5
    EXPECT_EQ(Call().tensor({2, 3, 5}).tensor({2, 5, 7}).flops(op), 420) << op;  // 2 * 210
    EXPECT_EQ(Call().tensor({3, 10}).tensor({10, 7}).flops(op), 420) << op;      // 10 = 5 + 5 contracted
  }
}

TEST(FlopTable, Trilinear) {
  // bilinear: i1 (2,1,3) expanded, weight (4,3,5), i2 (2,1,5): 2*4*3*5 elements, 3 operations each.
  Call call;
  call.tensor({2, 3}).tensor({4, 3, 5}).tensor({2, 5}).ints({1, 3}).ints({0}).ints({1, 2}).ints({2, 3});
  EXPECT_EQ(call.flops("aten::_trilinear"), 360);
}

TEST(FlopTable, Convolutions) {
  // 2 images, 6 -> 8 channels in 2 groups, 3x3 window, 5x5 results: 2 * 2 * (8*3*3*3) * 25
  Call plain;
  plain.tensor({2, 6, 10, 10}).tensor({8, 3, 3, 3}).none().ints({2, 2}).ints({1, 1}).ints({1, 1}).number(0);
  plain.returns({2, 8, 5, 5});
  for (const char* op : {"aten::convolution", "aten::_convolution", "aten::convolution_overrideable"}) {
    EXPECT_EQ(plain.flops(op), 21600) << op;
  }
  for (const char* op : {"aten::cudnn_convolution", "aten::mkldnn_convolution", "aten::miopen_convolution",
                         "aten::_slow_conv2d_forward", "aten::_conv_depthwise2d"}) {
    Call call;
    call.tensor({2, 6, 10, 10}).tensor({8, 3, 3, 3}).returns({2, 8, 5, 5});
    EXPECT_EQ(call.flops(op), 21600) << op;
  }
  for (const char* op : {"aten::conv_depthwise3d", "aten::slow_conv3d_forward"}) {
    Call call;
    call.tensor({1, 2, 4, 4, 4}).tensor({4, 1, 2, 2, 2}).returns({1, 4, 3, 3, 3});
    EXPECT_EQ(call.flops(op), 1728) << op;  // 2 * (4*1*2*2*2) * 27
  }
  // Transposed: the window is applied at each of the 4x4 inputs. 2 * 2 * (6*5*2*2) * 16
  Call transposed;
  transposed.tensor({2, 6, 4, 4}).tensor({6, 5, 2, 2}).none().ints({2}).ints({0}).ints({1}).number(1);
  transposed.returns({2, 5, 8, 8});
  EXPECT_EQ(transposed.flops("aten::convolution"), 7680);
  EXPECT_EQ(transposed.flops("aten::cudnn_convolution_transpose"), 7680);
  EXPECT_EQ(transposed.flops("aten::miopen_convolution_transpose"), 7680);
}

TEST(FlopTable, ConvolutionBackward) {
  const auto backward = [](Sizes mask) {
    Call call;
    call.tensor({2, 8, 5, 5}).tensor({2, 6, 10, 10}).tensor({8, 3, 3, 3}).ints({8}).ints({2, 2}).ints({1, 1});
    return call.ints({1, 1}).number(0).ints({0, 0}).number(2).ints(std::move(mask)).flops("aten::convolution_backward");
  };
  EXPECT_EQ(backward({1, 0, 0}), 21600);  // like the forward: 2 * 2 * (8*3*3*3) * 25
  // PyTorch's formula ignores groups here: 2 * 2 * 6 * 8 * (3*3) * 25, twice the forward with its 2 groups.
  EXPECT_EQ(backward({0, 1, 0}), 43200);
  EXPECT_EQ(backward({0, 0, 1}), 0);
  EXPECT_EQ(backward({1, 1, 1}), 64800);

  Call transposed;
  transposed.tensor({2, 5, 8, 8}).tensor({2, 6, 4, 4}).tensor({6, 5, 2, 2}).none().ints({2, 2}).ints({0, 0});
  transposed.ints({1, 1}).number(1).ints({0, 0}).number(1).ints({1, 1, 0});
  // Input: 2 * 2 * (6*5*2*2) * 16; weight: 2 * 2 * 6 * 5 * (2*2) * 16
  EXPECT_EQ(transposed.flops("aten::convolution_backward"), 7680 + 7680);
}

// Converts [B, H, S, D] to the layout that the operator's formula expects: since 2.14, PyTorch's reads flash's heads
// last.
Sizes as_read(std::string_view op, Sizes sizes) {
  if (kFlopsOfFlashReadHeadsLast && op.starts_with("aten::_flash_attention")) std::swap(sizes[1], sizes[2]);
  return sizes;
}

// B 2, S 5, E 12, 3 heads, F 24. Projections 2 * 10 * 12*36, scores and values 2 * 2*10*5*12, the output's 2 * 10 * 12*12.
TEST(FlopTable, FastPathOfEncoders) {
  Call attention;
  attention.tensor({2, 5, 12}).tensor({2, 5, 12}).tensor({2, 5, 12}).number(12).number(3);
  attention.tensor({36, 12}).tensor({36}).tensor({12, 12}).tensor({12});
  EXPECT_EQ(attention.flops("aten::_native_multi_head_attention"), 8640 + 2400 + 2880);
  // Keys of 7 tokens: 2 * (10 + 2*14) * 12*12, 2 * 2*10*7*12
  Call crossed;
  crossed.tensor({2, 5, 12}).tensor({2, 7, 12}).tensor({2, 7, 12}).number(12).number(3);
  crossed.tensor({36, 12}).tensor({36}).tensor({12, 12}).tensor({12});
  EXPECT_EQ(crossed.flops("aten::_native_multi_head_attention"), 10944 + 3360 + 2880);
  Call layer;
  layer.tensor({2, 5, 12}).number(12).number(3).tensor({36, 12}).tensor({36}).tensor({12, 12}).tensor({12});
  layer.number(0).number(0).number(1e-5).tensor({12}).tensor({12}).tensor({12}).tensor({12});
  layer.tensor({24, 12}).tensor({24}).tensor({12, 24}).tensor({12});
  // and 2 * 2 * 10 * 12*24
  EXPECT_EQ(layer.flops("aten::_transformer_encoder_layer_fwd"), 13920 + 11520);
}

TEST(FlopTable, Attention) {
  // B 2, H 4, Sq 3, Sk 5, D 8, Dv 6: 2 * 2*4*3*5 * (8 + 6)
  for (const char* op :
       {"aten::_scaled_dot_product_efficient_attention", "aten::_scaled_dot_product_flash_attention",
        "aten::_scaled_dot_product_cudnn_attention", "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_fused_attention_overrideable", "aten::_flash_attention_forward",
        "aten::_efficient_attention_forward"}) {
    const auto at = [&](Sizes sizes) { return as_read(op, std::move(sizes)); };
    EXPECT_EQ(Call().tensor(at({2, 4, 3, 8})).tensor(at({2, 4, 5, 8})).tensor(at({2, 4, 5, 6})).flops(op), 3360) << op;
    // Grouped queries: 2 key heads serve all 4 query heads.
    EXPECT_EQ(Call().tensor(at({2, 4, 3, 8})).tensor(at({2, 2, 5, 8})).tensor(at({2, 2, 5, 6})).flops(op), 3360) << op;
    EXPECT_EQ(Call().tensor(at({2, 4, 3, 8})).tensor(at({2, 3, 5, 8})).tensor(at({2, 3, 5, 6})).flops(op), std::nullopt)
        << op;
  }
  // Backward: 2 * 2*4*3*5 * (3*8 + 2*6)
  for (const char* op :
       {"aten::_scaled_dot_product_efficient_attention_backward", "aten::_scaled_dot_product_flash_attention_backward",
        "aten::_scaled_dot_product_cudnn_attention_backward",
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
        "aten::_scaled_dot_product_fused_attention_overrideable_backward", "aten::_flash_attention_backward",
        "aten::_efficient_attention_backward"}) {
    Call call;
    for (const Sizes& sizes : {Sizes{2, 4, 3, 6}, {2, 4, 3, 8}, {2, 4, 5, 8}, {2, 4, 5, 6}}) {
      call.tensor(as_read(op, sizes));
    }
    EXPECT_EQ(call.flops(op), 8640) << op;
  }
}

TEST(FlopTable, PackedAttention) {
  // Three sequences of at most 4 queries and 6 keys, 2 heads of 8: 3 * 2 * 2*4*6 * 16
  Call flash;
  flash.tensor({10, 2, 8}).tensor({15, 2, 8}).tensor({15, 2, 8}).tensor({4}).tensor({4}).number(4).number(6);
  EXPECT_EQ(flash.flops("aten::_flash_attention_forward"), 4608);
  Call efficient;
  efficient.tensor({1, 10, 2, 8}).tensor({1, 15, 2, 8}).tensor({1, 15, 2, 8}).none().tensor({4}).tensor({4});
  EXPECT_EQ(efficient.number(4).number(6).flops("aten::_efficient_attention_forward"), 4608);
  // Backward: 3 * 2 * 2*4*6 * (3*8 + 2*8)
  Call flash_backward;
  flash_backward.tensor({10, 2, 8}).tensor({10, 2, 8}).tensor({15, 2, 8}).tensor({15, 2, 8}).skip(2);
  flash_backward.tensor({4}).tensor({4}).number(4).number(6);
  EXPECT_EQ(flash_backward.flops("aten::_flash_attention_backward"), 11520);
  Call efficient_backward;
  efficient_backward.tensor({1, 10, 2, 8}).tensor({1, 10, 2, 8}).tensor({1, 15, 2, 8}).tensor({1, 15, 2, 8}).skip(2);
  efficient_backward.tensor({4}).tensor({4}).number(4).number(6);
  EXPECT_EQ(efficient_backward.flops("aten::_efficient_attention_backward"), 11520);
  // The same by torch.nn.attention.varlen and by cuDNN.
  EXPECT_EQ(flash.flops("torch_attn::_varlen_attn"), 4608);
  EXPECT_EQ(flash_backward.flops("torch_attn::_varlen_attn_backward"), 11520);
  Call into;
  into.tensor({10, 2, 8}).tensor({10, 2, 8}).tensor({15, 2, 8}).tensor({15, 2, 8});
  into.tensor({4}).tensor({4}).number(4).number(6);
  EXPECT_EQ(into.flops("torch_attn::_varlen_attn_out"), 4608);
  EXPECT_EQ(into.flops("aten::_flash_attention_forward_no_dropout_inplace"), 4608);
  Call cudnn;
  cudnn.tensor({10, 2, 8}).tensor({10, 2, 8}).tensor({15, 2, 8}).tensor({15, 2, 8}).skip(5);
  cudnn.tensor({4}).tensor({4}).number(4).number(6);
  EXPECT_EQ(cudnn.flops("aten::_cudnn_attention_backward"), 11520);
}

// 100 scores: 2 * 100 * (8 + 6), and 2 * 100 * (3*8 + 2*6). Negative if they are all, of an unknown mask.
TEST(FlopTable, FlexAttentionByItsScores) {
  for (const int64_t scores : {100, -100}) {
    Call forward;
    forward.tensor({2, 4, 3, 8}).tensor({2, 4, 5, 8}).tensor({2, 4, 5, 6}).number(static_cast<double>(scores));
    EXPECT_EQ(forward.flops("shadowgraph::flex_attention"), 2800);
    Call backward;
    backward.tensor({2, 4, 3, 6}).tensor({2, 4, 3, 8}).tensor({2, 4, 5, 8}).tensor({2, 4, 5, 6}).skip(2);
    EXPECT_EQ(backward.number(static_cast<double>(scores)).flops("shadowgraph::flex_attention_backward"), 7200);
  }
}

// 2 samples of 3 tokens of width 8: 2 * 6 * (24*8 + 8*8) for projections, 2 * 2*2 * 3*3 * 8 for scores and output; an
// encoder layer also has 2 * 6 * 2 * 16*8.
TEST(FlopTable, FastPathsOfTransformers) {
  Call attention;
  attention.tensor({2, 3, 8}).tensor({2, 3, 8}).tensor({2, 3, 8}).number(8).number(2).tensor({24, 8}).tensor({24});
  EXPECT_EQ(attention.tensor({8, 8}).tensor({8}).flops("aten::_native_multi_head_attention"), 3072 + 576);
  Call layer;
  layer.tensor({2, 3, 8}).number(8).number(2).tensor({24, 8}).tensor({24}).tensor({8, 8}).tensor({8}).skip(7);
  layer.tensor({16, 8}).tensor({16}).tensor({8, 16}).tensor({8});
  EXPECT_EQ(layer.flops("aten::_transformer_encoder_layer_fwd"), 3072 + 576 + 3072);
}

TEST(FlopTable, Recurrent) {
  // LSTM, 5 steps of 3 sequences, 4 -> 6: matrices 24x4 and 24x6. 2 * 15 * (96 + 144)
  Call layer;
  layer.tensor({5, 3, 4}).tensor({24, 4}).tensor({24, 6}).tensor({24}).tensor({24});
  EXPECT_EQ(layer.flops("aten::mkldnn_rnn_layer"), 7200);
  EXPECT_EQ(layer.flops("aten::mkldnn_rnn_layer_backward"), 14400);  // gradients of inputs and of weights
  const std::vector<Sizes> weights = {{24, 4}, {24, 6}, {24}, {24}, {24, 6}, {24, 6}, {24}, {24}};
  // A second layer adds two 24x6 matrices: 2 * 15 * (240 + 288)
  Call cudnn;
  cudnn.tensor({5, 3, 4}).tensors(weights);
  EXPECT_EQ(cudnn.flops("aten::_cudnn_rnn"), 15840);
  EXPECT_EQ(cudnn.flops("aten::miopen_rnn"), 15840);
  EXPECT_EQ(Call(cudnn).skip(19).ints({1, 1, 1, 1}).flops("aten::_cudnn_rnn_backward"), 31680);
  EXPECT_EQ(Call(cudnn).skip(19).ints({1, 1, 1, 0}).flops("aten::_cudnn_rnn_backward"), 15840);
  for (const char* op : {"aten::lstm.input", "aten::gru.input", "aten::rnn_tanh.input", "aten::rnn_relu.input"}) {
    Call call;
    call.tensor({5, 3, 4}).tensors({{2, 3, 6}}).tensors(weights);
    EXPECT_EQ(call.flops(op), 15840) << op;
  }
  for (const char* op : {"aten::lstm.data", "aten::gru.data", "aten::rnn_tanh.data", "aten::rnn_relu.data"}) {
    Call call;
    call.tensor({15, 4}).tensor({5}).tensors({{2, 3, 6}}).tensors(weights);
    EXPECT_EQ(call.flops(op), 15840) << op;
  }
}

TEST(FlopTable, PackedWeightsAndOtherForms) {
  EXPECT_EQ(Call().tensor({3, 5}).tensor({7, 5}).returns({3, 7}).flops("aten::_weight_int8pack_mm"), 210);  // 2*3*5*7
  EXPECT_EQ(Call().tensor({4, 2, 5}).tensor({3, 5, 7}).returns({4, 2, 7}).flops("aten::conv_tbc"), 1680);   // 2*56*3*5
  EXPECT_EQ(Call().tensor({4, 2, 3}).tensor({5, 4}).returns({5, 2, 3}).flops("aten::_compute_linear_combination"),
            240);                                                                                       // 2*30*4
  EXPECT_EQ(Call().tensor({3, 5}).tensor({4, 5}).returns({3, 4}).flops("aten::_euclidean_dist"), 168);  // 2*12*7
  const int64_t convolution = 960;  // 2 * 2 * (5*3) * (4*4)
  EXPECT_EQ(
      Call().tensor({2, 3, 4, 4}).tensor({5, 3, 1, 1}).returns({2, 5, 4, 4}).flops("aten::cudnn_convolution_relu"),
      convolution);
  const auto backward = [](Sizes mask) {
    return Call()
        .tensor({2, 5, 4, 4})
        .tensor({2, 3, 4, 4})
        .tensor({5, 3, 1, 1})
        .skip(3)
        .ints(std::move(mask))
        .flops("aten::_slow_conv2d_backward.output_mask");
  };
  EXPECT_EQ(backward({1, 1, 1}), 2 * convolution);
  EXPECT_EQ(backward({0, 1, 0}), convolution);
}

TEST(FlopTable, Factorizations) {
  const auto square = [](std::string_view op) { return Call().tensor({3, 3}).flops(op); };
  EXPECT_EQ(square("aten::_linalg_det"), 18);  // 2/3 * 27
  EXPECT_EQ(square("aten::linalg_lu_factor_ex"), 18);
  EXPECT_EQ(Call().tensor({2, 6, 3}).flops("aten::linalg_lu"), 90);  // 2 * (6*9 - 27/3)
  EXPECT_EQ(Call().tensor({2, 3, 6}).flops("aten::linalg_lu"), 90);
  EXPECT_EQ(square("aten::linalg_inv_ex"), 54);
  EXPECT_EQ(square("aten::linalg_cholesky_ex"), 9);
  EXPECT_EQ(square("aten::linalg_ldl_factor_ex"), 9);
  EXPECT_EQ(square("aten::cholesky_inverse"), 18);
  EXPECT_EQ(square("aten::_linalg_eigh"), 243);                                       // 9 * 27
  EXPECT_EQ(Call().tensor({3, 3}).none().number(0).flops("aten::_linalg_eigh"), 36);  // 4/3 * 27
  EXPECT_EQ(square("aten::linalg_eig"), 675);                                         // 25 * 27
  EXPECT_EQ(square("aten::_linalg_eigvals"), 270);                                    // 10 * 27
  const auto svd = [](Sizes sizes, bool full, bool vectors) {
    return Call().tensor(std::move(sizes)).number(full).number(vectors).flops("aten::_linalg_svd");
  };
  EXPECT_EQ(svd({5, 3}, false, true), 846);  // 14*5*9 + 8*27
  EXPECT_EQ(svd({3, 5}, false, true), 846);
  EXPECT_EQ(svd({5, 3}, true, true), 903);    // 4*25*3 + 8*5*9 + 9*27
  EXPECT_EQ(svd({5, 3}, false, false), 144);  // 4*5*9 - 4/3*27
  const auto qr = [](Sizes q) { return Call().tensor({6, 3}).none().returns(std::move(q)).flops("aten::linalg_qr"); };
  EXPECT_EQ(qr({0}), 90);      // 2*6*9 - 2/3*27
  EXPECT_EQ(qr({6, 3}), 180);  // twice that
  EXPECT_EQ(qr({6, 6}), 342);  // 90 + 4*36*3 - 4*6*9 + 4/3*27
  EXPECT_EQ(Call().tensor({6, 3}).flops("aten::geqrf"), 90);
  EXPECT_EQ(Call().tensor({6, 3}).tensor({3}).flops("aten::linalg_householder_product"), 90);
  EXPECT_EQ(Call().tensor({6, 3}).tensor({3}).tensor({6, 2}).flops("aten::ormqr"), 108);  // 4*6*2*3 - 2*2*9
  EXPECT_EQ(Call().tensor({6, 3}).tensor({3}).tensor({2, 6}).number(0).flops("aten::ormqr"), 108);
  EXPECT_EQ(square("aten::linalg_matrix_exp"), std::nullopt);  // the number of squarings depends on data
  EXPECT_EQ(Call().tensor({3, 4}).flops("aten::linalg_inv_ex"), std::nullopt);
  EXPECT_EQ(Call().tensor({3}).flops("aten::linalg_lu"), std::nullopt);
}

TEST(FlopTable, Solves) {
  const auto solve = [](std::string_view op) { return Call().tensor({3, 3}).tensor({3, 2}).returns({3, 2}).flops(op); };
  EXPECT_EQ(solve("aten::linalg_solve_triangular"), 18);  // 9 * 2
  EXPECT_EQ(solve("aten::linalg_lu_solve"), 36);          // 2 * 9 * 2
  EXPECT_EQ(solve("aten::_linalg_solve_ex"), 54);         // 2/3 * 27 + 36
  EXPECT_EQ(Call().tensor({3, 2}).tensor({3, 3}).returns({3, 2}).flops("aten::cholesky_solve"), 36);
  EXPECT_EQ(Call().tensor({3, 2}).tensor({3, 3}).returns({3, 2}).flops("aten::triangular_solve"), 18);
  // 2*6*9 - 2/3*27, and for each of two sides 4*6*3 - 9
  EXPECT_EQ(Call().tensor({6, 3}).tensor({6, 2}).flops("aten::linalg_lstsq"), 216);
}

TEST(FlopTable, RefusesShapesThatCannotBe) {
  EXPECT_EQ(Call().tensor({3, 5}).tensor({6, 7}).flops("aten::mm"), std::nullopt);
  EXPECT_EQ(Call().tensor({3}).tensor({5, 7}).flops("aten::mm"), std::nullopt);
  EXPECT_EQ(Call().flops("aten::mm"), std::nullopt);
  EXPECT_EQ(Call().none().none().flops("aten::convolution"), std::nullopt);
  EXPECT_EQ(Call().flops("aten::fft_fft"), std::nullopt);
  for (const FlopRow& row : flop_table()) {
    for_each_name(row.names, [](std::string_view name) {
      EXPECT_EQ(Call().flops(full_name(name)), std::nullopt) << name;
      EXPECT_EQ(Call().skip(30).flops(full_name(name)), std::nullopt) << name;
    });
  }
  const int64_t huge = int64_t{1} << 40;
  EXPECT_EQ(Call().tensor({huge, huge}).tensor({huge, huge}).flops("aten::mm"), std::numeric_limits<int64_t>::max());
}

TEST(FlopTable, EveryRowIsNamedOnce) {
  std::set<std::string> names;
  for (const FlopRow& row : flop_table()) {
    for_each_name(row.names, [&](std::string_view name) { EXPECT_TRUE(names.emplace(name).second) << name; });
  }
}

// One JSON object per line: op, args, out, and the FLOPs by PyTorch's formula.
TEST(FlopTable, AgreesWithFlopRegistry) {
  std::ifstream file(SHADOWGRAPH_SOURCE_DIR "/tests/golden/profiler/flop_calls.jsonl");
  ASSERT_TRUE(file) << "tests/golden/profiler/flop_calls.jsonl is missing";
  std::set<std::string> seen;
  size_t calls = 0;
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line);
    Call call;
    for (const auto& argument : json["args"]) {
      if (argument.is_object()) {
        auto sizes = argument["shape"].get<Sizes>();
        call.tensor(sizes.size() == 4 ? as_read(json["op"].get<std::string>(), std::move(sizes)) : sizes);
      } else if (argument.is_array()) {
        Sizes values;
        for (const auto& element : argument) {
          values.push_back(element.is_boolean() ? element.get<bool>() : element.get<int64_t>());
        }
        call.ints(values);
      } else if (argument.is_null()) {
        call.none();
      } else {
        call.number(argument.is_boolean() ? argument.get<bool>() : argument.get<double>());
      }
    }
    for (const auto& result : json["out"]) {
      if (result.is_object()) call.returns(result["shape"].get<Sizes>());
    }
    const auto op = json["op"].get<std::string>();
    ASSERT_EQ(call.flops(op), json["flops"].get<int64_t>()) << line;
    ASSERT_TRUE(find_flop_row(op)->counted_by_pytorch) << op;
    seen.insert(op);
    ++calls;
  }
  EXPECT_GE(calls, 400U);
  for (const FlopRow& row : flop_table()) {
    for_each_name(row.names, [&](std::string_view name) {
      // The calls were recorded with 2.13, which does not count flash attention on CPUs.
      if (kFlopsOfCpuFlashCounted && name.find("flash_attention_for_cpu") != name.npos) return;
      EXPECT_EQ(row.counted_by_pytorch, seen.contains(full_name(name))) << name;
    });
  }
}

}  // namespace
}  // namespace shadowgraph
