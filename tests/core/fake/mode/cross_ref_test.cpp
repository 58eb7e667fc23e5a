// CrossRefMode runs real and fake tensors side by side; it must detect a deliberately wrong rule.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>
#include <torch/torch.h>

#include "shadowgraph/capture/fake.h"
#include "shadowgraph/capture/shape_rules.h"
#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

using ::testing::HasSubstr;

at::Tensor outer(const at::Tensor& x) { return x.outer(x).t(); }
at::Tensor same(const at::Tensor& x) { return x.clone(); }
TORCH_LIBRARY(sg_cross, library) {
  for (const char* name :
       {"strides", "sizes", "dtype", "alias", "raises", "missing", "right", "negated", "conjugated"}) {
    library.def((std::string(name) + "(Tensor x) -> Tensor").c_str());
  }
}
TORCH_LIBRARY_IMPL(sg_cross, CPU, library) {
  library.impl("strides", outer);
  library.impl("right", outer);
  library.impl(
      "negated", +[](const at::Tensor& x) { return at::_neg_view(x.clone()); });
  library.impl(
      "conjugated", +[](const at::Tensor& x) { return at::complex(x, x).conj(); });
  for (const char* name : {"sizes", "dtype", "alias", "raises", "missing"}) library.impl(name, same);
}

at::Tensor call(const std::string& name, const at::Tensor& x) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow(("sg_cross::" + name).c_str(), "")
      .typed<at::Tensor(const at::Tensor&)>()
      .call(x);
}

void register_wrong_rules() {
  register_rule(
      "sg_cross::strides", +[](const at::Tensor& x) {
        return rules::empty({x.size(0), x.size(0)}, x);
      });
  register_rule(
      "sg_cross::right", +[](const at::Tensor& x) {
        return rules::empty_strided({x.size(0), x.size(0)}, {1, x.size(0)}, x.scalar_type());
      });
  register_rule(
      "sg_cross::sizes", +[](const at::Tensor& x) { return rules::empty({x.size(0) + 1}, x); });
  register_rule(
      "sg_cross::dtype", +[](const at::Tensor& x) { return rules::empty(x.sizes(), at::kLong); });
  register_rule(
      "sg_cross::alias", +[](const at::Tensor& x) { return rules::alias(x, x.sizes(), x.strides(), 0); });
  register_rule(
      "sg_cross::raises", +[](const at::Tensor& x) -> at::Tensor { TORCH_CHECK(false, "not today"); });
}

TEST(CrossRefMode, ARealProgramRunsAsItWouldAndAgrees) {
  const auto program = [] {
    torch::manual_seed(1);
    torch::nn::Sequential net(torch::nn::Conv2d(3, 4, 3), torch::nn::BatchNorm2d(4), torch::nn::ReLU(),
                              torch::nn::MaxPool2d(2), torch::nn::Flatten(), torch::nn::Linear(36, 5));
    torch::optim::AdamW optimizer(net->parameters());
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      const at::Tensor y = net->forward(at::rand({2, 3, 8, 8}));
      torch::cross_entropy_loss(y, at::zeros({2}, at::kLong)).backward();
      optimizer.step();
    }
    std::vector<at::Tensor> result;
    for (const at::Tensor& parameter : net->parameters()) result.push_back(parameter.detach());
    return result;
  };
  const auto expected = program();
  std::vector<at::Tensor> actual;
  {
    const CrossRefMode check;
    actual = program();
    EXPECT_GT(check.compared(), 100);
    EXPECT_TRUE(check.differences().empty());
    EXPECT_TRUE(check.refused().empty());
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_FALSE(is_fake(actual[i]));
    EXPECT_TRUE(actual[i].equal(expected[i]));
  }
}

TEST(CrossRefMode, ViewsWritesAndResizesAgree) {
  const CrossRefMode check;
  at::Tensor x = at::rand({4, 6});
  x.t().slice(1, 0, 3).mul_(2);
  x.unsqueeze_(0).squeeze_(0).t_();
  at::Tensor out = at::empty({0});
  at::add_out(out, x, x);
  out.resize_({3});
  at::_foreach_add_({x, out}, 1);
  EXPECT_EQ(x[0][0].item<float>(), x[0][0].item<float>());
  x.index({x > 1.0});
  EXPECT_GT(check.compared(), 10);
  EXPECT_EQ(check.refused().count("aten::nonzero") + check.refused().count("aten::index.Tensor"), 1U);
}

TEST(CrossRefMode, AWrongRuleIsFound) {
  register_wrong_rules();
  const at::Tensor x = at::rand({3});
  const auto difference = [&](const std::string& name) -> CrossRefDifference {
    const CrossRefMode check;
    try {
      call(name, x.exp());
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("sg_cross::" + name + ", "));
      return check.differences().back();
    }
    ADD_FAILURE() << name << ": no difference";
    return {};
  };
  EXPECT_EQ(difference("strides").to_string(), "sg_cross::strides, result 0: strides: [1, 3] real, [3, 1] fake");
  EXPECT_EQ(difference("sizes").to_string(), "sg_cross::sizes, result 0: sizes: [3] real, [4] fake");
  EXPECT_EQ(difference("dtype").what, "dtype");
  EXPECT_EQ(difference("alias").to_string(),
            "sg_cross::alias, result 0: shares memory with: nothing else real, x fake");
  const CrossRefDifference raised = difference("raises");
  EXPECT_EQ(raised.where, "the call");
  EXPECT_THAT(raised.fake, HasSubstr("not today"));
}

// Lazy bits distinguish tensors with the same bytes.
TEST(CrossRefMode, LazyBitsAreCompared) {
  register_rule(
      "sg_cross::negated", +[](const at::Tensor& x) { return rules::empty(x.sizes(), x); });
  register_rule(
      "sg_cross::conjugated", +[](const at::Tensor& x) { return rules::empty(x.sizes(), at::kComplexFloat); });
  const CrossRefMode check({.throw_at_first = false});
  call("negated", at::rand({3}));
  call("conjugated", at::rand({3}));
  ASSERT_EQ(check.differences().size(), 2U);
  EXPECT_EQ(check.differences()[0].what, "negative bit");
  EXPECT_EQ(check.differences()[1].what, "conjugate bit");
}

TEST(CrossRefMode, DifferencesCanBeCollectedAndRefusalsAreCounted) {
  register_wrong_rules();
  const CrossRefMode check({.throw_at_first = false});
  const at::Tensor x = at::rand({3});
  call("right", x);
  EXPECT_TRUE(check.differences().empty());
  call("sizes", x);
  call("dtype", x);
  call("missing", x);
  EXPECT_EQ(check.differences().size(), 2U);
  EXPECT_EQ(check.refused().at("sg_cross::missing"), 1);
}

TEST(CrossRefMode, BothMustRaise) {
  const CrossRefMode check;
  EXPECT_ANY_THROW(at::rand({2, 3}).mm(at::rand({2, 3})));
  EXPECT_TRUE(check.differences().empty());
  // The index is out of range, which depends on data only.
  EXPECT_ANY_THROW(at::rand({2}).index_select(0, at::full({1}, 9, at::kLong)));
}

TEST(CrossRefMode, NotInsideAFakeMode) {
  const FakeTensorMode mode;
  EXPECT_THROW(CrossRefMode{}, Error);
}

}  // namespace
}  // namespace shadowgraph
