#include "core/libtorch/attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/operators/schema_changes.h"
#include "tests/core/compare_with_eager.h"

namespace shadowgraph::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;

struct Options {
  at::Tensor mask;
  double dropout = 0.0;
  bool causal = false;
  bool gqa = false;
};

Program attention(const Options& options) {
  return [options](const Tensors& in) {
    const at::Tensor& mask = in.size() > 3 ? in[3] : at::Tensor();
    return Tensors{at::scaled_dot_product_attention(in[0], in[1], in[2],
                                                    mask.defined() ? std::optional<at::Tensor>(mask) : std::nullopt,
                                                    options.dropout, options.causal, std::nullopt, options.gqa)};
  };
}

at::Tensor leaf(const at::Tensor& tensor) { return tensor.detach().requires_grad_(true); }

at::Tensor operand(c10::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
  return at::rand(sizes, at::TensorOptions().dtype(dtype)).requires_grad_(true);
}

// Returns a [B, H, S, D] transposed view, as attention layers create it.
at::Tensor transposed_operand(c10::IntArrayRef s, at::ScalarType dtype = at::kFloat) {
  return leaf(at::rand({s[0], s[2], s[1], s[3]}, at::TensorOptions().dtype(dtype)).transpose(1, 2));
}

void expect_agreement(const char* what, const Tensors& in, const Options& options = {}) {
  Tensors operands = in;
  if (options.mask.defined()) operands.push_back(options.mask);
  EXPECT_EQ(difference(operands, attention(options)), "") << what;
}

TEST(AttentionRules, OnCpuAgreesWithEager) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    SCOPED_TRACE(c10::toString(dtype));
    const Tensors in{operand({2, 3, 5, 8}, dtype), operand({2, 3, 7, 8}, dtype), operand({2, 3, 7, 8}, dtype)};
    expect_agreement("plain", in);
    expect_agreement("causal", in, {.causal = true});
    expect_agreement("float mask", in, {.mask = at::rand({5, 7}, in[0].options().requires_grad(false))});
    expect_agreement("bool mask", in, {.mask = at::ones({2, 1, 5, 7}, at::kBool)});
    expect_agreement("mask over heads", in, {.mask = at::rand({2, 3, 5, 7}, at::kFloat)});
    expect_agreement("mask with a gradient", in, {.mask = operand({5, 7}, dtype)});
    expect_agreement("dropout", in, {.dropout = 0.25});
    expect_agreement("transposed views",
                     {transposed_operand({2, 3, 5, 8}, dtype), transposed_operand({2, 3, 7, 8}, dtype),
                      transposed_operand({2, 3, 7, 8}, dtype)});
    expect_agreement("grouped queries", {operand({2, 6, 5, 8}, dtype), in[1], in[2]}, {.gqa = true});
    expect_agreement("values of another size", {in[0], in[1], operand({2, 3, 7, 6}, dtype)});
    expect_agreement("three dimensions",
                     {operand({3, 5, 8}, dtype), operand({3, 7, 8}, dtype), operand({3, 7, 8}, dtype)});
    expect_agreement("expanded", {leaf(at::rand({1, 3, 5, 8}, at::TensorOptions().dtype(dtype)).expand({2, 3, 5, 8})),
                                  in[1], in[2]});
    expect_agreement("only values differentiated", {in[0].detach(), in[1].detach(), in[2]});
    expect_agreement("inference", {in[0].detach(), in[1].detach(), in[2].detach()});
    expect_agreement("no batch",
                     {operand({0, 3, 5, 8}, dtype), operand({0, 3, 7, 8}, dtype), operand({0, 3, 7, 8}, dtype)});
    expect_agreement("no keys",
                     {operand({2, 3, 5, 8}, dtype), operand({2, 3, 0, 8}, dtype), operand({2, 3, 0, 8}, dtype)});
    // Packed projections are not dense.
    const at::Tensor packed = at::rand({2, 5, 3, 3, 8}, at::TensorOptions().dtype(dtype));
    const auto part = [&](int64_t i) { return leaf(packed.select(2, i).transpose(1, 2)); };
    expect_agreement("packed", {part(0), part(1), part(2)});
  }
}

