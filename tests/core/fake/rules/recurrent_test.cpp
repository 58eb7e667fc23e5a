#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/core/compare_with_eager.h"

namespace shadowgraph::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;

struct Layer {
  int64_t input = 5, hidden = 6, layers = 1;
  bool biases = true, bidirectional = false, batch_first = false, train = true;
  double dropout = 0.0;
  int64_t projection = 0;
};

// weight_ih, weight_hh, bias_ih, bias_hh and weight_hr of every layer and direction.
Tensors parameters(const Layer& layer, int64_t gates, at::ScalarType dtype) {
  Tensors all;
  const auto add = [&](c10::IntArrayRef sizes) {
    all.push_back(at::rand(sizes, at::TensorOptions().dtype(dtype)).requires_grad_(true));
  };
  const int64_t directions = layer.bidirectional ? 2 : 1;
  const int64_t output = layer.projection != 0 ? layer.projection : layer.hidden;
  for (int64_t i = 0; i < layer.layers; ++i) {
    for (int64_t d = 0; d < directions; ++d) {
      add({gates * layer.hidden, i == 0 ? layer.input : output * directions});
      add({gates * layer.hidden, output});
      if (layer.biases) {
        add({gates * layer.hidden});
        add({gates * layer.hidden});
      }
      if (layer.projection != 0) add({layer.projection, layer.hidden});
    }
  }
  return all;
}

// input, h, c, parameters...
Tensors operands(const Layer& layer, int64_t gates, at::ScalarType dtype, bool input_requires_grad = true) {
  const auto options = at::TensorOptions().dtype(dtype);
  const int64_t directions = layer.bidirectional ? 2 : 1;
  const int64_t output = layer.projection != 0 ? layer.projection : layer.hidden;
  const at::Tensor x =
      layer.batch_first ? at::rand({4, 3, layer.input}, options) : at::rand({3, 4, layer.input}, options);
  Tensors all{x.requires_grad_(input_requires_grad), at::rand({layer.layers * directions, 4, output}, options),
              at::rand({layer.layers * directions, 4, layer.hidden}, options)};
  for (auto& parameter : parameters(layer, gates, dtype)) all.push_back(parameter);
  return all;
}

Program lstm(const Layer& layer) {
  return [layer](const Tensors& in) {
    const Tensors weights(in.begin() + 3, in.end());
    const auto [output, h, c] = at::lstm(in[0], {in[1], in[2]}, weights, layer.biases, layer.layers, layer.dropout,
                                         layer.train, layer.bidirectional, layer.batch_first);
    return Tensors{output, h, c};
  };
}

using OneState = std::tuple<at::Tensor, at::Tensor> (*)(const at::Tensor&, const at::Tensor&, at::TensorList, bool,
                                                        int64_t, double, bool, bool, bool);
Program one_state(const Layer& layer, OneState function) {
  return [layer, function](const Tensors& in) {
    const Tensors weights(in.begin() + 3, in.end());
    const auto [output, h] = function(in[0], in[1], weights, layer.biases, layer.layers, layer.dropout, layer.train,
                                      layer.bidirectional, layer.batch_first);
    return Tensors{output, h};
  };
}

const std::vector<Layer> kLayers{{},
                                 {.layers = 2},
                                 {.layers = 2, .bidirectional = true},
                                 {.batch_first = true},
                                 {.layers = 2, .bidirectional = true, .batch_first = true},
                                 {.biases = false},
                                 {.layers = 2, .dropout = 0.5},
                                 {.train = false},
                                 {.projection = 3}};

TEST(RecurrentRules, LstmAgreesWithEager) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    for (const Layer& layer : kLayers) {
      for (const bool differentiated : {true, false}) {
        const Tensors in = operands(layer, 4, dtype, differentiated);
        EXPECT_EQ(difference(in, lstm(layer)), "")
            << c10::toString(dtype) << " layers " << layer.layers << " bidirectional " << layer.bidirectional
            << " batch_first " << layer.batch_first << " biases " << layer.biases << " dropout " << layer.dropout
            << " projection " << layer.projection << " input differentiated " << differentiated;
        if (HasFailure()) return;
        const at::NoGradGuard no_grad;
        EXPECT_EQ(difference(in, lstm(layer), Backward::kNo), "");
      }
    }
  }
}

