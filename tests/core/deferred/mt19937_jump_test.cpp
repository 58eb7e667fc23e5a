#include "core/deferred/mt19937_jump.h"

#include <gtest/gtest.h>

#include <vector>

namespace shadowgraph {
namespace {

void expect_same(const at::mt19937_data_pod& a, const at::mt19937_data_pod& b, uint64_t draws) {
  EXPECT_EQ(a.left_, b.left_) << draws;
  EXPECT_EQ(a.next_, b.next_) << draws;
  EXPECT_EQ(a.seed_, b.seed_) << draws;
  EXPECT_EQ(a.state_, b.state_) << draws;
}

TEST(Mt19937Jump, IsWhereDrawingLeadsFromEveryPlaceInABlock) {
  for (const uint64_t before : {0, 1, 5, 623, 624, 625, 1248, 2000}) {
    for (const uint64_t draws : {0UL, 1UL, 2UL, 622UL, 623UL, 624UL, 625UL, 1247UL, 1248UL, 1249UL, 5000UL}) {
      at::mt19937 engine(42);
      for (uint64_t i = 0; i < before; ++i) engine();
      at::mt19937_data_pod jumped = engine.data();
      advance(jumped, draws);
      for (uint64_t i = 0; i < draws; ++i) engine();
      expect_same(jumped, engine.data(), draws);
    }
  }
}

// Beyond 4096 blocks of 624 words, jumps use the polynomial.
TEST(Mt19937Jump, FarJumpsAreWhereDrawingLeads) {
  for (const uint64_t draws : {4096UL * 624, 4095UL * 624 + 1, 3'000'000UL, 12'345'678UL, 30'000'001UL}) {
    for (const uint64_t before : {0, 100}) {
      at::mt19937 engine(7);
      for (uint64_t i = 0; i < before; ++i) engine();
      at::mt19937_data_pod jumped = engine.data();
      advance(jumped, draws);
      for (uint64_t i = 0; i < draws; ++i) engine();
      expect_same(jumped, engine.data(), draws);
    }
  }
}

TEST(Mt19937Jump, JumpsAddUp) {
  const uint64_t far = 61'234'567'890;
  at::mt19937_data_pod once = at::mt19937(3).data();
  at::mt19937_data_pod twice = once;
  advance(once, far);
  advance(twice, 20'000'000'001);
  advance(twice, far - 20'000'000'001);
  expect_same(once, twice, far);
}

// Berlekamp-Massey: the shortest linear recurrence of one output bit equals the recurrence of the full state.
TEST(Mt19937Jump, ThePolynomialIsThatOfTheGenerator) {
  const size_t degree = 19937;
  const size_t words = degree / 64 + 2;
  at::mt19937 engine(1);
  std::vector<uint64_t> connection(words), before(words), next(words), history(words);
  connection[0] = before[0] = 1;
  size_t length = 0;
  size_t gap = 1;
  const auto add_shifted = [&](std::vector<uint64_t>& to, const std::vector<uint64_t>& from, size_t shift) {
    for (size_t i = 0; i + shift / 64 < words; ++i) {
      to[i + shift / 64] ^= from[i] << (shift % 64);
      if (shift % 64 != 0 && i + shift / 64 + 1 < words) to[i + shift / 64 + 1] ^= from[i] >> (64 - shift % 64);
    }
  };
  for (size_t n = 0; n < 2 * degree + 10; ++n) {
    for (size_t i = words; i-- > 1;) history[i] = history[i] << 1 | history[i - 1] >> 63;
    history[0] = history[0] << 1 | (engine() & 1);
    uint64_t sum = 0;
    for (size_t i = 0; i < words; ++i) sum ^= connection[i] & history[i];
    if (__builtin_parityll(sum) == 0) {
      ++gap;
    } else if (2 * length <= n) {
      next = connection;
      add_shifted(connection, before, gap);
      before = next;
      length = n + 1 - length;
      gap = 1;
    } else {
      add_shifted(connection, before, gap);
      ++gap;
    }
  }
  ASSERT_EQ(length, degree);
  std::vector<uint16_t> exponents;
  for (size_t e = 0; e <= degree; ++e) {
    const size_t i = degree - e;
    if ((connection[i / 64] >> (i % 64) & 1) != 0) exponents.push_back(static_cast<uint16_t>(e));
  }
  const auto known = mt19937_polynomial();
  EXPECT_EQ(exponents, std::vector<uint16_t>(known.begin(), known.end()));
}

}  // namespace
}  // namespace shadowgraph