// OperatorInfo checks a rule's C++ signature against the schema on first use; this test uses every operator.
TEST(AttentionRules, EveryRuleOfTheProcessFitsItsOperator) {
  for (const std::string& full : operators_with_rule()) {
    if (full == "_c10d_functional::_wrap_tensor_autograd") continue;  // defined in Python when it is imported
    const size_t dot = full.find('.');
    const auto op = c10::Dispatcher::singleton().findSchema(
        {full.substr(0, dot), dot == std::string::npos ? "" : full.substr(dot + 1)});
    if (!op && (!why_removed(full).empty() || !operator_in_this_libtorch(full).empty())) continue;
    ASSERT_TRUE(op.has_value()) << full << " is not a registered operator";
    EXPECT_NO_THROW(OperatorInfo::of(*op)) << full;
  }
}

TEST(AttentionRules, ChoiceOnCpuIsEagers) {
  const at::Tensor q = at::rand({2, 3, 5, 8});
  const auto choose = [](const Tensors& in) {
    return Tensors{at::scalar_tensor(
        at::_fused_sdp_choice(in[0], in[0], in[1], in.size() > 2 ? std::optional<at::Tensor>(in[2]) : std::nullopt))};
  };
  for (const Tensors& in : {Tensors{q, q}, Tensors{q, at::rand({2, 3, 5, 6})}, Tensors{q, q, at::rand({5, 5})},
                            Tensors{q, q, operand({5, 5})}}) {
    EXPECT_EQ(difference(in, choose, Backward::kNo), "");
  }
}

TEST(AttentionRules, FastPathsAgreeWithEager) {
  const Tensors in{at::rand({2, 5, 12}), at::rand({36, 12}), at::rand({36}),     at::rand({12, 12}), at::rand({12}),
                   at::rand({24, 12}),   at::rand({24}),     at::rand({12, 24}), at::rand({12})};
  for (const bool weights : {false, true}) {
    for (const bool average : {false, true}) {
      EXPECT_EQ(difference(
                    in,
                    [&](const Tensors& in) {
                      const auto [out, scores] = at::_native_multi_head_attention(
                          in[0], in[0], in[0], 12, 3, in[1], in[2], in[3], in[4], {}, weights, average);
                      return Tensors{out, scores};
                    },
                    Backward::kNo),
                "");
    }
  }
  EXPECT_EQ(difference(
                in,
                [](const Tensors& in) {
                  return Tensors{at::_transformer_encoder_layer_fwd(in[0], 12, 3, in[1], in[2], in[3], in[4], true,
                                                                    false, 1e-5, in[4], in[4], in[4], in[4], in[5],
                                                                    in[6], in[7], in[8])};
                },
                Backward::kNo),
            "");
}

TEST(AttentionRules, ErrorsAreEagersOwn) {
  const at::Tensor q = at::rand({2, 3, 5, 8});
  for (const Tensors& in : {Tensors{q, q, q.to(at::kDouble)}, Tensors{q, q, at::rand({8})},
                            Tensors{q, q, q, at::ones({5, 5}, at::kLong)}}) {
    const Outcome real = run_real(in, attention({}));
    EXPECT_NE(real.error, "");
    EXPECT_EQ(run_fake(in, attention({})).error, real.error);
    EXPECT_EQ(run_on_fake_cuda(in, attention({})).error, real.error);
  }
}

// ---- Fake CUDA: kernel selection as in native/transformers/cuda/sdp_utils.cpp

constexpr const char* kFlash = "aten::_scaled_dot_product_flash_attention";
constexpr const char* kEfficient = "aten::_scaled_dot_product_efficient_attention";
constexpr const char* kCudnn = "aten::_scaled_dot_product_cudnn_attention";
constexpr const char* kMath = "aten::_safe_softmax";

std::string kernel_of(const Outcome& run) {
  if (!run.error.empty()) return run.error;
  for (const char* name : {kFlash, kEfficient, kCudnn, kMath}) {
    if (run.log.find(name) != nullptr) return name;
  }
  return "none";
}