TEST(RecurrentRules, AProcessorWithoutLowPrecisionRunsTheCells) {
  const FakeTensorOptions plain{.profile = DeviceProfile{.cpu = {.mkldnn_bf16 = false, .mkldnn_fp16 = false}}};
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    for (const Layer& layer : kLayers) {
      for (const bool gradients : {true, false}) {
        const at::AutoGradMode grad_mode(gradients);
        const Tensors in = operands(layer, 4, dtype, gradients);
        const Backward backward = gradients ? Backward::kYes : Backward::kNo;
        Outcome real;
        {
          const WithoutOnednn without;
          real = run_real(in, lstm(layer), backward);
        }
        EXPECT_EQ(difference(real, run_fake(in, lstm(layer), backward, plain)), "")
            << c10::toString(dtype) << " layers " << layer.layers << " bidirectional " << layer.bidirectional
            << " batch_first " << layer.batch_first << " biases " << layer.biases << " dropout " << layer.dropout
            << " projection " << layer.projection;
        EXPECT_THAT(real.log.names(), Not(Contains("aten::mkldnn_rnn_layer")));
      }
    }
  }
  EXPECT_NE(run_fake(operands({}, 4, at::kFloat), lstm({}), Backward::kNo, plain).log.find("aten::mkldnn_rnn_layer"),
            nullptr);
}

// float layers are the same on every processor.
TEST(RecurrentRules, AProcessorWithLowPrecisionRunsOnednnsLayers) {
  const FakeTensorOptions able{.profile = DeviceProfile{.cpu = {.mkldnn_bf16 = true, .mkldnn_fp16 = true}}};
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    for (const Layer& layer : kLayers) {
      const at::NoGradGuard no_grad;
      const Outcome real = run_real(operands(layer, 4, at::kFloat, false), lstm(layer), Backward::kNo);
      const Outcome fake = run_fake(operands(layer, 4, dtype, false), lstm(layer), Backward::kNo, able);
      EXPECT_EQ(difference(with_dtype(real, "Float", c10::toString(dtype)), fake), "");
    }
    const Outcome trained = run_fake(operands({}, 4, dtype), lstm({}), Backward::kYes, able);
    EXPECT_EQ(trained.error, "");
    if (dtype == at::kBFloat16) {
      // Seven arrays, a page each: 3 steps of 4 rows of 6 fit in one page.
      EXPECT_EQ(trained.results_of("aten::mkldnn_rnn_layer").at(3), "Byte[28672][1]");
    } else {
      EXPECT_THAT(trained.log.names(), Not(Contains("aten::mkldnn_rnn_layer")));  // not used if gradients are needed
    }
  }
}

// Half of the rounds use bfloat16; if the processor does not support it, both sides throw.
TEST(RecurrentRules, MkldnnWorkspaceIsOneDnnsOwn) {
  constexpr unsigned kSeed = 7;
  std::mt19937 random(kSeed);
  const auto pick = [&](int64_t high) { return std::uniform_int_distribution<int64_t>(1, high)(random); };
  for (int round = 0; round < 100; ++round) {
    const auto dtype = round % 2 == 0 ? at::kFloat : at::kBFloat16;
    const int64_t steps = pick(30), batch = pick(12), input = pick(300), hidden = pick(300);
    const Tensors in{at::zeros({steps, batch, input}, dtype), at::zeros({4 * hidden, input}, dtype),
                     at::zeros({4 * hidden, hidden}, dtype), at::zeros({4 * hidden}, dtype),
                     at::zeros({1, batch, hidden}, dtype)};
    EXPECT_EQ(difference(in,
                         [&](const Tensors& in) {
                           const auto [y, h, c, workspace] =
                               at::mkldnn_rnn_layer(in[0], in[1], in[2], in[3], in[3], in[4], in[4], false, {}, 2,
                                                    hidden, 1, true, false, false, true);
                           return Tensors{y, h, c, workspace};
                         }),
              "")
        << "seed " << kSeed << " steps " << steps << " batch " << batch << " input " << input << " hidden " << hidden;
  }
}

