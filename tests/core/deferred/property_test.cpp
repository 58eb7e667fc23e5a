// Random programs, deferred and materialized in many orders, are bitwise equal to eager, including the final generator
// state.
#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <random>

#include "tests/core/deferred/check.h"

namespace shadowgraph {
namespace {

using namespace testing;

// Builds a random module constructor: parameters of several dtypes, views, tied weights, `.data =`, initializers,
// conversions, copies, early reads, and generators that are seeded, saved, restored, copied and forked.
Tensors construct(uint64_t seed, int size) {
  std::mt19937 choice(static_cast<uint32_t>(seed));
  const auto pick = [&](int count) { return static_cast<int>(choice() % static_cast<uint32_t>(count)); };
  Tensors all{torch::rand({4, 6}), torch::zeros({24})};
  const auto any = [&]() -> at::Tensor& { return all[static_cast<size_t>(pick(static_cast<int>(all.size())))]; };
  const torch::NoGradGuard no_grad;
  at::Generator own = at::detail::createCPUGenerator(7);
  const auto generator = [&]() -> at::Generator {
    return pick(3) == 0 ? own : at::Generator(at::detail::getDefaultCPUGenerator());
  };
  Tensors states;
  for (int i = 0; i < size; ++i) {
    at::Tensor& x = any();
    switch (pick(30)) {
      case 0:
        all.push_back(torch::randn({3, 1 + pick(9)}));
        break;
      case 1:
        all.push_back(torch::empty({2 + pick(30)}).uniform_(-1, 1));
        break;
      case 2:
        all.push_back(torch::randint(9, {4, 6}).to(at::kFloat));
        break;
      case 3:
        all.push_back(x);
        break;  // tied weight
      case 4:
        all.push_back(x.view({-1}).slice(0, 0, 3));
        break;  // view
      case 5:
        all.push_back(x.detach());
        break;
      case 6:
        x.normal_(0, 0.5);
        break;
      case 7:
        x.view({-1})[0] = 5;
        break;
      case 8:
        x.mul_(0.5);
        break;
      case 9:
        x.fill_(2.5);
        break;
      case 10:
        all.push_back(x.clone());
        break;
      case 11:
        all.push_back(x + 1);
        break;
      case 12:
        all.push_back(x.to(at::kDouble).to(at::kFloat));
        break;
      case 13:
        x.set_data(any().clone());
        break;  // `.data =`
      case 14:
        x.data().add_(1);
        break;
      case 15:
        any().view({-1}).slice(0, 0, 2).copy_(any().view({-1}).slice(0, 0, 2));
        break;
      case 16:
        all.push_back(x.view({-1}).contiguous());
        break;
      case 17:
        x.uniform_(0, 2);
        break;
      case 18:
        torch::rand({pick(40)});
        break;  // a draw whose result is dropped
      case 19:
        x.bernoulli_(0.5);
        break;
      case 20:
        if (x.sum().item<double>() > 3) x.sub_(1);
        break;
      case 21:
        if (pick(4) == 0) at::manual_seed(static_cast<uint64_t>(pick(3)));
        break;
      case 22:
      case 23:
        states.push_back(generator().get_state());
        break;
      case 24:
      case 25:
        if (!states.empty()) generator().set_state(states[static_cast<size_t>(pick(static_cast<int>(states.size())))]);
        break;
      case 26:
        all.push_back(torch::rand({3 + pick(40)}, own));
        break;
      case 27: {  // torch.random.fork_rng
        at::Generator forked = at::detail::getDefaultCPUGenerator();
        const at::Tensor before = forked.get_state();
        at::manual_seed(static_cast<uint64_t>(pick(3)));
        if (pick(2) == 0) x.uniform_(0, 1);
        all.push_back(torch::randn({3 + pick(20)}));
        forked.set_state(before);
        break;
      }
      case 28:
        all.push_back(torch::dropout(x, 0.3, /*train=*/true));  // a draw of unknown length
        break;
      case 29:
        generator().set_current_seed(static_cast<uint64_t>(pick(5)));
        if (pick(2) == 0) torch::randn({2});
        all.push_back(torch::full({3}, static_cast<double>(at::detail::getDefaultCPUGenerator().current_seed())));
        break;
    }
    if (!all.back().is_contiguous()) all.back() = all.back().contiguous();
  }
  return all;
}

TEST(DeferredProperty, SmallConstructorsInEveryOrder) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const auto make = [&] {
      Tensors all = construct(seed, 5);
      all.resize(std::min<size_t>(all.size(), 4));
      return all;
    };
    at::manual_seed(99);
    std::vector<size_t> order(make().size());
    std::iota(order.begin(), order.end(), 0U);
    do {
      expect_as_eager(make, order, c10::str("seed ", seed), 99);
      if (HasFailure()) return;
    } while (std::next_permutation(order.begin(), order.end()));
  }
}

TEST(DeferredProperty, LargeConstructorsInSampledOrders) {
  for (uint64_t seed = 1000; seed < 1150; ++seed) {
    const auto make = [&] { return construct(seed, 60); };
    at::manual_seed(99);
    std::vector<size_t> order(make().size());
    std::iota(order.begin(), order.end(), 0U);
    std::mt19937 shuffle(static_cast<uint32_t>(seed));
    for (int i = 0; i < 4; ++i) {
      std::shuffle(order.begin(), order.end(), shuffle);
      if (i == 3) order.resize(order.size() / 2);
      expect_as_eager(make, order, c10::str("seed ", seed), 99);
      if (HasFailure()) return;
    }
  }
}

// After an error, the remaining tensors still materialize correctly.
TEST(DeferredProperty, ErrorsInBetweenChangeNothing) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    at::manual_seed(99);
    const Tensors eager = construct(seed, 30);
    at::Tensor outside = torch::ones({2});
    at::Tensor doomed;
    at::manual_seed(99);
    const Tensors described = deferred_init([&] {
      Tensors all = construct(seed, 30);
      doomed = outside + all[0].sum();
      return all;
    });
    outside.add_(1);
    for (size_t i = described.size(); i-- > 0;) {
      if (is_deferred(doomed)) {
        EXPECT_THROW(materialize_tensor(doomed), DeferredError);
      }
      materialize_tensor(described[i]);
      ASSERT_TRUE(same_bits(described[i], eager[i])) << seed << " " << i;
    }
  }
}

}  // namespace
}  // namespace shadowgraph