std::string kernel(const Tensors& in, const Options& options, const DeviceProfile& profile) {
  Tensors operands = in;
  if (options.mask.defined()) operands.push_back(options.mask);
  return kernel_of(run_on_fake_cuda(operands, attention(options), Backward::kYes, profile));
}

Tensors same(c10::IntArrayRef sizes, at::ScalarType dtype) {
  return {operand(sizes, dtype), operand(sizes, dtype), operand(sizes, dtype)};
}

TEST(AttentionRules, CudaPicksEagersKernel) {
  const DeviceProfile a100 = DeviceProfile::a100();
  const DeviceProfile h100 = DeviceProfile::h100();
  const auto bf16 = at::kBFloat16;
  const Tensors in = same({2, 4, 16, 64}, bf16);
  EXPECT_EQ(kernel(in, {}, a100), kFlash);
  EXPECT_EQ(kernel(in, {}, h100), kCudnn);
  EXPECT_EQ(kernel(in, {.causal = true}, a100), kFlash);
  EXPECT_EQ(kernel(same({2, 4, 16, 64}, at::kFloat), {}, a100), kEfficient);
  EXPECT_EQ(kernel(same({2, 4, 16, 64}, at::kFloat), {}, h100), kEfficient);
  EXPECT_EQ(kernel(same({2, 4, 16, 64}, at::kDouble), {}, a100), kMath);
  EXPECT_EQ(kernel(same({4, 16, 64}, bf16), {}, a100), kAttentionAddsBatch ? kFlash : kMath);
  EXPECT_EQ(kernel(same({16, 64}, bf16), {}, a100), kMath);
  // Flash attention does not support masks; cuDNN does, but not their gradient.
  EXPECT_EQ(kernel(in, {.mask = at::ones({16, 16}, at::kBool)}, a100), kEfficient);
  EXPECT_EQ(kernel(in, {.mask = at::ones({16, 16}, at::kBool)}, h100), kCudnn);
  EXPECT_EQ(kernel(in, {.mask = operand({16, 16}, bf16)}, h100), kEfficient);
  // Causal attention with different query and key lengths.
  const Tensors longer{operand({2, 4, 8, 64}, bf16), operand({2, 4, 16, 64}, bf16), operand({2, 4, 16, 64}, bf16)};
  EXPECT_EQ(kernel(longer, {}, a100), kFlash);
  EXPECT_EQ(kernel(longer, {.causal = true}, a100), kEfficient);
  // Head dimensions.
  EXPECT_EQ(kernel(same({2, 4, 16, 256}, bf16), {}, a100), kFlash);
  EXPECT_EQ(kernel(same({2, 4, 16, 256}, bf16), {}, h100), kCudnnAttentionTakesWideHeads ? kCudnn : kFlash);
  EXPECT_EQ(kernel(same({2, 4, 16, 256}, bf16), {}, {.cudnn_version = 92100}), kFlash);
  EXPECT_EQ(kernel(same({2, 4, 16, 160}, bf16), {}, h100), kFlash);  // inference only
  const Tensors deep{operand({2, 4, 16, 192}, bf16), operand({2, 4, 16, 192}, bf16), operand({2, 4, 16, 128}, bf16)};
  EXPECT_EQ(kernel(deep, {}, h100), kCudnn);
  EXPECT_EQ(kernel(deep, {}, a100), kEfficient);
  EXPECT_EQ(kernel(same({2, 4, 16, 264}, bf16), {}, a100), kEfficient);
  EXPECT_EQ(kernel(same({2, 4, 16, 60}, bf16), {}, h100), kFlash);
  EXPECT_EQ(kernel(same({2, 4, 16, 6}, at::kFloat), {}, a100), kMath);
  EXPECT_EQ(kernel({in[0], in[1], operand({2, 4, 16, 32}, bf16)}, {}, a100), kEfficient);
  // Grouped-query attention.
  const Tensors grouped{operand({2, 8, 16, 64}, bf16), in[1], in[2]};
  EXPECT_EQ(kernel(grouped, {.gqa = true}, a100), kFlash);
  EXPECT_EQ(kernel(grouped, {.gqa = true}, h100), kCudnn);
  EXPECT_EQ(kernel({operand({2, 8, 16, 64}), operand({2, 4, 16, 64}), operand({2, 4, 16, 64})}, {.gqa = true}, a100),
            kEfficientAttentionTakesGroups ? kEfficient : kMath);
  const Tensors one{operand({2, 8, 16, 64}, bf16), operand({2, 1, 16, 64}, bf16), operand({2, 1, 16, 64}, bf16)};
  EXPECT_EQ(kernel(one, {}, a100), kAttentionAddsBatch ? kFlash : kMath);
  // Operands whose data is not aligned for vector loads.
  const auto shifted = [&](int64_t by) {
    return leaf(operand({2 * 4 * 16 * 64 + by}).slice(0, by).view({2, 4, 16, 64}));
  };
  EXPECT_EQ(kernel({shifted(4), shifted(4), shifted(8)}, {}, a100), kEfficient);
  EXPECT_EQ(kernel({shifted(4), shifted(1), shifted(8)}, {}, a100),
            kEfficientAttentionWantsAlignment ? kMath : kEfficient);
  // Older and newer GPUs.
  EXPECT_EQ(kernel(same({2, 4, 16, 64}, at::kHalf), {}, {.sm_major = 7, .sm_minor = 5}), kEfficient);
  EXPECT_EQ(kernel(in, {}, {.sm_major = 7, .sm_minor = 5}), kMath);
  EXPECT_EQ(kernel(same({2, 4, 16, 200}, bf16), {}, {.sm_major = 8, .sm_minor = 9}), kEfficient);
  EXPECT_EQ(kernel(in, {}, {.cudnn_attention = false}), kFlash);
  EXPECT_EQ(kernel(in, {}, {.flash_attention = false, .cudnn_attention = false}), kEfficient);
  EXPECT_EQ(kernel(in, {}, {.flash_attention = false, .efficient_attention = false, .cudnn_attention = false}), kMath);
  // cuDNN supports only multiples of 1/16 as dropout probability
  EXPECT_EQ(kernel(in, {.dropout = 0.1}, h100), kFlash);
  EXPECT_EQ(kernel(in, {.dropout = 0.125}, h100), kCudnn);
  EXPECT_EQ(kernel(same({0, 4, 16, 64}, bf16), {}, h100), "none");
}

