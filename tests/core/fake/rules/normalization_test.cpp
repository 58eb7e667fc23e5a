#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/compare_with_eager.h"

namespace shadowgraph::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;

// Common layouts of activations.
std::vector<std::pair<std::string, at::Tensor>> activations(at::ScalarType dtype) {
  const auto options = at::TensorOptions().dtype(dtype);
  return {{"contiguous", at::rand({2, 4, 3, 5}, options)},
          {"channels_last", at::rand({2, 4, 3, 5}, options).contiguous(at::MemoryFormat::ChannelsLast)},
          {"channels_last_3d", at::rand({2, 4, 2, 3, 5}, options).contiguous(at::MemoryFormat::ChannelsLast3d)},
          {"permuted", at::rand({5, 3, 4, 2}, options).permute({3, 2, 1, 0})},
          {"expanded", at::rand({1, 4, 3, 5}, options).expand({2, 4, 3, 5})},
          {"three dimensions", at::rand({2, 4, 5}, options)},
          {"three dimensions, transposed", at::rand({2, 5, 4}, options).transpose(1, 2)},
          {"two dimensions", at::rand({6, 4}, options)},
          {"two dimensions, transposed", at::rand({4, 6}, options).t()},
          {"one pixel", at::rand({2, 4, 1, 1}, options)},
          {"empty batch", at::rand({0, 4, 3, 5}, options)}};
}

struct DtypePair {
  at::ScalarType input;
  at::ScalarType parameters;
};
constexpr DtypePair kDtypes[] = {{at::kFloat, at::kFloat},
                                 {at::kDouble, at::kDouble},
                                 {at::kBFloat16, at::kBFloat16},
                                 {at::kBFloat16, at::kFloat},
                                 {at::kHalf, at::kFloat}};

at::Tensor parameter(c10::IntArrayRef sizes, at::ScalarType dtype, bool requires_grad = true) {
  return at::ones(sizes, at::TensorOptions().dtype(dtype)).requires_grad_(requires_grad);
}

TEST(NormalizationRules, BatchNormAgreesWithEager) {
  for (const DtypePair dtypes : kDtypes) {
    for (const auto& [layout, activation] : activations(dtypes.input)) {
      for (const bool training : {true, false}) {
        for (const bool affine : {true, false}) {
          for (const bool statistics : {true, false}) {
            for (const int differentiated : {0, 1, 2, 3}) {
              const at::Tensor x = activation.detach().requires_grad_((differentiated & 1) != 0);
              const bool weights = (differentiated & 2) != 0;
              const at::Tensor scale = affine ? parameter({4}, dtypes.parameters, weights) : at::Tensor();
              const at::Tensor shift = affine ? parameter({4}, dtypes.parameters, weights) : at::Tensor();
              const at::Tensor mean = statistics ? parameter({4}, dtypes.parameters, false) : at::Tensor();
              const at::Tensor variance = statistics ? parameter({4}, dtypes.parameters, false) : at::Tensor();
              EXPECT_EQ(difference({x, scale, shift, mean, variance},
                                   [&](const Tensors& in) {
                                     return Tensors{
                                         at::batch_norm(in[0], in[1], in[2], in[3], in[4], training, 0.1, 1e-5, true)};
                                   }),
                        "")
                  << layout << ' ' << c10::toString(dtypes.input) << '/' << c10::toString(dtypes.parameters)
                  << " training " << training << " affine " << affine << " statistics " << statistics
                  << " differentiated " << differentiated;
              if (HasFailure()) return;
            }
          }
        }
      }
    }
  }
}