TEST(RecurrentRules, MkldnnLayerThrowsInDtypesThatOnednnDoesNotComputeIn) {
  const Program program = [](const Tensors& in) {
    const auto [y, h, c, workspace] = at::mkldnn_rnn_layer(in[0], in[1], in[2], in[3], in[3], in[4], in[4], false, {},
                                                           2, 6, 1, true, false, false, true);
    return Tensors{y, h, c};
  };
  const at::NoGradGuard no_grad;
  const auto operands = [](at::ScalarType dtype) {
    return Tensors{at::zeros({3, 2, 5}, dtype), at::zeros({24, 5}, dtype), at::zeros({24, 6}, dtype),
                   at::zeros({24}, dtype), at::zeros({1, 2, 6}, dtype)};
  };
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    EXPECT_EQ(difference(operands(dtype), program, Backward::kNo), "") << c10::toString(dtype);
  }
  const FakeTensorOptions plain{.profile = DeviceProfile{.cpu = {.mkldnn_bf16 = false, .mkldnn_fp16 = false}}};
  EXPECT_EQ(run_fake(operands(at::kFloat), program, Backward::kNo, plain).error, "");
  EXPECT_NE(run_fake(operands(at::kBFloat16), program, Backward::kNo, plain).error, "");
}

TEST(RecurrentRules, GruAndPlainRnnAgreeWithEager) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const Layer& layer :
         {Layer{}, Layer{.layers = 2, .bidirectional = true}, Layer{.batch_first = true}, Layer{.biases = false}}) {
      EXPECT_EQ(difference(operands(layer, 3, dtype), one_state(layer, &at::gru)), "") << "gru";
      EXPECT_EQ(difference(operands(layer, 1, dtype), one_state(layer, &at::rnn_tanh)), "") << "tanh";
      EXPECT_EQ(difference(operands(layer, 1, dtype), one_state(layer, &at::rnn_relu)), "") << "relu";
    }
  }
}

TEST(RecurrentRules, CellsAgreeWithEager) {
  const Layer layer;
  const Program cell = [](const Tensors& in) {
    const auto [h, c] =
        at::lstm_cell(in[0].select(0, 0), {in[1].select(0, 0), in[2].select(0, 0)}, in[3], in[4], in[5], in[6]);
    return Tensors{h, c};
  };
  EXPECT_EQ(difference(operands(layer, 4, at::kFloat), cell), "");
  EXPECT_EQ(
      difference(operands(layer, 3, at::kFloat),
                 [](const Tensors& in) {
                   return Tensors{at::gru_cell(in[0].select(0, 0), in[1].select(0, 0), in[3], in[4], in[5], in[6])};
                 }),
      "");
}

// ---- Fake CUDA: native/cudnn/RNN.cpp

TEST(RecurrentRules, LstmOnCudaIsOneCallOfCudnn) {
  const Layer layer{.layers = 2, .bidirectional = true, .batch_first = true};
  const Tensors in = operands(layer, 4, at::kFloat);
  const Outcome run = run_on_fake_cuda(in, lstm(layer));
  EXPECT_EQ(run.error, "");
  // Parameters: 2 directions x (24x5 + 24x6 + 48) + 2 directions x (24x12 + 24x6 + 48) = 1584. Reserve, an estimate:
  // 3 steps x 4 rows x 6 hidden x 2 directions x 2 layers x 6 values x 4 bytes.
  EXPECT_THAT(run.results_of("aten::_cudnn_rnn"),
              ElementsAre("Float[4, 3, 12][12, 48, 1]", "Float[4, 4, 6][24, 6, 1]", "Float[4, 4, 6][24, 6, 1]",
                          "Byte[6912][1]", "Float[1584][1]"));
  EXPECT_THAT(run.log.names(), Not(Contains("aten::mm")));
  const auto backward = run.results_of("aten::_cudnn_rnn_backward");
  ASSERT_EQ(backward.size(), 3 + 16);
  EXPECT_EQ(backward[0], "Float[4, 3, 5][5, 20, 1]");
  EXPECT_EQ(backward[1], "Float[4, 4, 6][24, 6, 1]");
  EXPECT_EQ(backward[3], "Float[24, 5][5, 1]");
  EXPECT_EQ(backward[4], "Float[24, 6][6, 1]+120");
  EXPECT_EQ(backward[5], "Float[24][1]+1392");  // after the matrices: 2 x (120 + 144) + 2 x (288 + 144)
  for (const std::string& gradient : run.gradients) EXPECT_NE(gradient, "not a leaf");
}

