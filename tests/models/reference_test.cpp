// Compares tiny models with their Python originals: torchvision, Hugging Face, milesial's U-Net and PyTorch's LSTM
// example. Parameters and inputs are filled by formula on both sides; expected values were printed by
// reference_losses.py (torchvision 0.28.0, transformers 5.23.0, torch 2.13.0).
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "models/registry.h"

namespace shadowgraph::models {
namespace {

struct Reference {
  std::string model;
  double loss;
  double first_gradient;  // 2-norm of the gradient of the first parameter
  double all_gradients;   // 2-norm of the gradients of all parameters
  int64_t classes;        // upper bound of the labels
};

const std::vector<Reference> kReferences = {
    {"resnet18", 2.21212, 1.04534, 3.83559, 10},     {"resnet50", 4.87361, 11.8586, 28.8298, 10},
    {"vit_b_16", 4.24982, 0.259702, 5.84471, 10},    {"bert_base", 4.3875, 0.0143035, 1.87699, 32},
    {"gpt2", 5.10758, 0.580707, 1.2602, 101},        {"llama3_8b", 4.82499, 0.762927, 1.73614, 101},
    {"unet", 0.69438, 0.0113416, 0.076075, 2},       {"lstm_lm", 4.81769, 0.0601093, 0.577272, 101},
    {"deepseek_v3", 4.7868, 0.541597, 1.71309, 101},
};

// Uniform in [-1, 1) and the same in every language: late digits of a sine.
at::Tensor noise(at::IntArrayRef sizes, double seed) {
  const at::Tensor k = torch::arange(c10::multiply_integers(sizes), torch::kDouble);
  return (2 * (((k * 12.9898 + seed).sin() + 1) * 43758.5453).frac() - 1).reshape(sizes).to(torch::kFloat);
}

at::Tensor ids(at::IntArrayRef sizes, int64_t bound) {
  return ((torch::arange(c10::multiply_integers(sizes)) * 7 + 3) % bound).reshape(sizes);
}

class PythonOriginal : public ::testing::TestWithParam<Reference> {};

TEST_P(PythonOriginal, HasTheSameLossAndGradient) {
  BuiltModel model = build(GetParam().model, {.tiny = true, .dropout = 0.0});
  const auto parameters = model.module->parameters();
  {
    torch::NoGradGuard no_grad;
    for (size_t i = 0; i < parameters.size(); ++i) {
      parameters[i].copy_(0.6 * noise(parameters[i].sizes(), static_cast<double>(i + 1)));
    }
  }
  for (size_t i = 0; i < model.inputs.size(); ++i) {
    const std::string& name = model.input_names[i];
    at::Tensor& input = model.inputs[i];
    if (name == "image") {
      input = noise(input.sizes(), 0);
    } else if (name == "input_ids" || name == "labels") {
      input = ids(input.sizes(), name == "labels" ? GetParam().classes : 101);
    }
  }
  const at::Tensor loss = model.loss(model.forward(model.inputs), model.inputs);
  loss.backward();
  double squares = 0;
  for (const at::Tensor& parameter : parameters) {
    squares += std::pow(parameter.grad().norm().item<double>(), 2);
  }
  const Reference& expected = GetParam();
  constexpr double kTolerance = 1e-4;
  EXPECT_NEAR(loss.item<double>(), expected.loss, kTolerance * expected.loss);
  EXPECT_NEAR(parameters[0].grad().norm().item<double>(), expected.first_gradient,
              kTolerance * expected.first_gradient);
  EXPECT_NEAR(std::sqrt(squares), expected.all_gradients, kTolerance * expected.all_gradients);
}

INSTANTIATE_TEST_SUITE_P(Models, PythonOriginal, ::testing::ValuesIn(kReferences),
                         [](const auto& info) { return info.param.model; });

}  // namespace
}  // namespace shadowgraph::models
