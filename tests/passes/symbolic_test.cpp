// Symbolic sizes: fitted from a few captures, instantiated at other sizes, equal to a capture there.
#include "shadowgraph/passes/symbolic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/registry.h"
#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/graph/verify.h"
#include "tests/passes/model_captures.h"

namespace shadowgraph {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class SymbolicModel : public ::testing::TestWithParam<std::string> {};
std::vector<std::string> names_of(bool language) {
  std::vector<std::string> names;
  for (const auto& info : models::available()) {
    if (!language || info.default_seq != 0) names.push_back(info.name);
  }
  return names;
}
INSTANTIATE_TEST_SUITE_P(All, SymbolicModel, ::testing::ValuesIn(names_of(false)),
                         [](const auto& info) { return info.param; });

std::vector<SizedGraph> at_batches(const std::string& name, ModelCapture how, std::vector<int64_t> batches) {
  std::vector<SizedGraph> captures;
  for (const int64_t batch : batches) {
    how.batch = batch;
    captures.push_back({{{"batch", batch}}, capture_tiny(name, how)});
  }
  return captures;
}

// oneDNN rounds the saved LSTM gates up to pages of 4 KiB: this is no polynomial, and is reported as such.
bool has_paged_workspace(const std::string& name, const ModelCapture& how) {
  return name == "lstm_lm" && how.train && how.device == c10::kCPU;
}

TEST_P(SymbolicModel, AtAnotherBatchIsWhatACaptureGives) {
  for (const c10::DeviceType device : {c10::kCPU, c10::kCUDA}) {
    for (const bool train : {true, false}) {
      ModelCapture how{.train = train, .device = device};
      if (has_paged_workspace(GetParam(), how)) {
        EXPECT_THAT(
            [&] {
              SymbolicGraph::fit(at_batches(GetParam(), how, {2, 3, 5, 7}));
            },
            ThrowsMessage<UnsupportedError>(HasSubstr("aten::mkldnn_rnn_layer")));
        continue;
      }
      const SymbolicGraph symbolic = SymbolicGraph::fit(at_batches(GetParam(), how, {2, 3, 5, 7}));
      SymbolicGraph::Instance instance(symbolic);
      for (const int64_t batch : {16, 11, 2}) {
        how.batch = batch;
        const Graph capture = capture_tiny(GetParam(), how);
        EXPECT_EQ(symbolic.difference_from({{"batch", batch}}, capture), std::nullopt);
        EXPECT_EQ(first_difference(instance.at({{"batch", batch}}), capture), std::nullopt);
      }
      verify(symbolic.instantiate({{"batch", 1000}}));
    }
  }
}

class SymbolicLanguageModel : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, SymbolicLanguageModel, ::testing::ValuesIn(names_of(true)),
                         [](const auto& info) { return info.param; });

TEST_P(SymbolicLanguageModel, AtAnotherBatchAndLengthIsWhatACaptureGives) {
  for (const c10::DeviceType device : {c10::kCPU, c10::kCUDA}) {
    ModelCapture how{.train = true, .device = device};
    if (has_paged_workspace(GetParam(), how)) continue;
    const auto capture_at = [&](int64_t batch, int64_t seq) {
      how.batch = batch;
      how.seq = seq;
      return SizedGraph{{{"batch", batch}, {"seq", seq}}, capture_tiny(GetParam(), how)};
    };
    std::vector<SizedGraph> captures;
    for (const int64_t batch : {2, 3}) {
      for (const int64_t seq : {4, 8, 12}) captures.push_back(capture_at(batch, seq));
    }
    captures.push_back(capture_at(5, 16));
    const SymbolicGraph symbolic = SymbolicGraph::fit(std::move(captures));
    const SizedGraph there = capture_at(9, 28);
    EXPECT_EQ(symbolic.difference_from(there.sizes, there.graph), std::nullopt);
  }
}

// ---- Hand-written programs

Graph capture_program(const ForwardFunction& forward, at::IntArrayRef sizes) {
  const FakeTensorMode mode;
  Graph graph =
      capture_forward(ProgramToCapture{.inputs = {at::empty(sizes)}, .input_names = {"x"}, .forward = forward}).graph;
  return graph;
}
std::vector<SizedGraph> captures_of(const ForwardFunction& forward, std::vector<int64_t> batches) {
  std::vector<SizedGraph> captures;
  for (const int64_t batch : batches) captures.push_back({{{"batch", batch}}, capture_program(forward, {batch, 6})});
  return captures;
}

TEST(SymbolicGraph, KnowsSizesBytesArgumentsAndPaths) {
  const ForwardFunction forward = [](const Tensors& in) {
    const int64_t batch = in[0].size(0);
    const at::Tensor y = in[0].view({batch * 3, 2}).t();
    return Tensors{y.add(1).mul(1.0 / static_cast<double>(batch)), at::arange(batch * batch)};
  };
  auto captures = captures_of(forward, {2, 3, 5, 7});
  for (auto& capture : captures) capture.graph.metadata.batch = capture.sizes["batch"];
  const SymbolicGraph symbolic = SymbolicGraph::fit(std::move(captures));
  const std::string text = symbolic.to_text();
  EXPECT_THAT(text, HasSubstr("f32[batch,6]"));
  EXPECT_THAT(text, HasSubstr("f32[2,3*batch]"));
  EXPECT_THAT(text, HasSubstr("i64[batch^2]"));
  EXPECT_THAT(text, HasSubstr("= 24*batch\n"));
  EXPECT_THAT(text, HasSubstr("= 8*batch^2\n"));
  Graph expected = capture_program(forward, {40, 6});
  expected.metadata.batch = 40;
  const Graph at_40 = symbolic.instantiate({{"batch", 40}});
  EXPECT_EQ(first_difference(at_40, expected), std::nullopt);
  ASSERT_FALSE(at_40.guards.empty());
  EXPECT_EQ(at_40.guards[0].observed, "40");
}