TEST(RecurrentRules, OtherLayersOnCuda) {
  Layer layer;
  for (const auto& [gates, function] :
       {std::pair<int64_t, OneState>{3, &at::gru}, {1, &at::rnn_tanh}, {1, &at::rnn_relu}}) {
    const Outcome run = run_on_fake_cuda(operands(layer, gates, at::kHalf), one_state(layer, function));
    EXPECT_EQ(run.error, "");
    EXPECT_EQ(run.results_of("aten::_cudnn_rnn").at(0), "Half[3, 4, 6][24, 6, 1]");
    EXPECT_EQ(run.results_of("aten::_cudnn_rnn").at(2), "Half[0][1]");
    EXPECT_EQ(run.results_of("aten::_cudnn_rnn_backward").at(0), "Half[3, 4, 5][20, 5, 1]");
  }
  layer.projection = 3;
  const Outcome projected = run_on_fake_cuda(operands(layer, 4, at::kFloat), lstm(layer));
  EXPECT_EQ(projected.error, "");
  EXPECT_THAT(projected.results, ElementsAre("Float[3, 4, 3][12, 3, 1] grad", "Float[1, 4, 3][12, 3, 1] grad",
                                             "Float[1, 4, 6][24, 6, 1] grad"));
  layer = {.layers = 2, .dropout = 0.5};
  const Outcome dropped = run_on_fake_cuda(operands(layer, 4, at::kFloat), lstm(layer));
  EXPECT_THAT(dropped.log.names(), Contains("aten::_cudnn_init_dropout_state"));
  // 3 steps x 4 rows x 6 hidden = 72 cells. Each keeps 6 values of 4 bytes in 2 layers, and a bit between the two.
  EXPECT_EQ(dropped.results_of("aten::_cudnn_rnn").at(3), "Byte[3465][1]");
  layer.train = false;
  EXPECT_EQ(
      run_on_fake_cuda(operands(layer, 4, at::kFloat), lstm(layer), Backward::kNo).results_of("aten::_cudnn_rnn").at(3),
      "Byte[0][1]");
}

TEST(RecurrentRules, WithoutCudnnTheFusedCellsRun) {
  const Layer layer;
  const Outcome run = run_on_fake_cuda(operands(layer, 4, at::kFloat), lstm(layer), Backward::kYes, {.cudnn = false});
  EXPECT_EQ(run.error, "");
  EXPECT_THAT(run.results, ElementsAre("Float[3, 4, 6][24, 6, 1] grad", "Float[1, 4, 6][24, 6, 1] grad",
                                       "Float[1, 4, 6][24, 6, 1] grad"));
  EXPECT_THAT(run.results_of("aten::_thnn_fused_lstm_cell"),
              ElementsAre("Float[4, 6][6, 1]", "Float[4, 6][6, 1]", "Float[4, 24][24, 1]"));
  EXPECT_THAT(run.results_of("aten::_thnn_fused_lstm_cell_backward_impl"),
              ElementsAre("Float[4, 24][24, 1]", "Float[4, 6][6, 1]", "Float[24][1]"));
  const Outcome gru =
      run_on_fake_cuda(operands(layer, 3, at::kFloat), one_state(layer, &at::gru), Backward::kYes, {.cudnn = false});
  EXPECT_EQ(gru.error, "");
  EXPECT_THAT(gru.results_of("aten::_thnn_fused_gru_cell"), ElementsAre("Float[4, 6][6, 1]", "Float[4, 30][30, 1]"));
  EXPECT_THAT(
      gru.results_of("aten::_thnn_fused_gru_cell_backward"),
      ElementsAre("Float[4, 18][18, 1]", "Float[4, 18][18, 1]", "Float[4, 6][6, 1]", "Float[18][1]", "Float[18][1]"));
}

TEST(RecurrentRules, FlattenedParametersArePassedAsTheirBuffer) {
  const Layer layer;
  FakeTensorMode mode({.device = at::kCUDA});
  CallLog log;
  Tensors weights;
  for (const at::Tensor& weight : parameters(layer, 4, at::kFloat)) weights.push_back(at::empty(weight.sizes()));
  const at::Tensor buffer = at::_cudnn_rnn_flatten_weight(weights, 4, 5, 2, 6, 0, 1, false, false);
  EXPECT_EQ(buffer.numel(), 24 * 5 + 24 * 6 + 48);
  for (const at::Tensor& weight : weights) EXPECT_TRUE(weight.is_alias_of(buffer));
  EXPECT_EQ(described(weights[3]), "Float[24][1]+288");
  state_of(mode).observer = &log;
  const at::Tensor state = at::empty({1, 4, 6});
  at::lstm(at::empty({3, 4, 5}), {state, state}, weights, true, 1, 0.0, true, false, false);
  const Call* call = log.find("aten::_cudnn_rnn");
  ASSERT_NE(call, nullptr);
  EXPECT_EQ(call->results.at(4), "Float[312][1]");
  EXPECT_THAT(log.names(), Contains("aten::as_strided"));
}

}  // namespace
}  // namespace shadowgraph::testing
