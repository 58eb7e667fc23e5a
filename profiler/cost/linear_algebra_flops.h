// Counts FLOPs of dense factorisations and solves: leading terms, for the rows of flop_table.cpp.
//
// Counts are multiplications and additions of the usual algorithm on one m x n matrix, times the matrices of the batch.
// Complex numbers count as real ones; pivoting and permutations are free. The source is Golub & Van Loan, Matrix
// Computations (4th ed.): sections 3.2 (LU), 4.2 (Cholesky), 5.2 (QR), 7.5 (unsymmetric eigenvalues), 8.3 (symmetric),
// 8.6 (SVD). What LAPACK does with a factorisation comes from LAPACK Working Note 41, appendix C.
//
// Iterations (eigenvalues, SVD) count as those books' averages: what really runs depends on data.
#pragma once

#include <cstdint>
#include <optional>

#include "shadowgraph/profile/operand_shapes.h"

namespace shadowgraph {

std::optional<int64_t> lu_flops(const OperandShapes& call);                   // A: min(m, n)^2 (max(m, n) - min/3)
std::optional<int64_t> cholesky_flops(const OperandShapes& call);             // A: n^3 / 3; LDL too
std::optional<int64_t> cholesky_inverse_flops(const OperandShapes& call);     // L: 2 n^3 / 3
std::optional<int64_t> inverse_flops(const OperandShapes& call);              // A: 2 n^3
std::optional<int64_t> qr_flops(const OperandShapes& call);                   // A, mode; by the shape of Q
std::optional<int64_t> reflector_flops(const OperandShapes& call);            // A: R and reflectors, as LAPACK's geqrf
std::optional<int64_t> householder_product_flops(const OperandShapes& call);  // reflectors, tau: orgqr
std::optional<int64_t> reflector_product_flops(const OperandShapes& call);    // reflectors, tau, C, left: ormqr
std::optional<int64_t> symmetric_eigen_flops(const OperandShapes& call);      // A, uplo, vectors: 9 n^3, or 4/3 n^3
std::optional<int64_t> eigen_flops(const OperandShapes& call);                // A: 25 n^3, with vectors
std::optional<int64_t> eigenvalue_flops(const OperandShapes& call);           // A: 10 n^3
std::optional<int64_t> svd_flops(const OperandShapes& call);                  // A, full matrices, vectors
std::optional<int64_t> least_squares_flops(const OperandShapes& call);        // A, B: by QR

// Counts two triangular solves a right-hand side, 2 n^2, after a factorisation whose n x n factor is argument
// `kFactor`.
template <size_t kFactor>
std::optional<int64_t> solve_flops(const OperandShapes& call);
// Counts one triangular solve, n^2.
template <size_t kFactor>
std::optional<int64_t> triangular_solve_flops(const OperandShapes& call);
// Counts LU and two triangular solves; the arguments are A and B.
std::optional<int64_t> lu_and_solve_flops(const OperandShapes& call);

}  // namespace shadowgraph
