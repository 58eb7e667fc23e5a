#include "profiler/cost/linear_algebra_flops.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace shadowgraph {
namespace {

using Count = std::optional<int64_t>;

struct Matrices {
  double batch;
  double rows;
  double columns;
  double larger() const { return std::max(rows, columns); }
  double smaller() const { return std::min(rows, columns); }
};

std::optional<Matrices> matrices(Shape shape) {
  if (shape.size() < 2) return std::nullopt;
  const Shape leading = shape.first(shape.size() - 2);
  return Matrices{static_cast<double>(product_of(leading)), static_cast<double>(shape[shape.size() - 2]),
                  static_cast<double>(shape.back())};
}
std::optional<Matrices> square_matrices(Shape shape) {
  const auto found = matrices(shape);
  return found && found->rows == found->columns ? found : std::nullopt;
}

// Rounds a count. Whole numbers up to 2^53 are exact; thirds are rounded once, at the end.
Count counted(double flops) {
  if (!(flops >= 0)) return std::nullopt;
  return flops < 9.2e18 ? Count(std::llround(flops)) : std::numeric_limits<int64_t>::max();
}

double cube(double n) { return n * n * n; }
double lu(const Matrices& a) { return a.batch * a.smaller() * a.smaller() * (a.larger() - a.smaller() / 3); }
double reflectors(const Matrices& a) { return 2 * lu(a); }

Count per_cube(Shape shape, double factor) {
  const auto a = square_matrices(shape);
  return a ? counted(a->batch * factor * cube(a->rows)) : std::nullopt;
}

// Counts multiplying k reflectors of length m out into m x n.
double multiplied_out(double m, double n, double k) { return 4 * m * n * k - 2 * (m + n) * k * k + 4 * cube(k) / 3; }

}  // namespace

Count lu_flops(const OperandShapes& call) {
  const auto a = matrices(call.shape(0));
  return a ? counted(lu(*a)) : std::nullopt;
}

Count cholesky_flops(const OperandShapes& call) { return per_cube(call.shape(0), 1.0 / 3); }
Count cholesky_inverse_flops(const OperandShapes& call) { return per_cube(call.shape(0), 2.0 / 3); }
Count inverse_flops(const OperandShapes& call) { return per_cube(call.shape(0), 2); }
Count eigen_flops(const OperandShapes& call) { return per_cube(call.shape(0), 25); }
Count eigenvalue_flops(const OperandShapes& call) { return per_cube(call.shape(0), 10); }
Count symmetric_eigen_flops(const OperandShapes& call) {
  return per_cube(call.shape(0), call.flag(2, true) ? 9 : 4.0 / 3);
}

Count reflector_flops(const OperandShapes& call) {
  const auto a = matrices(call.shape(0));
  return a ? counted(reflectors(*a)) : std::nullopt;
}

Count qr_flops(const OperandShapes& call) {
  const auto a = matrices(call.shape(0));
  if (!a) return std::nullopt;
  const auto q = matrices(call.result(0).shape);
  double flops = reflectors(*a);
  // Mode "r" gives an empty Q, which nobody forms.
  if (q && q->rows == a->rows) flops += a->batch * multiplied_out(a->rows, q->columns, a->smaller());
  return counted(flops);
}

Count householder_product_flops(const OperandShapes& call) {
  const auto a = matrices(call.shape(0));
  if (!a || call.shape(1).empty()) return std::nullopt;
  return counted(a->batch * multiplied_out(a->rows, a->columns, static_cast<double>(call.shape(1).back())));
}

Count reflector_product_flops(const OperandShapes& call) {
  const auto c = matrices(call.shape(2));
  if (!c || call.shape(1).empty()) return std::nullopt;
  const auto k = static_cast<double>(call.shape(1).back());
  // From the left, reflectors work on columns; from the right on rows.
  const double vectors = call.flag(3, true) ? c->columns : c->rows;
  return counted(c->batch * (4 * c->rows * c->columns * k - 2 * vectors * k * k));
}

// Counts for m >= n, else for the transpose. Singular values alone take 4mn^2 - 4/3 n^3; with n vectors on each side
// 14mn^2 + 8n^3; with all 4m^2n + 8mn^2 + 9n^3.
Count svd_flops(const OperandShapes& call) {
  const auto a = matrices(call.shape(0));
  if (!a) return std::nullopt;
  const double m = a->larger();
  const double n = a->smaller();
  if (!call.flag(2, true)) return counted(a->batch * (4 * m * n * n - 4 * cube(n) / 3));
  if (call.flag(1)) return counted(a->batch * (4 * m * m * n + 8 * m * n * n + 9 * cube(n)));
  return counted(a->batch * (14 * m * n * n + 8 * cube(n)));
}

// Counts QR. A right-hand side takes the product with the reflectors, 4mn - 2n^2, and a triangular solve, n^2.
Count least_squares_flops(const OperandShapes& call) {
  const auto a = matrices(call.shape(0));
  if (!a || !call.argument(1).is_tensor() || a->rows == 0) return std::nullopt;
  const double sides = static_cast<double>(element_count(call.argument(1))) / a->rows;
  const double n = a->smaller();
  return counted(reflectors(*a) + sides * (4 * a->larger() * n - n * n));
}

template <size_t kFactor>
Count solve_flops(const OperandShapes& call) {
  const auto a = square_matrices(call.shape(kFactor));
  if (!a || !call.result(0).is_tensor()) return std::nullopt;
  return counted(2 * a->rows * static_cast<double>(element_count(call.result(0))));
}
template <size_t kFactor>
Count triangular_solve_flops(const OperandShapes& call) {
  const auto a = square_matrices(call.shape(kFactor));
  if (!a || !call.result(0).is_tensor()) return std::nullopt;
  return counted(a->rows * static_cast<double>(element_count(call.result(0))));
}
template Count solve_flops<0>(const OperandShapes&);
template Count solve_flops<1>(const OperandShapes&);
template Count triangular_solve_flops<0>(const OperandShapes&);
template Count triangular_solve_flops<1>(const OperandShapes&);

Count lu_and_solve_flops(const OperandShapes& call) {
  const auto a = square_matrices(call.shape(0));
  const Count solve = solve_flops<0>(call);
  return a && solve ? counted(lu(*a) + static_cast<double>(*solve)) : std::nullopt;
}

}  // namespace shadowgraph
