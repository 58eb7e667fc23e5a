// Data-dependent values that the program reads on the host: given by the user and noted in the graph; otherwise the
// error names the option.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/text.h"

namespace shadowgraph {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::vector<std::string> host_values(const Graph& graph) {
  std::vector<std::string> values;
  for (const Guard& guard : graph.guards) {
    if (guard.kind == Guard::Kind::kHostValue) values.push_back(guard.observed);
  }
  return values;
}

TEST(HostReads, WithoutAnAnswerTheErrorNamesTheOption) {
  const FakeTensorMode mode;
  EXPECT_THAT([] { at::rand({}).item(); },
              ThrowsMessage<DataDependentError>(AllOf(HasSubstr("host_reads"), HasSubstr("\"item0\""),
                                                      HasSubstr("\"float\""), HasSubstr("\"finite\""))));
  EXPECT_THAT([] { (at::rand({}) > 1).item(); }, ThrowsMessage<DataDependentError>(HasSubstr("\"bool\"")));
  // A refused read gets the same name when it is retried.
  EXPECT_THAT([] { at::rand({}).item(); }, ThrowsMessage<DataDependentError>(HasSubstr("\"item0\"")));
}

TEST(HostReads, AreAnsweredByNameThenFunctionThenKind) {
  std::vector<std::string> asked;
  FakeTensorOptions options;
  options.host_reads.values = {{"item1", 2.5}, {"bool", false}, {"int", 4}};
  options.host_reads.hint = [&](const HostReadQuery& question) -> std::optional<c10::Scalar> {
    asked.push_back(question.name + " " + question.op);
    EXPECT_TRUE(is_fake(question.tensor));
    return question.name == "item0" ? std::optional<c10::Scalar>(7.0) : std::nullopt;
  };
  const FakeTensorMode mode(options);
  EXPECT_EQ(at::rand({}).item<float>(), 7);
  EXPECT_EQ(at::rand({}).item<float>(), 2.5F);
  EXPECT_FALSE((at::rand({}) > 1).item<bool>());
  EXPECT_EQ(at::randint(9, {}, at::kLong).item<int64_t>(), 4);
  EXPECT_FALSE(at::equal(at::rand({2}), at::rand({2})));
  EXPECT_THAT(asked, ElementsAre("item0 aten::_local_scalar_dense", "item2 aten::_local_scalar_dense",
                                 "item3 aten::_local_scalar_dense", "equal0 aten::equal"));
}

TEST(HostReads, AnAnswerOfAnotherKindIsRefused) {
  const FakeTensorMode mode({.host_reads = {.values = {{"item0", 0.5}}}});
  EXPECT_THAT([] { (at::rand({}) > 1).item(); }, ThrowsMessage<Error>(HasSubstr("must be true or false")));
}

TEST(HostReads, FiniteMeansNoInfinityAndNoNaN) {
  const FakeTensorMode mode({.device = at::kCUDA, .host_reads = {.finite = true}});
  const at::Tensor x = at::rand({3, 5000});
  EXPECT_TRUE(at::isfinite(x).all().item<bool>());
  EXPECT_FALSE(at::isnan(x).any().item<bool>());
  EXPECT_FALSE(at::isinf(x).any().item<bool>());
  EXPECT_EQ(x.norm().item<float>(), 1);
  EXPECT_THROW((x > 0.5).all().item(), DataDependentError);  // does not cover this read
  at::Tensor found = at::zeros({});
  const at::Tensor scale = at::full({}, 2.0);
  at::_amp_foreach_non_finite_check_and_unscale_(x, found, scale);
  EXPECT_EQ(found.item<float>(), 0);
  torch::nn::Linear net(4, 2);
  net->forward(at::rand({3, 4})).sum().backward();
  EXPECT_EQ(torch::nn::utils::clip_grad_norm_(net->parameters(), 1.0), 1);
}

TEST(HostReads, AreNotedAsGuards) {
  CaptureOptions options;
  options.mode.host_reads = {.values = {{"item0", true}}, .finite = true};
  Capture session(options);
  const at::Tensor x = at::rand({2});
  EXPECT_TRUE((x > 1).all().item<bool>());
  EXPECT_EQ(x.sum().item<float>(), 1);
  EXPECT_TRUE(at::equal(x, x));
  const Graph graph = session.finish({x});
  EXPECT_THAT(host_values(graph),
              ElementsAre("item0 = true", "item1 = 1, assumed finite", "equal0 = true, itself, assumed without NaN"));
  EXPECT_EQ(to_text(parse(to_text(graph))), to_text(graph));
}

TEST(HostReads, MasksAreFull) {
  CaptureOptions options;
  options.mode.host_reads.masks_full = true;
  Capture session(options);
  const at::Tensor mask = at::empty({4, 4000}, at::kLong);
  const at::Tensor other = at::empty({4, 4000}, at::kLong);
  const at::Tensor keep = at::empty({4, 4000}, at::kBool);
  session.name_input(mask, "attention_mask");
  session.name_input(other, "token_ids");
  session.name_input(keep, "keep");
  EXPECT_TRUE((mask == 1).all().item<bool>());
  EXPECT_EQ(at::rand({4, 4000}).masked_select(keep).size(0), 16000);
  EXPECT_EQ((at::rand({3}) > 0).nonzero().size(0), 3);  // this also covers tensors derived from the data
  EXPECT_THROW((other == 1).all().item(), DataDependentError);
}

TEST(HostReads, WhatAKnownOperandDecidesIsKnown) {
  const FakeTensorMode mode;
  const at::Tensor unknown = at::rand({3}) > 0.5;
  EXPECT_FALSE((unknown & at::zeros({3}, at::kBool)).any().item<bool>());
  EXPECT_TRUE((unknown | at::ones({3}, at::kBool)).all().item<bool>());
  EXPECT_EQ((at::randint(9, {3}, at::kLong) & at::zeros({3}, at::kLong)).max().item<int64_t>(), 0);
  EXPECT_THROW((unknown & at::ones({3}, at::kBool)).any().item(), DataDependentError);
  EXPECT_THROW((unknown | torch::tensor({true, false, true})).all().item(), DataDependentError);
}

TEST(HostReads, EqualOfATensorWithItself) {
  const FakeTensorMode mode;
  const at::Tensor x = at::rand({2, 3});
  EXPECT_TRUE(at::equal(x, x.view({2, 3})));
  EXPECT_FALSE(at::equal(x, at::rand({3, 2})));
  EXPECT_THROW(at::equal(x, x.clone()), DataDependentError);
  EXPECT_THROW(at::equal(x.view({3, 2}).t(), x), DataDependentError);
}

TEST(HostReads, ModulesThatCompareTheirInputs) {
  const FakeTensorMode mode;
  torch::nn::TransformerEncoder encoder(
      torch::nn::TransformerEncoderOptions(torch::nn::TransformerEncoderLayerOptions(16, 4), 2));
  EXPECT_EQ(encoder->forward(at::rand({5, 2, 16})).sizes(), at::IntArrayRef({5, 2, 16}));
  torch::nn::Transformer transformer(
      torch::nn::TransformerOptions(16, 4).num_encoder_layers(1).num_decoder_layers(1).dim_feedforward(32));
  EXPECT_EQ(transformer->forward(at::rand({5, 2, 16}), at::rand({3, 2, 16})).sizes(), at::IntArrayRef({3, 2, 16}));
  torch::nn::MultiheadAttention attention(torch::nn::MultiheadAttentionOptions(16, 4));
  const at::Tensor x = at::rand({5, 2, 16});
  EXPECT_EQ(std::get<0>(attention->forward(x, x, x)).sizes(), x.sizes());
}

TEST(PackedSequences, LengthsThatAreLiterals) {
  for (const c10::DeviceType device : {at::kCPU, at::kCUDA}) {
    const FakeTensorMode mode({.device = device});
    const at::Tensor x = torch::rand({3, 5, 4}, at::requires_grad());
    const at::Tensor lengths = at::tensor({5, 3, 2}, at::TensorOptions(at::kLong).device(at::kCPU));
    const auto packed = torch::nn::utils::rnn::pack_padded_sequence(x, lengths, /*batch_first=*/true);
    EXPECT_EQ(packed.data().sizes(), at::IntArrayRef({10, 4}));
    EXPECT_TRUE(packed.batch_sizes().device().is_cpu());
    const at::Tensor counts = *known_contents(packed.batch_sizes());
    {
      const UnfakeGuard real;
      EXPECT_TRUE(at::equal(counts, at::tensor({3, 3, 2, 1, 1}, at::kLong)));
    }
    torch::nn::LSTM lstm(torch::nn::LSTMOptions(4, 6).batch_first(true));
    const auto [output, state] = lstm->forward_with_packed_input(packed);
    const auto [padded, again] = torch::nn::utils::rnn::pad_packed_sequence(output, /*batch_first=*/true);
    EXPECT_EQ(padded.sizes(), at::IntArrayRef({3, 5, 6}));
    EXPECT_EQ(padded.device().type(), device);
    padded.sum().backward();
    EXPECT_EQ(x.grad().sizes(), x.sizes());
    EXPECT_THROW(torch::nn::utils::rnn::pack_padded_sequence(
                     x, at::randint(1, 5, {3}, at::TensorOptions(at::kLong).device(at::kCPU)), true),
                 DataDependentError);
  }
}

TEST(MaxPool1d, IsOneCallWithoutGradientsOnTheCpuAlone) {
  for (const c10::DeviceType device : {at::kCPU, at::kCUDA}) {
    Capture session(CaptureOptions{.mode = {.device = device}});
    const at::NoGradGuard no_grad;
    const at::Tensor y = at::max_pool1d(at::rand({2, 3, 17}), 3, 2, 1);
    EXPECT_EQ(y.sizes(), at::IntArrayRef({2, 3, 9}));
    const std::string text = to_text(session.finish({y}));
    EXPECT_EQ(text.find(" = aten::max_pool1d(") != std::string::npos, device == at::kCPU) << text;
    EXPECT_EQ(text.find("max_pool2d_with_indices") != std::string::npos, device == at::kCUDA) << text;
  }
}

}  // namespace
}  // namespace shadowgraph