TEST(NormalizationRules, BatchNormVariantsAgreeWithEager) {
  for (const auto& [layout, activation] : activations(at::kFloat)) {
    const Tensors in{activation, parameter({4}, at::kFloat), parameter({4}, at::kFloat),
                     parameter({4}, at::kFloat, false), parameter({4}, at::kFloat, false)};
    const auto check = [&, layout = layout](const char* what, const Program& program) {
      EXPECT_EQ(difference(in, program), "") << what << ' ' << layout;
    };
    if (activation.numel() == 0) continue;
    check("legit", [](const Tensors& in) {
      at::Tensor mean = in[3].clone(), variance = in[4].clone();
      return Tensors{std::get<0>(at::_native_batch_norm_legit(in[0], in[1], in[2], mean, variance, true, 0.1, 1e-5))};
    });
    check("no stats", [](const Tensors& in) {
      return Tensors{std::get<0>(at::_native_batch_norm_legit(in[0], in[1], in[2], true, 0.1, 1e-5))};
    });
    check("no training", [](const Tensors& in) {
      return Tensors{
          std::get<0>(at::_native_batch_norm_legit_no_training(in[0], in[1], in[2], in[3], in[4], 0.1, 1e-5))};
    });
    check("with update", [](const Tensors& in) {
      at::Tensor mean = in[3].clone(), variance = in[4].clone();
      return Tensors{std::get<0>(at::_batch_norm_with_update(in[0], in[1], in[2], mean, variance, 0.1, 1e-5))};
    });
    check("no update", [](const Tensors& in) {
      return Tensors{std::get<0>(at::_batch_norm_no_update(in[0], in[1], in[2], in[3], in[4], 0.1, 1e-5))};
    });
  }
}

TEST(NormalizationRules, LayerAndRmsNormAgreeWithEager) {
  for (const DtypePair dtypes : kDtypes) {
    for (const auto& [layout, activation] : activations(dtypes.input)) {
      for (const size_t count : {size_t{1}, size_t{2}}) {
        const auto normalized = activation.sizes().slice(activation.dim() - count).vec();
        for (const bool affine : {true, false}) {
          for (const bool weights : {true, false}) {
            const at::Tensor x = activation.detach().requires_grad_(true);
            const at::Tensor scale = affine ? parameter(normalized, dtypes.parameters, weights) : at::Tensor();
            const at::Tensor shift = affine ? parameter(normalized, dtypes.parameters) : at::Tensor();
            EXPECT_EQ(difference({x, scale, shift},
                                 [&](const Tensors& in) {
                                   return Tensors{at::layer_norm(in[0], normalized, in[1], in[2], 1e-5, true)};
                                 }),
                      "")
                << "layer norm " << layout << ' ' << c10::toString(dtypes.input) << " affine " << affine;
            EXPECT_EQ(
                difference({x, scale},
                           [&](const Tensors& in) { return Tensors{at::rms_norm(in[0], normalized, in[1], 1e-5)}; }),
                "")
                << "rms norm " << layout << ' ' << c10::toString(dtypes.input) << " affine " << affine;
            if (HasFailure()) return;
          }
        }
      }
    }
  }
}

TEST(NormalizationRules, GroupAndInstanceNormAgreeWithEager) {
  for (const DtypePair dtypes : kDtypes) {
    for (const auto& [layout, activation] : activations(dtypes.input)) {
      for (const bool affine : {true, false}) {
        const at::Tensor x = activation.detach().requires_grad_(true);
        const at::Tensor scale = affine ? parameter({4}, dtypes.parameters) : at::Tensor();
        const at::Tensor shift = affine ? parameter({4}, dtypes.parameters, false) : at::Tensor();
        EXPECT_EQ(
            difference({x, scale, shift},
                       [&](const Tensors& in) { return Tensors{at::group_norm(in[0], 2, in[1], in[2], 1e-5, true)}; }),
            "")
            << "group norm " << layout << ' ' << c10::toString(dtypes.input) << " affine " << affine;
        EXPECT_EQ(difference({x, scale, shift},
                             [&](const Tensors& in) {
                               return Tensors{at::instance_norm(in[0], in[1], in[2], {}, {}, true, 0.1, 1e-5, true)};
                             }),
                  "")
            << "instance norm " << layout << ' ' << c10::toString(dtypes.input) << " affine " << affine;
        if (HasFailure()) return;
      }
    }
  }
}

TEST(NormalizationRules, WeightNormAgreesWithEager) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    for (const int64_t dim : {0, 1, 2}) {
      std::vector<int64_t> norm_sizes(3, 1);
      norm_sizes[static_cast<size_t>(dim)] = 4;
      const at::Tensor v = at::rand({4, 4, 4}, dtype).requires_grad_(true);
      const at::Tensor g = parameter(norm_sizes, dtype);
      EXPECT_EQ(difference({v, g}, [&](const Tensors& in) { return Tensors{at::_weight_norm(in[0], in[1], dim)}; }), "")
          << c10::toString(dtype) << " dim " << dim;
    }
  }
}