TEST(AttentionRules, ChoiceOperatorAnswersForTheProfile) {
  FakeTensorMode mode({.device = at::kCUDA, .profile = DeviceProfile::a100()});
  const at::Tensor q = at::empty({2, 4, 16, 64}, at::kBFloat16);
  EXPECT_EQ(at::_fused_sdp_choice(q, q, q), static_cast<int64_t>(at::SDPBackend::flash_attention));
  EXPECT_EQ(at::_fused_sdp_choice(q, q, q, at::empty({16, 16}, at::kBFloat16)),
            static_cast<int64_t>(at::SDPBackend::efficient_attention));
}

TEST(AttentionRules, FlashOnCuda) {
  const Tensors in{transposed_operand({2, 4, 16, 60}, at::kBFloat16), transposed_operand({2, 4, 24, 60}, at::kBFloat16),
                   transposed_operand({2, 4, 24, 60}, at::kBFloat16)};
  const Outcome run = run_on_fake_cuda(in, attention({}), Backward::kYes, DeviceProfile::a100());
  EXPECT_EQ(run.error, "");
  // Head dimension 60 is padded to 64, which makes the operands contiguous; the output has the layout of the padded
  // query.
  EXPECT_THAT(run.results_of(kFlash),
              ElementsAre("BFloat16[2, 4, 16, 64][4096, 1024, 64, 1]", "Float[2, 4, 16][64, 16, 1]", "undefined",
                          "undefined", "16", "24", "UInt64[2][1]", "UInt64[][]", "BFloat16[0][1]"));
  EXPECT_THAT(run.results, ElementsAre("BFloat16[2, 4, 16, 60][4096, 1024, 64, 1] grad"));
  EXPECT_THAT(run.results_of("aten::_scaled_dot_product_flash_attention_backward"),
              ElementsAre("BFloat16[2, 4, 16, 64][4096, 1024, 64, 1]", "BFloat16[2, 4, 24, 64][6144, 1536, 64, 1]",
                          "BFloat16[2, 4, 24, 64][6144, 1536, 64, 1]"));
  // Without padding, everything stays [B, S, H, D].
  const Tensors wide{transposed_operand({2, 4, 16, 64}, at::kBFloat16),
                     transposed_operand({2, 4, 24, 64}, at::kBFloat16),
                     transposed_operand({2, 4, 24, 64}, at::kBFloat16)};
  const Outcome unpadded = run_on_fake_cuda(wide, attention({}), Backward::kYes, DeviceProfile::a100());
  EXPECT_THAT(unpadded.results, ElementsAre("BFloat16[2, 4, 16, 64][4096, 64, 256, 1] grad"));
  EXPECT_THAT(unpadded.gradients,
              ElementsAre("BFloat16[2, 4, 16, 64][4096, 64, 256, 1]", "BFloat16[2, 4, 24, 64][6144, 64, 256, 1]",
                          "BFloat16[2, 4, 24, 64][6144, 64, 256, 1]"));
}

