// Losses on fakes compared with eager, forward and backward, for each reduction.
#include "shadowgraph/error.h"
#include "tests/core/compare_with_eager.h"

namespace shadowgraph::testing {
namespace {

const Comparison kWithGradients{.gradients = true};

TEST(RulesLoss, OfPredictionsAndTargets) {
  using Loss = std::function<at::Tensor(const at::Tensor&, const at::Tensor&, int64_t)>;
  const std::vector<std::pair<std::string, Loss>> losses = {
      {"mse", [](const auto& x, const auto& y, int64_t r) { return at::mse_loss(x, y, r); }},
      {"l1", [](const auto& x, const auto& y, int64_t r) { return at::l1_loss(x, y, r); }},
      {"smooth l1", [](const auto& x, const auto& y, int64_t r) { return at::smooth_l1_loss(x, y, r); }},
      {"huber", [](const auto& x, const auto& y, int64_t r) { return at::huber_loss(x, y, r, 0.5); }},
      {"huber of -1", [](const auto& x, const auto& y, int64_t r) { return at::huber_loss(x, y, r, -1); }},
      {"kl_div", [](const auto& x, const auto& y, int64_t r) { return at::kl_div(x, y, r); }},
      {"bce", [](const auto& x, const auto& y, int64_t r) { return at::binary_cross_entropy(x, y, {}, r); }},
      {"weighted bce", [](const auto& x, const auto& y, int64_t r) { return at::binary_cross_entropy(x, y, y, r); }},
      {"bce with logits",
       [](const auto& x, const auto& y, int64_t r) {
         return at::binary_cross_entropy_with_logits(x, y, {}, at::full({}, 2.0, x.options()), r);
       }},
      {"soft margin", [](const auto& x, const auto& y, int64_t r) { return at::soft_margin_loss(x, y, r); }},
      {"poisson",
       [](const auto& x, const auto& y, int64_t r) { return at::poisson_nll_loss(x, y, true, false, 1e-8, r); }},
  };
  for (const auto& [name, loss] : losses) {
    for (const int64_t reduction : {at::Reduction::None, at::Reduction::Mean, at::Reduction::Sum}) {
      for (const auto& x : layouts(at::kFloat)) {
        expect_like_eager([=, &loss = loss](const Tensors& t) { return Tensors{loss(t[0], t[1].detach(), reduction)}; },
                          {x, at::ones(x.sizes())},
                          {.gradients = true, .note = name + " reduction " + std::to_string(reduction)});
      }
    }
  }
  // Targets that broadcast.
  expect_like_eager(
      [](const Tensors& t) {
        return Tensors{at::mse_loss(t[0], t[1]), at::huber_loss(t[0], t[1])};
      },
      {at::ones({4, 3}), at::ones({3})}, kWithGradients);
}

TEST(RulesLoss, OfClasses) {
  const Tensors in{at::ones({4, 5}), at::zeros({4}, at::kLong), at::ones({5})};
  const Tensors image{at::ones({2, 5, 3, 4}), at::zeros({2, 3, 4}, at::kLong), at::ones({5})};
  const Tensors last{image[0].contiguous(at::MemoryFormat::ChannelsLast), image[1], image[2]};
  const Tensors wrong{at::ones({2, 5, 3, 4}), at::zeros({2, 3, 5}, at::kLong), at::ones({4})};
  const Tensors empty{at::ones({0, 5, 3, 4}), at::zeros({0, 3, 4}, at::kLong), at::ones({5})};
  for (const int64_t r : {at::Reduction::None, at::Reduction::Mean, at::Reduction::Sum}) {
    for (const auto& operands : {in, image, last, empty}) {
      expect_like_eager([r](const Tensors& t) { return Tensors{at::cross_entropy_loss(t[0], t[1], {}, r)}; }, operands,
                        kWithGradients);
      expect_like_eager(
          [r](const Tensors& t) {
            return Tensors{at::cross_entropy_loss(t[0], t[1], t[2].detach(), r),
                           at::cross_entropy_loss(t[0], t[1], {}, r, -100, 0.1)};
          },
          operands, kWithGradients);
      expect_like_eager([r](const Tensors& t) { return Tensors{at::nll_loss_nd(t[0], t[1], {}, r)}; }, operands,
                        {.gradients = true, .same_error = true});
    }
    expect_like_eager([r](const Tensors& t) { return Tensors{at::cross_entropy_loss(t[0], t[1], {}, r)}; }, wrong);
    // A batch; batches of one, with and without the dimension in input and target; two targets for one sample.
    for (const auto& operands :
         {in, Tensors{at::ones({5}), at::zeros({}, at::kLong)}, Tensors{at::ones({5}), at::zeros({1}, at::kLong)},
          Tensors{at::ones({1, 5}), at::zeros({}, at::kLong)}, Tensors{at::ones({2}), at::zeros({2}, at::kLong)}}) {
      expect_like_eager([r](const Tensors& t) { return Tensors{at::multi_margin_loss(t[0], t[1], 1, 1, {}, r)}; },
                        operands, {.gradients = true, .same_error = true});
    }
  }
  expect_like_eager(
      [](const Tensors& t) {
        const auto [loss, weight] = at::nll_loss2d_forward(t[0], t[1], {}, at::Reduction::Mean, -100);
        return Tensors{loss, weight};
      },
      image);
  expect_like_eager([](const Tensors& t) { return Tensors{at::multilabel_margin_loss(t[0], t[1])}; },
                    {at::ones({4, 5}), at::zeros({4, 5}, at::kLong)}, kWithGradients);
}

// libtorch divides by the total weight of the targets that count, which it selects with masked_select.
TEST(RulesLoss, LabelSmoothingWithWeightsDependsOnData) {
  FakeTensorMode mode;
  const auto weighted = [](int64_t reduction) {
    return at::cross_entropy_loss(at::empty({4, 5}), at::empty({4}, at::kLong), at::empty({5}), reduction, -100, 0.1);
  };
  EXPECT_EQ(weighted(at::Reduction::Sum).dim(), 0);
  EXPECT_THROW(weighted(at::Reduction::Mean), DataDependentError);
}

// Fakes may outlive their mode; intermediate tensors of decompositions then use the same rules.
TEST(RulesLoss, OutsideAnyMode) {
  at::Tensor x;
  {
    FakeTensorMode mode;
    x = at::empty({4, 5});
  }
  const auto loss = at::binary_cross_entropy_with_logits(x, x, {}, x, at::Reduction::None);
  EXPECT_TRUE(is_fake(loss));
  EXPECT_EQ(loss.sizes(), x.sizes());
  EXPECT_TRUE(is_fake(at::logsumexp(x * 2, 1)));
}

TEST(RulesLoss, OfSequencesAndPairs) {
  expect_like_eager(
      [](const Tensors& t) {
        return Tensors{at::ctc_loss(t[0].log_softmax(2), t[1], at::IntArrayRef{7, 7}, at::IntArrayRef{3, 2}, 0,
                                    at::Reduction::Sum)};
      },
      {at::ones({7, 2, 5}), at::ones({2, 3}, at::kLong)}, kWithGradients);
  expect_like_eager(
      [](const Tensors& t) {
        return Tensors{at::cosine_embedding_loss(t[0], t[1], t[2].detach()),
                       at::margin_ranking_loss(t[0].sum(1), t[1].sum(1), t[2].detach()),
                       at::triplet_margin_loss(t[0], t[1], t[0] + 1), at::hinge_embedding_loss(t[0], t[1].detach())};
      },
      {at::ones({4, 5}), at::ones({4, 5}), at::ones({4})}, kWithGradients);
}

}  // namespace
}  // namespace shadowgraph::testing
