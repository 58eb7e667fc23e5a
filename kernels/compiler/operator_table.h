// Says what operators compute, a row each. Internal to kernels/compiler.
#pragma once

#include <string_view>
#include <vector>

#include "kernels/compiler/operator_call.h"

namespace shadowgraph {

using c10::ScalarType;
using Operation = KernelOperation;
using Call = OperatorCall;
using Results = std::vector<Typed>;

// Returns the dimensions of argument `input` that an operator reduces, ascending. Throws KernelError for what no kernel
// does.
using ReducedDimensions = std::vector<int64_t> (*)(const Call& call);

struct KernelRow {
  const char* name;  // without namespace and overload; in-place variants have the row of the functional one
  // Makes one expression a result. Throws KernelError for what the row does not do.
  Results (*make)(const Call& call);
  // whether results are within some ulps of eager's, rather than the same bits
  bool inexact = false;
  ReducedDimensions reduced = nullptr;  // nullptr: pointwise
  size_t input = 0;
  // For an operator that returns nothing: the arguments that `make`'s expressions are written to.
  std::vector<size_t> writes;
  // Makes the results from `second_results` on, which reduce other dimensions, in a program of their own.
  Results (*make_second)(const Call& call) = nullptr;
  ReducedDimensions reduced_second = nullptr;
  size_t second_results = 0;

  const char* file = __builtin_FILE();  // that the row stands in
};

// ---- For several rows

inline Typed times(const Call& call, Typed a, Typed b) { return call.apply(Operation::kMultiply, a, b); }
inline Typed divided(const Call& call, Typed a, Typed b) { return call.apply(Operation::kDivide, a, b); }
inline Typed plus(const Call& call, Typed a, Typed b) { return call.apply(Operation::kAdd, a, b); }
inline Typed minus(const Call& call, Typed a, Typed b) { return call.apply(Operation::kSubtract, a, b); }
Typed constant_of(const Call& call, double value, Typed like);
bool has_two_bytes(ScalarType dtype);
// Returns a * b + c, rounded once where eager's kernels round once: those for AVX2 and above are compiled with
// contraction.
Typed multiply_add(const Call& call, Typed a, Typed b, Typed c);

// Returns nullptr if there is no row. `name` is an operator's with namespace and overload: "aten::add_.Tensor".
const KernelRow* find_kernel_row(std::string_view name);

std::vector<KernelRow> pointwise_rows();
std::vector<KernelRow> row_reduction_rows();
std::vector<KernelRow> optimizer_rows();
std::vector<KernelRow> gather_rows();

}  // namespace shadowgraph
