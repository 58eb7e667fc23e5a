// What a generated kernel computes: the small loop language between operators and a back end.
//
// A kernel runs over rows: some outer dimensions, and one inner dimension, the row. Every expression has a level that
// follows from what it reads:
//
//   - constant in the kernel;
//   - constant in a row: loads that the row broadcasts, reductions;
//   - one value an element.
//
// Stores of elements follow the last reduction; those to operands that are not read may come before. Reductions are of
// the row, and of `reduced_rank` dimensions between outer ones and the row. With `columns` they are of those dimensions
// alone, and give a result for each element of the row (the bias gradient of a linear layer). All reductions of a
// program are of the same dimensions; operands that do not vary along these are `of_row`.
//
//     softmax of a row:  e0 = load 0 : Float          text() of it, which is what keys are made of
//                        e1 = row_max e0
//                        e2 = sub e0 e1
//                        e3 = exp e2
//                        e4 = row_sum e3
//                        e5 = div e3 e4
//                        store 1 e5
//
// Sizes, strides and scalars come at run time; dtypes and the layout class of each operand are the kernel's.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

#include "shadowgraph/error.h"
#include "shadowgraph/export.h"

namespace SHADOWGRAPH_API shadowgraph {

enum class KernelOperation : uint8_t {
  kLoad,      // index: operand
  kGather,    // element of operand `index`, as loaded, and operands[0] times operands[1] (kLong) further on
  kInRange,   // operands[0] if it is of 0 to operands[1] (kLong); otherwise 0, and the kernel reports it
  kColumn,    // where in the row the element is, kLong
  kScalar,    // index: position among the scalars of the call; `type` kDouble or kLong
  kConstant,  // number
  kConvert,   // to `type`, as C++ converts; to kBool: whether it is not zero
  kRound,     // a kFloat that is rounded to what `rounding` (kBFloat16, kHalf) can hold
  kNegate,
  kAbsolute,
  kSquareRoot,
  kFloor,
  kCeil,
  kTruncate,
  kRoundToEven,
  kNot,  // logical, of kBool; bitwise, of integers
  kExponential,
  kExponentialOrZero,  // 0 where it would be below the least number of full precision
  kExponentialMinusOne,
  kLogarithm,
  kTangentHyperbolic,
  kErrorFunction,
  kNormalDistribution,  // cumulative: half of 1 + erf(x / sqrt 2), to a part of 1
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kMaximum,  // NaN if either is
  kMinimum,
  kPower,  // a kDouble of the kernel or row, by the C library
  kAnd,
  kOr,
  kExclusiveOr,
  kEqual,  // comparisons give kBool
  kNotEqual,
  kLess,
  kLessEqual,
  kMultiplyAdd,  // a * b + c, rounded once
  kSelect,       // a ? b : c
  kRowSum,
  kRowMaximum,  // of floating-point numbers; NaN if one is
  kRowSize,     // elements that a reduction takes, kDouble
};
const char* to_string(KernelOperation operation);

struct KernelExpression {
  KernelOperation operation = KernelOperation::kConstant;
  // What is computed with: kBool, kByte, kChar, kShort, kInt, kLong, kFloat, kDouble. Operands of two bytes are loaded as
  // kFloat.
  c10::ScalarType type = c10::ScalarType::Float;
  uint32_t operands[3] = {};  // earlier expressions
  uint32_t index = 0;
  c10::ScalarType rounding = c10::ScalarType::Undefined;
  double number = 0;
  friend bool operator==(const KernelExpression&, const KernelExpression&) = default;
};

struct KernelStore {
  uint32_t operand = 0;
  uint32_t expression = 0;
};

// How an operand lies along the row.
enum class KernelLayout : uint8_t {
  kContiguous,  // the next element is the next in memory
  kBroadcast,   // one element for all of the row
  kStrided,
};

struct KernelOperand {
  c10::ScalarType dtype = c10::ScalarType::Float;
  KernelLayout layout = KernelLayout::kContiguous;
  bool of_row = false;  // of a program with reductions: one element for what is reduced
  bool written = false;
};

struct KernelProgram {
  uint32_t outer_rank = 0;
  uint32_t reduced_rank = 0;
  bool columns = false;
  std::vector<KernelOperand> operands;
  std::vector<KernelExpression> expressions;  // each after what it uses
  std::vector<KernelStore> stores;
  uint32_t scalars = 0;

  bool has_reductions() const;
  // It reports indices out of range, with kInRange.
  bool has_checks() const;
  // What `begin` and `end` of a kernel count.
  bool runs_by_elements() const { return outer_rank == 0 && (columns || !has_reductions()); }
  // Canonical: two programs with the same text are the same kernel.
  std::string text() const;
};

// The signature of a compiled kernel.
//   data       the first element of every operand; then, with kInRange, an int64 that is set to 1 if an index is wrong
//   sizes      of the outer dimensions, of the reduced ones, of the row
//   strides    operand by operand in the same order; in elements
//   scalars    the bits of a double or int64 each
//   begin, end the rows to run; with outer_rank 0 and no reduction of the row, elements of the one row
using KernelFunction = void (*)(void* const* data, const int64_t* sizes, const int64_t* strides, const int64_t* scalars,
                                int64_t begin, int64_t end);

// A kernel that cannot be made or kept: what() says which and why.
class KernelError : public Error {
 public:
  using Error::Error;
};

}  // namespace shadowgraph
