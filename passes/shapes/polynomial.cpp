// Fits polynomials with rational coefficients to samples, exactly. Sizes of programs are polynomials in the batch size
// and the sequence length: 3*batch*seq^2, batch*(seq+1)/2. Floating point would be approximate.
//
// A fit has fewer terms than samples, so that at least one sample confirms the others. Matrices are inverted once for
// all numbers of a graph; each number then costs a product with each basis that is tried, small ones first.
#include <boost/multiprecision/cpp_int.hpp>
#include <boost/rational.hpp>

#include <algorithm>
#include <map>
#include <numeric>
#include <ranges>
#include <set>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "shadowgraph/error.h"
#include "shadowgraph/passes/symbolic.h"

namespace shadowgraph {
namespace {

// Exact arithmetic with 128-bit numerators and denominators. Throws Overflow, in which case there is no fit.
// Compare ratios with ratios: with other numbers Boost 1.74's operators recurse without end in C++20.
using Wide = boost::multiprecision::checked_int128_t;
using Ratio = boost::rational<Wide>;
using Overflow = std::overflow_error;

using Exponents = Polynomial::Exponents;
using Expanded = std::map<Exponents, Ratio>;

// Higher powers first, earlier variables first among equals: the usual order of polynomials.
bool comes_first(const Exponents& a, const Exponents& b) {
  const int degree_a = std::accumulate(a.begin(), a.end(), 0);
  const int degree_b = std::accumulate(b.begin(), b.end(), 0);
  return degree_a != degree_b ? degree_a > degree_b : a > b;
}

Wide monomial(const Exponents& exponents, std::span<const int64_t> at) {
  Wide product = 1;
  for (size_t i = 0; i < at.size(); ++i)
    for (int power = 0; power < exponents[i]; ++power) product *= at[i];
  return product;
}

// Adds coefficient * product of ((x_i - origin_i) / step_i) ^ exponent_i to `sum`. Converts fits back to sizes.
void add_shifted(Expanded& sum, const Ratio& coefficient, const Exponents& exponents, std::span<const int64_t> origin,
                 std::span<const int64_t> step) {
  Expanded product{{Exponents{}, coefficient}};
  for (size_t i = 0; i < origin.size(); ++i) {
    for (int power = 0; power < exponents[i]; ++power) {
      Expanded next;
      for (const auto& [term, factor] : product) {
        Exponents raised = term;
        ++raised[i];
        next[raised] += factor * Ratio(1, step[i]);
        next[term] += factor * Ratio(-Wide(origin[i]), step[i]);
      }
      product = std::move(next);
    }
  }
  for (const auto& [term, factor] : product) sum[term] += factor;
}

}  // namespace

Polynomial::Polynomial(std::vector<Term> terms, int64_t denominator)
    : terms_(std::move(terms)), denominator_(denominator) {
  std::erase_if(terms_, [](const Term& term) { return term.coefficient == 0; });
  std::ranges::sort(terms_, [](const Term& a, const Term& b) { return comes_first(a.exponents, b.exponents); });
}

bool Polynomial::is_constant() const {
  return std::ranges::all_of(terms_, [](const Term& term) { return term.exponents == Exponents{}; });
}

// A fractional value means sizes at which the program rounds, and which no capture had.
int64_t Polynomial::evaluate(std::span<const int64_t> sizes) const {
  try {
    Wide sum = 0;
    for (const Term& term : terms_) sum += term.coefficient * monomial(term.exponents, sizes);
    if (sum % denominator_ != 0) {
      std::string at;
      for (const int64_t size : sizes) at += (at.empty() ? "" : ", ") + std::to_string(size);
      throw Error("a fitted size is not an integer at (" + at +
                  "); use sizes between the captured ones, in the same steps");
    }
    return static_cast<int64_t>(Wide(sum / denominator_));  // checked, as sizes are int64
  } catch (const Overflow&) {
    throw Error("a fitted size does not fit an int64; use smaller sizes");
  }
}

std::string Polynomial::to_text(std::span<const std::string> names) const {
  if (terms_.empty()) return "0";
  std::string text;
  for (const Term& term : terms_) {
    std::string factors;
    for (size_t i = 0; i < names.size(); ++i) {
      if (term.exponents[i] == 0) continue;
      factors += (factors.empty() ? "" : "*") + names[i];
      if (term.exponents[i] > 1) factors += "^" + std::to_string(term.exponents[i]);
    }
    const bool negative = term.coefficient < 0;
    const std::string sign = text.empty() ? (negative ? "-" : "") : (negative ? " - " : " + ");
    std::string magnitude = std::to_string(term.coefficient);
    if (negative) magnitude.erase(0, 1);
    if (magnitude == "1" && !factors.empty()) magnitude.clear();
    text += sign + magnitude + (magnitude.empty() || factors.empty() ? "" : "*") + factors;
  }
  if (denominator_ == 1) return text;
  return (terms_.size() > 1 ? "(" + text + ")" : text) + "/" + std::to_string(denominator_);
}

// Monomials whose values at some of the points are independent, and the inverse of the matrix of those values.
struct PolynomialFit::Basis {
  std::vector<Exponents> monomials;
  std::vector<size_t> chosen;               // as many points as monomials
  std::vector<std::vector<Ratio>> inverse;  // coefficients = inverse * values at the chosen points
  std::vector<std::vector<Wide>> values;    // of the monomials at every point
};

namespace {

// Selects independent rows of `matrix` (points by monomials) and inverts them. No rows if columns are dependent.
std::pair<std::vector<size_t>, std::vector<std::vector<Ratio>>> invert(const std::vector<std::vector<Wide>>& matrix,
                                                                       size_t columns) {
  std::vector<size_t> chosen;
  std::vector<std::vector<Ratio>> reduced;  // rows so far in echelon form, augmented with the identity
  std::vector<size_t> pivots;
  // Gauss-Jordan elimination, row by row: a row that depends on earlier ones is a redundant point.
  for (size_t row = 0; row < matrix.size() && chosen.size() < columns; ++row) {
    std::vector<Ratio> line(2 * columns);
    for (size_t c = 0; c < columns; ++c) line[c] = Ratio(matrix[row][c]);
    line[columns + chosen.size()] = Ratio(1);
    for (size_t r = 0; r < reduced.size(); ++r) {
      const Ratio factor = line[pivots[r]];
      if (factor == Ratio()) continue;
      for (size_t c = 0; c < 2 * columns; ++c) line[c] -= factor * reduced[r][c];
    }
    size_t pivot = 0;
    while (pivot < columns && line[pivot] == Ratio()) ++pivot;
    if (pivot == columns) continue;
    const Ratio scale = line[pivot];
    for (Ratio& entry : line) entry /= scale;
    for (size_t r = 0; r < reduced.size(); ++r) {
      const Ratio factor = reduced[r][pivot];
      if (factor == Ratio()) continue;
      for (size_t c = 0; c < 2 * columns; ++c) reduced[r][c] -= factor * line[c];
    }
    reduced.push_back(std::move(line));
    pivots.push_back(pivot);
    chosen.push_back(row);
  }
  // Too few independent points to distinguish the monomials.
  if (chosen.size() < columns) return {};
  std::vector<std::vector<Ratio>> inverse(columns);
  for (size_t r = 0; r < columns; ++r) {
    inverse[pivots[r]].assign(reduced[r].begin() + static_cast<std::ptrdiff_t>(columns), reduced[r].end());
  }
  return {chosen, inverse};
}

}  // namespace

PolynomialFit::PolynomialFit(std::vector<std::vector<int64_t>> points) : points_(std::move(points)) {
  if (points_.empty()) throw Error("fitting a polynomial requires at least one sample");
  const size_t variables = points_[0].size();
  if (variables > Polynomial::kMaxVariables) {
    throw Error("at most " + std::to_string(Polynomial::kMaxVariables) + " sizes can vary at a time");
  }
  for (const auto& point : points_) {
    if (point.size() != variables) throw Error("samples have different numbers of sizes");
  }
  if (std::set(points_.begin(), points_.end()).size() != points_.size()) throw Error("two samples have the same sizes");

  // Each size needs more values than powers: k values allow powers up to k - 2, and at most cubes.
  std::vector<uint8_t> highest(variables);
  for (size_t v = 0; v < variables; ++v) {
    std::set<int64_t> values;
    for (const auto& point : points_) values.insert(point[v]);
    highest[v] = static_cast<uint8_t>(std::min<size_t>(std::max<size_t>(values.size(), 2) - 2, 3));
    origin_.push_back(*values.begin());
    int64_t step = 0;
    for (const int64_t value : values) step = std::gcd(step, value - origin_[v]);
    step_.push_back(std::max<int64_t>(step, 1));
  }
  // Points are shifted and divided by their common step, to keep powers small: 64, 128, 192 become 0, 1, 2.
  std::vector<std::vector<int64_t>> small = points_;
  for (auto& point : small)
    for (size_t v = 0; v < variables; ++v) point[v] = (point[v] - origin_[v]) / step_[v];

  // All monomials up to a maximum power of each variable, for every combination of maxima.
  std::vector<Exponents> boxes{{}};
  for (size_t v = 0; v < variables; ++v) {
    for (size_t i = 0, count = boxes.size(); i < count; ++i) {
      for (uint8_t power = 1; power <= highest[v]; ++power) {
        boxes.push_back(boxes[i]);
        boxes.back()[v] = power;
      }
    }
  }
  // As many monomials as points would fit any samples.
  for (const Exponents& box : boxes) {
    auto basis = std::make_unique<Basis>();
    basis->monomials = {{}};
    for (size_t v = 0; v < variables; ++v) {
      for (size_t i = 0, count = basis->monomials.size(); i < count; ++i) {
        for (uint8_t power = 1; power <= box[v]; ++power) {
          basis->monomials.push_back(basis->monomials[i]);
          basis->monomials.back()[v] = power;
        }
      }
    }
    if (basis->monomials.size() >= points_.size()) continue;
    try {
      for (const auto& point : small) {
        auto& row = basis->values.emplace_back();
        for (const Exponents& exponents : basis->monomials) row.push_back(monomial(exponents, point));
      }
      std::tie(basis->chosen, basis->inverse) = invert(basis->values, basis->monomials.size());
    } catch (const Overflow&) {
      continue;
    }
    if (!basis->chosen.empty()) bases_.push_back(std::move(basis));
  }
  // The fewest terms win, so small bases are tried first.
  std::ranges::stable_sort(bases_, {}, [](const auto& basis) { return basis->monomials.size(); });
}

PolynomialFit::~PolynomialFit() = default;
PolynomialFit::PolynomialFit(PolynomialFit&&) noexcept = default;
PolynomialFit& PolynomialFit::operator=(PolynomialFit&&) noexcept = default;

// Solves at the chosen points and checks all points. The first fit has the fewest terms.
std::optional<Polynomial> PolynomialFit::of(std::span<const int64_t> values) const {
  if (values.size() != points_.size()) throw Error("the number of values must equal the number of samples");
  for (const auto& basis : bases_) {
    try {
      const size_t count = basis->monomials.size();
      std::vector<Ratio> coefficients(count);
      for (size_t i = 0; i < count; ++i) {
        for (size_t j = 0; j < count; ++j) coefficients[i] += basis->inverse[i][j] * Wide(values[basis->chosen[j]]);
      }
      const bool fits = std::ranges::all_of(std::views::iota(size_t{0}, points_.size()), [&](size_t point) {
        Ratio sum;
        for (size_t i = 0; i < count; ++i) sum += coefficients[i] * basis->values[point][i];
        return sum == Ratio(values[point]);
      });
      if (!fits) continue;
      Expanded expanded;
      for (size_t i = 0; i < count; ++i) {
        if (coefficients[i] != Ratio()) add_shifted(expanded, coefficients[i], basis->monomials[i], origin_, step_);
      }
      // A common denominator for all terms keeps evaluation in integers.
      Wide denominator = 1;
      for (const auto& [exponents, ratio] : expanded) denominator = lcm(denominator, ratio.denominator());
      std::vector<Polynomial::Term> terms;
      for (const auto& [exponents, ratio] : expanded) {
        const Wide coefficient = ratio.numerator() * (denominator / ratio.denominator());
        terms.push_back({static_cast<int64_t>(coefficient), exponents});
      }
      return Polynomial(std::move(terms), static_cast<int64_t>(denominator));
    } catch (const Overflow&) {
      continue;
    }
  }
  return std::nullopt;
}

}  // namespace shadowgraph
