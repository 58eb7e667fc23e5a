// Polynomials in sizes: fits, refusals, exactness.
#include <gtest/gtest.h>

#include <random>

#include "shadowgraph/error.h"
#include "shadowgraph/passes/symbolic.h"

namespace shadowgraph {
namespace {

const std::vector<std::string> kBatch{"batch"};
const std::vector<std::string> kBatchSeq{"batch", "seq"};

std::vector<std::vector<int64_t>> at(std::initializer_list<int64_t> sizes) {
  std::vector<std::vector<int64_t>> points;
  for (const int64_t size : sizes) points.push_back({size});
  return points;
}

TEST(Polynomial, FitsTheFewestTerms) {
  const PolynomialFit fit(at({2, 3, 5, 7}));
  EXPECT_EQ(fit.of({9, 9, 9, 9})->to_text(kBatch), "9");
  EXPECT_EQ(fit.of({0, 0, 0, 0})->to_text(kBatch), "0");
  EXPECT_EQ(fit.of({64, 96, 160, 224})->to_text(kBatch), "32*batch");
  EXPECT_EQ(fit.of({1, 2, 4, 6})->to_text(kBatch), "batch - 1");
  EXPECT_EQ(fit.of({4, 9, 25, 49})->to_text(kBatch), "batch^2");
  // Number of pairs: 1, 3, 10, 21.
  const auto pairs = fit.of({1, 3, 10, 21});
  EXPECT_EQ(pairs->to_text(kBatch), "(batch^2 - batch)/2");
  EXPECT_EQ(pairs->evaluate({100}), 4950);
  // A cubic passes through any four samples, so it is no evidence.
  EXPECT_FALSE(fit.of({8, 27, 125, 343}));
  EXPECT_TRUE(PolynomialFit(at({2, 3, 5, 7, 11})).of({8, 27, 125, 343, 1331}));
}

TEST(Polynomial, RefusesWhatIsNone) {
  const PolynomialFit fit(at({2, 3, 5, 7}));
  EXPECT_FALSE(fit.of({1, 1, 2, 3}));  // floor(batch / 2)
  EXPECT_FALSE(fit.of({4, 4, 5, 7}));  // max(4, batch)
  EXPECT_FALSE(fit.of({4, 4, 8, 8}));  // padded to fours
  // At multiples of four, no padding is needed.
  EXPECT_EQ(PolynomialFit(at({4, 8, 16})).of({4, 8, 16})->to_text(kBatch), "batch");
  // A polynomial with a divisor is an integer at multiples only.
  const auto half = PolynomialFit(at({4, 8, 16})).of({2, 4, 8});
  EXPECT_EQ(half->to_text(kBatch), "batch/2");
  EXPECT_EQ(half->evaluate({20}), 10);
  EXPECT_THROW(half->evaluate({21}), Error);
}

TEST(Polynomial, FitsTwoSizes) {
  std::vector<std::vector<int64_t>> points;
  for (const int64_t batch : {2, 3}) {
    for (const int64_t seq : {64, 128, 192}) points.push_back({batch, seq});
  }
  points.push_back({5, 320});
  const PolynomialFit fit(points);
  const auto fitted = [&](auto&& f) {
    std::vector<int64_t> values;
    for (const auto& point : points) values.push_back(f(point[0], point[1]));
    const auto polynomial = fit.of(values);
    return polynomial ? polynomial->to_text(kBatchSeq) : "none";
  };
  EXPECT_EQ(fitted([](int64_t, int64_t s) { return 4 * s; }), "4*seq");
  EXPECT_EQ(fitted([](int64_t b, int64_t s) { return 4096 * b * s + 12; }), "4096*batch*seq + 12");
  EXPECT_EQ(fitted([](int64_t b, int64_t s) { return 12 * b * s * s; }), "12*batch*seq^2");
  EXPECT_EQ(fitted([](int64_t b, int64_t s) { return b * s / 64; }), "batch*seq/64");
  EXPECT_EQ(fitted([](int64_t b, int64_t s) { return s % 128; }), "none");
}

// With as many terms as samples, some polynomial always fits, so it is no evidence.
TEST(Polynomial, RefusesAsManyTermsAsSamples) {
  const std::vector<std::vector<int64_t>> four{{2, 64}, {3, 128}, {5, 64}, {2, 192}};
  EXPECT_FALSE(PolynomialFit(four).of({128, 384, 320, 384}));  // batch * seq: 1, batch, seq, batch * seq
  std::vector<std::vector<int64_t>> five = four;
  five.push_back({7, 320});
  const auto product = PolynomialFit(five).of({128, 384, 320, 384, 2240});
  ASSERT_TRUE(product);
  EXPECT_EQ(product->to_text(kBatchSeq), "batch*seq");
  EXPECT_EQ(PolynomialFit(four).of({4, 6, 10, 4})->to_text(kBatchSeq), "2*batch");
}

TEST(Polynomial, IsExactForLargeNumbers) {
  // 2 * 4096 * 14336 * batch * seq exceeds what a double holds exactly.
  const PolynomialFit fit(at({2048, 4096, 8192, 16384}));
  const int64_t factor = 2LL * 4096 * 14336 * 1021;
  const auto linear = fit.of({factor * 2048 + 1, factor * 4096 + 1, factor * 8192 + 1, factor * 16384 + 1});
  ASSERT_TRUE(linear);
  EXPECT_EQ(linear->evaluate({6144}), factor * 6144 + 1);
  EXPECT_THROW(linear->evaluate({int64_t{1} << 50}), Error) << "overflows int64";
}

TEST(Polynomial, RandomOnesAreFoundAgain) {
  std::mt19937_64 random(20240607);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::vector<int64_t>> points;
    const int64_t step = 1 + static_cast<int64_t>(random() % 64);
    for (int64_t b = 0; b < 3; ++b) {
      for (int64_t s = 0; s < 3; ++s) points.push_back({2 + b, (1 + s) * step});
    }
    points.push_back({7, 9 * step});
    std::vector<Polynomial::Term> terms;
    for (uint8_t i = 0; i <= random() % 3; ++i) {
      for (uint8_t j = 0; j <= random() % 3; ++j) {
        terms.push_back({static_cast<int64_t>(random() % 100000) - 50000, {i, j}});
      }
    }
    // Exponents must be unique.
    std::map<Polynomial::Exponents, Polynomial::Term> unique;
    for (const auto& term : terms) unique[term.exponents] = term;
    terms.clear();
    for (const auto& [exponents, term] : unique) terms.push_back(term);
    const Polynomial truth(terms);
    std::vector<int64_t> values;
    for (const auto& point : points) values.push_back(truth.evaluate(point));
    const auto found = PolynomialFit(points).of(values);
    ASSERT_TRUE(found) << "round " << round;
    EXPECT_EQ(found->to_text(kBatchSeq), truth.to_text(kBatchSeq));
    EXPECT_EQ(found->evaluate({512, 100 * step}), truth.evaluate({512, 100 * step}));
  }
}

TEST(Polynomial, RefusesSamplesThatAreNone) {
  EXPECT_THROW(PolynomialFit({}), Error);
  EXPECT_THROW(PolynomialFit({{1}, {1, 2}}), Error);
  EXPECT_THROW(PolynomialFit({{1}, {1}}), Error);
  EXPECT_THROW(PolynomialFit({{1, 2, 3, 4, 5}}), Error);
  EXPECT_THROW((void)PolynomialFit({{1}, {2}}).of({1}), Error);
}

}  // namespace
}  // namespace shadowgraph