TEST(AttentionRules, EfficientOnCuda) {
  const Tensors in{operand({2, 4, 40, 16}), operand({2, 4, 24, 16}), operand({2, 4, 24, 32}),
                   at::rand({40, 23}).narrow(1, 0, 23).requires_grad_(true)};
  Tensors cut{in[0], operand({2, 4, 23, 16}), operand({2, 4, 23, 32}), in[3]};
  const Outcome run = run_on_fake_cuda(cut, attention({}));
  EXPECT_EQ(run.error, "");
  EXPECT_THAT(run.results_of(kEfficient), ElementsAre("Float[2, 4, 40, 32][5120, 32, 128, 1]",
                                                      "Float[2, 4, 64][256, 64, 1]", "Long[][]", "Long[][]"));
  // Rows of 23 are padded to 24 for the kernel; the gradient of the expanded bias has rows of 32.
  EXPECT_THAT(run.results_of("aten::constant_pad_nd"), ElementsAre("Float[40, 24][24, 1]"));
  EXPECT_THAT(run.results_of("aten::_scaled_dot_product_efficient_attention_backward"),
              ElementsAre("Float[2, 4, 40, 16][2560, 16, 64, 1]", "Float[2, 4, 23, 16][1472, 16, 64, 1]",
                          "Float[2, 4, 23, 32][2944, 32, 128, 1]", "Float[2, 4, 40, 23][5120, 1280, 32, 1]"));
  EXPECT_THAT(run.gradients.back(), "Float[40, 23][23, 1]");
  // Without gradients, logsumexp is not computed.
  const Outcome inference =
      run_on_fake_cuda({cut[0].detach(), cut[1].detach(), cut[2].detach()}, attention({}), Backward::kNo);
  EXPECT_THAT(inference.results_of(kEfficient).at(1), "Float[2, 4, 0][4, 1, 1]");
}

TEST(AttentionRules, CudnnOnCuda) {
  const Tensors in{transposed_operand({2, 4, 16, 64}, at::kBFloat16), operand({2, 4, 24, 64}, at::kBFloat16),
                   operand({2, 4, 24, 32}, at::kBFloat16)};
  const Outcome run = run_on_fake_cuda(in, attention({}));
  EXPECT_EQ(run.error, "");
  EXPECT_THAT(run.results_of(kCudnn),
              ElementsAre("BFloat16[2, 4, 16, 32][2048, 32, 128, 1]", "Float[2, 4, 16, 1][64, 16, 1, 1]", "undefined",
                          "undefined", "16", "24", "Long[][]", "Long[][]", "undefined"));
  EXPECT_THAT(run.results_of("aten::_scaled_dot_product_cudnn_attention_backward"),
              ElementsAre("BFloat16[2, 4, 16, 64][4096, 64, 256, 1]", "BFloat16[2, 4, 24, 64][6144, 1536, 64, 1]",
                          "BFloat16[2, 4, 24, 32][3072, 768, 32, 1]"));
}

}  // namespace
}  // namespace shadowgraph::testing
