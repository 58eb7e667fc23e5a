// MaterializeOptions::independent_streams: values depend only on the recorded program and the seed.
#include <torch/torch.h>

#include "tests/core/deferred/check.h"

namespace shadowgraph {
namespace {

using namespace testing;

constexpr MaterializeOptions kSeed77{.independent_streams = 77};

TEST(IndependentStreams, AreTheSameInEveryOrder) {
  const auto make = [] { return Tensors{torch::rand({30}), torch::randn({7}), torch::randn({40, 3})}; };
  torch::manual_seed(1);
  const Tensors a = deferred_init(make);
  torch::manual_seed(2);
  const Tensors b = deferred_init(make);
  const MaterializeOptions options{.independent_streams = 77};
  for (const size_t i : {0, 1, 2}) materialize_tensor(a[i], options);
  for (const size_t i : {2, 0, 1}) materialize_tensor(b[i], options);
  for (const size_t i : {0, 1, 2}) EXPECT_TRUE(same_bits(a[i], b[i])) << i;
  const Tensors c = deferred_init(make);
  EXPECT_TRUE(at::equal(materialize_shard(c[2], 0, 10, 20, options), a[2].narrow(0, 10, 20)));
  materialize_tensors(c, {.independent_streams = 78});
  EXPECT_FALSE(at::equal(c[0], a[0]));
}

// Layers, a tied weight, a buffer, a draw whose length has no closed form, a draw from a separate generator, and a loop
// that reads no tensor.
Tensors model() {
  const torch::NoGradGuard no_grad;
  Tensors all;
  for (int i = 0; i < 4; ++i) {
    torch::nn::Linear linear(12, 20);
    all.push_back(linear->weight);
    all.push_back(linear->bias);
  }
  all.push_back(all[0]);
  all.push_back(torch::multinomial(torch::ones({30}), 5).to(at::kFloat));
  const at::Generator own = at::detail::createCPUGenerator(4);
  all.push_back(torch::empty({9}).normal_(0, 1, own));
  all.push_back(torch::poisson(all[2].detach().abs() * 10) + torch::rand({20, 12}));
  all.push_back(torch::dropout(torch::ones({40}), 0.5, /*train=*/true));
  return all;
}

// Every rank records the model under a different process seed and materializes a different part in a different order.
TEST(IndependentStreams, RanksAgreeWithTheWhole) {
  torch::manual_seed(1);
  const Tensors whole = deferred_init(model);
  materialize_tensors(whole, kSeed77);
  for (const size_t ranks : {1, 2, 3, 5}) {
    for (size_t rank = 0; rank < ranks; ++rank) {
      torch::manual_seed(100 * ranks + rank);
      const Tensors mine = deferred_init(model);
      std::vector<size_t> parts;
      for (size_t i = rank; i < mine.size(); i += ranks) parts.push_back(i);
      if (rank % 2 == 1) std::reverse(parts.begin(), parts.end());
      for (const size_t i : parts) {
        // Also materializes rows of other ranks' parameters, as for sharded parameters.
        const size_t next = (i + 1) % mine.size();
        if (is_deferred(mine[next])) {
          const int64_t rows = mine[next].size(0) / static_cast<int64_t>(ranks);
          const int64_t from = static_cast<int64_t>(rank) * rows;
          EXPECT_TRUE(at::equal(materialize_shard(mine[next], 0, from, rows, kSeed77),
                                whole[next].detach().narrow(0, from, rows)))
              << ranks << " ranks, rows of tensor " << next;
        }
        materialize_tensor(mine[i], kSeed77);
        EXPECT_TRUE(same_bits(mine[i], whole[i])) << ranks << " ranks, tensor " << i;
      }
    }
  }
}

// The list of what changes the values, as in docs/weights-and-code.md.
TEST(IndependentStreams, WhatChangesThem) {
  const auto made = [](const std::function<Tensors()>& make, uint64_t seed) {
    const Tensors all = deferred_init(make);
    materialize_tensors(all, {.independent_streams = seed});
    return all;
  };
  const auto program = [] { return Tensors{torch::rand({8}), torch::rand({8}), torch::randn({8})}; };
  const Tensors usual = made(program, 5);
  // Another seed changes all of them.
  const Tensors reseeded = made(program, 6);
  for (size_t i = 0; i < 3; ++i) EXPECT_FALSE(at::equal(reseeded[i], usual[i])) << i;
  // One more draw, dropped or not, changes the draws after it but not those before.
  const Tensors shifted = made(
      [] {
        at::Tensor a = torch::rand({8});
        torch::rand({1});
        return Tensors{a, torch::rand({8}), torch::randn({8})};
      },
      5);
  EXPECT_TRUE(at::equal(shifted[0], usual[0]));
  EXPECT_FALSE(at::equal(shifted[1], usual[1]));
  EXPECT_FALSE(at::equal(shifted[2], usual[2]));
  // Unaffected by: the length of a draw, operators that do not draw, draws from other generators, and seeding inside.
  const Tensors same = made(
      [] {
        at::Tensor a = torch::rand({8});
        a.view({2, 4}).mul(3);
        torch::empty({5}).normal_(0, 1, at::detail::createCPUGenerator(9));
        torch::manual_seed(3);
        at::Tensor b = torch::rand({8});
        torch::manual_seed(3);
        return Tensors{a, b, torch::randn({8})};
      },
      5);
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(same[i], usual[i])) << i;
  const Tensors longer = made(
      [] {
        torch::rand({100'000});
        return Tensors{torch::rand({8}), torch::randn({8})};
      },
      5);
  EXPECT_TRUE(at::equal(longer[0], usual[1]));
  EXPECT_TRUE(at::equal(longer[1], usual[2]));
}

}  // namespace
}  // namespace shadowgraph