TEST(NormalizationRules, ErrorsAreEagersOwn) {
  const at::Tensor x = at::rand({2, 4, 3, 3});
  EXPECT_EQ(difference({x, at::ones({3})},
                       [](const Tensors& in) {
                         return Tensors{at::batch_norm(in[0], in[1], {}, {}, {}, true, 0.1, 1e-5, true)};
                       }),
            "");
  EXPECT_EQ(difference({x, at::ones({4})},
                       [](const Tensors& in) {
                         return Tensors{at::batch_norm(in[0], in[1], {}, {}, {}, false, 0.1, 1e-5, true)};
                       }),
            "");
  EXPECT_EQ(difference({x}, [](const Tensors& in) { return Tensors{at::layer_norm(in[0], {4})}; }), "");
  EXPECT_EQ(difference({x}, [](const Tensors& in) { return Tensors{at::group_norm(in[0], 3)}; }), "");
}

// ---- Fake CUDA: as in native/Normalization.cpp and the kernels in native/cuda and native/cudnn.

Outcome batch_norm_on_cuda(const at::Tensor& x, at::ScalarType parameters, bool training) {
  return run_on_fake_cuda(
      {x.detach().requires_grad_(true), parameter({4}, parameters), parameter({4}, parameters),
       parameter({4}, parameters, false), parameter({4}, parameters, false)},
      [&](const Tensors& in) {
        return Tensors{at::batch_norm(in[0], in[1], in[2], in[3], in[4], training, 0.1, 1e-5, true)};
      });
}

TEST(NormalizationRules, BatchNormOnCudaUsesCudnn) {
  const at::Tensor x = at::rand({2, 4, 3, 5}).contiguous(at::MemoryFormat::ChannelsLast);
  Outcome run = batch_norm_on_cuda(x, at::kFloat, true);
  EXPECT_EQ(run.error, "");
  EXPECT_THAT(run.results_of("aten::cudnn_batch_norm"),
              ElementsAre("Float[2, 4, 3, 5][60, 1, 20, 4]", "Float[4][1]", "Float[4][1]", "Byte[0][1]"));
  EXPECT_THAT(run.results_of("aten::cudnn_batch_norm_backward"),
              ElementsAre("Float[2, 4, 3, 5][60, 1, 20, 4]", "Float[4][1]", "Float[4][1]"));
  // Evaluation uses cuDNN in forward and the native kernel in backward.
  run = batch_norm_on_cuda(x, at::kFloat, false);
  EXPECT_EQ(run.error, "");
  EXPECT_THAT(run.results_of("aten::cudnn_batch_norm"),
              ElementsAre("Float[2, 4, 3, 5][60, 1, 20, 4]", "Float[0][1]", "Float[0][1]", "Byte[0][1]"));
  EXPECT_THAT(run.results_of("aten::native_batch_norm_backward"),
              ElementsAre("Float[2, 4, 3, 5][60, 15, 5, 1]", "Float[4][1]", "Float[4][1]"));
  // Mixed precision: cuDNN handles half with float parameters, but not bfloat16.
  EXPECT_THAT(batch_norm_on_cuda(x.to(at::kHalf), at::kFloat, true).log.names(), Contains("aten::cudnn_batch_norm"));
}

