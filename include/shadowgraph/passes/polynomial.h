// Polynomials with exact coefficients in a few named sizes, and fitting one to samples.
//
//     PolynomialFit fit({{2}, {3}, {5}, {7}});              // four captures, at batch 2, 3, 5 and 7
//     auto p = fit.of({{64, 96, 160, 224}});                // 32*batch
//     p->evaluate({{512}});                                 // 16384
//
// Only integers and rationals occur: a fit is exact at every sample or there is none. The fewest terms win. There is at
// least one sample more than terms, and one value more of each size than it takes. So a polynomial is never merely
// drawn through its points.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shadowgraph/export.h"

namespace SHADOWGRAPH_API shadowgraph {

class Polynomial {
 public:
  static constexpr size_t kMaxVariables = 4;
  using Exponents = std::array<uint8_t, kMaxVariables>;
  struct Term {
    int64_t coefficient = 0;
    Exponents exponents{};
    friend bool operator==(const Term&, const Term&) = default;
  };

  // The sum of `terms` over `denominator`.
  explicit Polynomial(std::vector<Term> terms = {}, int64_t denominator = 1);
  static Polynomial constant(int64_t value) { return Polynomial(std::vector<Term>{{value, {}}}); }

  // Throws Error if the value is no integer there, or larger than an int64.
  int64_t evaluate(std::span<const int64_t> sizes) const;
  int64_t evaluate(std::initializer_list<int64_t> sizes) const {
    return evaluate(std::span<const int64_t>(sizes.begin(), sizes.size()));
  }
  bool is_constant() const;
  std::span<const Term> terms() const { return terms_; }
  int64_t denominator() const { return denominator_; }
  // "4*batch*seq^2 + 8", "(batch^2 + batch)/2"; highest powers first.
  std::string to_text(std::span<const std::string> names) const;
  friend bool operator==(const Polynomial&, const Polynomial&) = default;

 private:
  std::vector<Term> terms_;  // without zeros, highest powers first
  int64_t denominator_ = 1;
};

class PolynomialFit {
 public:
  // One point per sample, all with the same number of coordinates, at most Polynomial::kMaxVariables. Throws Error
  // otherwise, and for equal points.
  explicit PolynomialFit(std::vector<std::vector<int64_t>> points);
  ~PolynomialFit();
  PolynomialFit(PolynomialFit&&) noexcept;
  PolynomialFit& operator=(PolynomialFit&&) noexcept;

  // The polynomial that has these values at the points, one per point; empty if none with few enough terms has.
  std::optional<Polynomial> of(std::span<const int64_t> values) const;
  std::optional<Polynomial> of(std::initializer_list<int64_t> values) const {
    return of(std::span<const int64_t>(values.begin(), values.size()));
  }

 private:
  struct Basis;
  std::vector<std::vector<int64_t>> points_;
  std::vector<int64_t> origin_;  // fitting is done in (size - origin) / step: small numbers
  std::vector<int64_t> step_;
  std::vector<std::unique_ptr<const Basis>> bases_;  // fewest terms first
};

}  // namespace shadowgraph
