// Hand-computed costs of a ViT-B/16 training step with batch 8. ColossalAI's analyzer documents the same model; it
// counts multiply-accumulates, half of our FLOPs, and agrees where it gives values (patches, MLP, head).
#include <gtest/gtest.h>

#include "models/program.h"
#include "models/registry.h"
#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/profile/profile.h"

namespace shadowgraph {
namespace {

constexpr int64_t kBatch = 8, kPatches = 196, kTokens = kPatches + 1, kWidth = 768, kHidden = 4 * kWidth, kHeads = 12,
                  kClasses = 1000, kBlocks = 12, kFloat = 4;
constexpr int64_t kRows = kBatch * kTokens;
constexpr int64_t kTensor = kRows * kWidth * kFloat;  // bytes of the residual stream
constexpr int64_t kMoments = 2 * kRows * kFloat;      // mean and rstd of a layer norm
static_assert(kTensor == 4'841'472 && kMoments == 12'608);

class VitByHand : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const FakeTensorMode mode({.device = at::kCPU});
    const auto model = models::build("vit_b_16", {.batch = kBatch, .training = true});
    graph_ = new Graph(capture_training_step(models::program_of(model)).graph);
    costs_ = new Profile(profile(*graph_));
  }
  static void TearDownTestSuite() {
    delete std::exchange(costs_, nullptr);
    delete std::exchange(graph_, nullptr);
  }
  static const GroupCosts& of(const std::string& path) {
    for (const ModuleProfile& module : costs_->modules) {
      if (module.path == path) return module.figures;
    }
    throw std::out_of_range(path);
  }
  static Graph* graph_;
  static Profile* costs_;
};
Graph* VitByHand::graph_ = nullptr;
Profile* VitByHand::costs_ = nullptr;

TEST_F(VitByHand, FlopsOfPatchesBlocksAndHead) {
  // 924.84 M multiply-accumulates; the image requires no gradient, so backward computes only the weight's.
  constexpr int64_t kPatchMacs = kWidth * kPatches * (3 * 16 * 16) * kBatch;
  static_assert(kPatchMacs == 924'844'032);
  EXPECT_EQ(of("conv_proj").forward_flops.matmul, 2 * kPatchMacs);
  EXPECT_EQ(of("conv_proj").backward_flops.matmul, 2 * kPatchMacs);

  constexpr int64_t kProjection = kRows * kWidth * kWidth;       // 929.56 M each for query, key, value and output
  constexpr int64_t kPerceptron = 2 * kRows * kWidth * kHidden;  // 3.718 G for both
  // 238.44 M, and again for scores times values
  constexpr int64_t kScores = kBatch * kHeads * kTokens * kTokens * (kWidth / kHeads);
  const GroupCosts& block = of("encoder.layers.encoder_layer_3");
  EXPECT_EQ(block.forward_flops.matmul, 2 * (4 * kProjection + kPerceptron + 2 * kScores));
  // Both gradients of each product; attention recomputes its scores.
  EXPECT_EQ(block.backward_flops.matmul, 2 * (2 * (4 * kProjection + kPerceptron) + 5 * kScores));

  EXPECT_EQ(of("heads.head").forward_flops.matmul, 2 * kBatch * kWidth * kClasses);
  EXPECT_EQ(of("heads.head").backward_flops.matmul, 4 * kBatch * kWidth * kClasses);
  EXPECT_EQ(of("encoder.ln").forward_flops.elementwise, 5 * kRows * kWidth);
}

TEST_F(VitByHand, BytesThatAutogradKeeps) {
  // The block's input, normalized input, query, key and value, and attention result; the residual sum, its normalized
  // form, and the hidden layer before and after GELU.
  constexpr int64_t kBlock =
      (1 + 1 + 3 + 1 + 1 + 1 + 4 + 4) * kTensor + 2 * kMoments + kBatch * kHeads * kTokens * kFloat;
  constexpr int64_t kLastNorm = kTensor + kMoments;  // the last block's result
  constexpr int64_t kHead = kTensor;  // the first token of each image keeps the whole normalized tensor alive
  constexpr int64_t kLoss = kBatch * kClasses * kFloat + kFloat;  // log probabilities, and the sum of weights
  EXPECT_EQ(of("encoder.layers.encoder_layer_3").incremental, kBlock);
  EXPECT_EQ(of("encoder.ln").incremental, kLastNorm);
  EXPECT_EQ(of("heads.head").incremental, kHead);
  EXPECT_EQ(costs_->saved.activations, kBlocks * kBlock + kLastNorm + kHead + kLoss);
}

TEST_F(VitByHand, ParametersAndThePeak) {
  constexpr int64_t kBlock = 4 * kWidth * kWidth + 4 * kWidth + 2 * kWidth * kHidden + kHidden + kWidth + 4 * kWidth;
  constexpr int64_t kAll =
      kWidth * 768 + kWidth + kWidth + kTokens * kWidth + kBlocks * kBlock + 2 * kWidth + kWidth * kClasses + kClasses;
  static_assert(kAll == 86'567'656);
  EXPECT_EQ(costs_->size.parameters, kAll);
  // All saved tensors are live when backward begins, besides parameters and inputs.
  const int64_t inputs = costs_->peak.by_kind[static_cast<size_t>(StorageKind::kInput)];
  EXPECT_EQ(inputs, kBatch * (3 * 224 * 224 * kFloat + 8)) << "images and labels";
  EXPECT_GE(costs_->peak.bytes,
            kAll * kFloat + inputs + costs_->saved.activations - kBatch * kClasses * kFloat - 2 * kTensor);
}

}  // namespace
}  // namespace shadowgraph