TEST(NormalizationRules, BatchNormOnCudaElsewhereIsNative) {
  const at::Tensor x = at::rand({2, 4, 3, 5});
  Outcome run = batch_norm_on_cuda(x.to(at::kBFloat16), at::kFloat, true);
  EXPECT_EQ(run.error, "");
  EXPECT_THAT(run.results_of("aten::native_batch_norm"),
              ElementsAre("BFloat16[2, 4, 3, 5][60, 15, 5, 1]", "Float[4][1]", "Float[4][1]"));
  EXPECT_THAT(run.results_of("aten::native_batch_norm_backward"),
              ElementsAre("BFloat16[2, 4, 3, 5][60, 15, 5, 1]", "Float[4][1]", "Float[4][1]"));
  // cuDNN does not handle two dimensions.
  run = batch_norm_on_cuda(at::rand({6, 4}), at::kFloat, false);
  EXPECT_THAT(run.results_of("aten::native_batch_norm"),
              ElementsAre("Float[6, 4][4, 1]", "Float[4][1]", "Float[4][1]"));
  // Neither in the operator that selects a backend: the native kernel preserves strides that cuDNN does not.
  const Outcome chosen = run_on_fake_cuda(
      {at::rand({4, 6}).t(), at::rand({4}), at::rand({4}), at::rand({4}), at::rand({4})},
      [](const Tensors& in) {
        at::Tensor mean = in[3];
        at::Tensor variance = in[4];
        return Tensors{std::get<0>(at::_batch_norm_with_update(in[0], in[1], in[2], mean, variance, 0.1, 1e-5))};
      },
      Backward::kNo);
  EXPECT_EQ(chosen.error, "");
  EXPECT_THAT(chosen.results, ElementsAre("Float[6, 4][1, 6]"));
}

TEST(NormalizationRules, LayerNormOnCudaKeepsFloatStatistics) {
  const at::Tensor x = at::rand({2, 3, 8}).to(at::kBFloat16).requires_grad_(true);
  const at::Tensor scale = parameter({8}, at::kBFloat16);
  const Outcome run = run_on_fake_cuda(
      {x, scale}, [](const Tensors& in) { return Tensors{at::layer_norm(in[0], {8}, in[1], in[1], 1e-5, true)}; });
  EXPECT_EQ(run.error, "");
  EXPECT_THAT(run.results_of("aten::native_layer_norm"),
              ElementsAre("BFloat16[2, 3, 8][24, 8, 1]", "Float[2, 3, 1][3, 1, 1]", "Float[2, 3, 1][3, 1, 1]"));
  EXPECT_THAT(run.results_of("aten::native_layer_norm_backward"),
              ElementsAre("BFloat16[2, 3, 8][24, 8, 1]", "BFloat16[8][1]", "BFloat16[8][1]"));
}

TEST(NormalizationRules, RmsNormOnCudaIsOneOperator) {
  const at::Tensor x = at::rand({2, 3, 8}).to(at::kBFloat16).requires_grad_(true);
  const at::Tensor scale = parameter({8}, at::kBFloat16);
  const Program program = [](const Tensors& in) { return Tensors{at::rms_norm(in[0], {8}, in[1], 1e-6)}; };
  const Outcome run = run_on_fake_cuda({x, scale}, program);
  EXPECT_EQ(run.error, "");
  EXPECT_THAT(run.results_of("aten::_fused_rms_norm"),
              ElementsAre("BFloat16[2, 3, 8][24, 8, 1]", "Float[2, 3, 1][3, 1, 1]"));
  EXPECT_THAT(run.results_of("aten::_fused_rms_norm_backward"),
              ElementsAre("BFloat16[2, 3, 8][24, 8, 1]", "BFloat16[8][1]"));
  EXPECT_THAT(run.gradients, ElementsAre("BFloat16[2, 3, 8][24, 8, 1]", "BFloat16[8][1]"));
  const c10::InferenceMode inference;
  EXPECT_THAT(run_on_fake_cuda({at::rand({2, 8}), at::rand({8})}, program, Backward::kNo).log.names(),
              Contains("aten::_fused_rms_norm"));
}

TEST(NormalizationRules, GroupNormOnCudaIsContiguous) {
  const at::Tensor x = at::rand({2, 4, 3, 5}).contiguous(at::MemoryFormat::ChannelsLast).requires_grad_(true);
  const Outcome run = run_on_fake_cuda({x, parameter({4}, at::kFloat)}, [](const Tensors& in) {
    return Tensors{at::group_norm(in[0], 2, in[1], in[1])};
  });
  EXPECT_EQ(run.error, "");
  EXPECT_THAT(run.results_of("aten::native_group_norm"),
              ElementsAre("Float[2, 4, 3, 5][60, 15, 5, 1]", "Float[2, 2][2, 1]", "Float[2, 2][2, 1]"));
}

}  // namespace
}  // namespace shadowgraph::testing