// Two values have the same size in the first capture only: they must not share a rewritten constant.
TEST(SymbolicGraph, SizesThatCoincideInTheFirstCaptureStayApart) {
  const ForwardFunction forward = [](const Tensors& in) {
    return Tensors{at::zeros({6, 6}), in[0].repeat({3, 1}), at::ones({6, 6})};  // [3 * batch, 6]
  };
  const SymbolicGraph symbolic = SymbolicGraph::fit(captures_of(forward, {2, 3, 5}));
  EXPECT_EQ(symbolic.difference_from({{"batch", 9}}, capture_program(forward, {9, 6})), std::nullopt);
}

TEST(SymbolicGraph, SaysAtWhichNodeTheProgramsDiffer) {
  const ForwardFunction forward = [](const Tensors& in) {
    return Tensors{in[0].size(0) > 4 ? (in[0] * 2).relu() : (in[0] * 2).tanh()};
  };
  EXPECT_THAT(
      [&] {
        SymbolicGraph::fit(captures_of(forward, {2, 3, 5}));
      },
      ThrowsMessage<UnsupportedError>(
          ::testing::AllOf(HasSubstr("batch 2: n2: %2 = aten::tanh"), HasSubstr("batch 5: n2: %2 = aten::relu"))));
  // A fit holds on one side of the branch only; checking against a capture beyond it detects that.
  const SymbolicGraph below = SymbolicGraph::fit(captures_of(forward, {2, 3, 4}));
  EXPECT_EQ(below.difference_from({{"batch", 4}}, capture_program(forward, {4, 6})), std::nullopt);
  EXPECT_THAT(below.difference_from({{"batch", 8}}, capture_program(forward, {8, 6})).value_or("none"),
              HasSubstr("aten::relu"));
}

TEST(SymbolicGraph, NamesTheNumbersThatNoPolynomialFits) {
  const ForwardFunction forward = [](const Tensors& in) { return Tensors{at::zeros({in[0].size(0) / 2, 3})}; };
  EXPECT_THAT(
      [&] {
        SymbolicGraph::fit(captures_of(forward, {2, 3, 5, 7}));
      },
      ThrowsMessage<UnsupportedError>(
          ::testing::AllOf(HasSubstr("1, 1, 2, 3: size 0 at n"), HasSubstr("aten::zeros"))));
  // Even batches fit one graph; odd ones are refused.
  const SymbolicGraph even = SymbolicGraph::fit(captures_of(forward, {2, 4, 8}));
  EXPECT_EQ(even.difference_from({{"batch", 20}}, capture_program(forward, {20, 6})), std::nullopt);
  EXPECT_THAT(
      [&] {
        (void)even.instantiate({{"batch", 21}});
      },
      ThrowsMessage<UnsupportedError>(HasSubstr("2 and every 2 from there")));
  // Almost 1/n is not 1/n.
  const ForwardFunction nearly = [](const Tensors& in) {
    return Tensors{in[0] * (1.000000001 / static_cast<double>(in[0].size(0)))};
  };
  EXPECT_THAT(
      [&] {
        SymbolicGraph::fit(captures_of(nearly, {2, 3, 5, 7}));
      },
      ThrowsMessage<UnsupportedError>(HasSubstr("aten::mul")));
  const ForwardFunction root = [](const Tensors& in) {
    return Tensors{in[0] * std::sqrt(static_cast<double>(in[0].size(0)))};
  };
  EXPECT_THAT(
      [&] {
        SymbolicGraph::fit(captures_of(root, {2, 3, 5, 7}));
      },
      ThrowsMessage<UnsupportedError>(HasSubstr("aten::mul")));
}

TEST(SymbolicGraph, RefusesCapturesAndSizesThatSayNothing) {
  const ForwardFunction forward = [](const Tensors& in) { return Tensors{in[0].relu()}; };
  EXPECT_THROW(SymbolicGraph::fit({}), UnsupportedError);
  EXPECT_THROW(SymbolicGraph::fit(captures_of(forward, {2, 3})), UnsupportedError);
  EXPECT_THROW(SymbolicGraph::fit(captures_of(forward, {2, 2, 2})), UnsupportedError);
  auto other_names = captures_of(forward, {2, 3, 5});
  other_names[1].sizes = {{"seq", 3}};
  EXPECT_THROW(SymbolicGraph::fit(std::move(other_names)), UnsupportedError);
  const SymbolicGraph symbolic = SymbolicGraph::fit(captures_of(forward, {2, 3, 5}));
  EXPECT_THAT(
      [&] {
        (void)symbolic.instantiate({{"batch", 1}});
      },
      ThrowsMessage<UnsupportedError>(HasSubstr("less than the smallest captured, 2")));
  EXPECT_THROW((void)symbolic.instantiate({{"seq", 8}}), UnsupportedError);
  EXPECT_THROW((void)symbolic.instantiate({}), UnsupportedError);
  EXPECT_EQ(symbolic.refusal({{"batch", 4}}), std::nullopt);
}

// Size one is special: a batch of one broadcasts, and its strides are arbitrary.
TEST(SymbolicGraph, ASampleAtOneIsADifferentProgramOrFitsLikeTheOthers) {
  const ForwardFunction forward = [](const Tensors& in) { return Tensors{in[0].t().contiguous()}; };
  EXPECT_THROW(SymbolicGraph::fit(captures_of(forward, {1, 2, 3, 5})), UnsupportedError);
  EXPECT_NO_THROW(SymbolicGraph::fit(captures_of(forward, {2, 3, 5})));
}

}  // namespace
}  // namespace shadowgraph
