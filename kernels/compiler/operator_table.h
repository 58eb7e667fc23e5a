// The table of operators that kernels are compiled for. Internal to kernels/; also used by the operator card.
#pragma once

#include <bit>
#include <functional>
#include <string_view>
#include <vector>

#include "shadowgraph/graph/graph.h"
#include "shadowgraph/graph/target.h"
#include "shadowgraph/kernels/program.h"

namespace shadowgraph {

// The reason for operators that could have a row.
inline constexpr std::string_view kNoRow = "it has no row in the operator table";

// Returns a clause such as "it is a matrix product, for which libtorch uses BLAS".
std::string_view why_no_kernel(const Target& target);

// Access to one node for the rows of the operator table: its operands and numbers as expressions.

class ExpressionBuilder;

// An expression with its ATen dtype. Expressions of two-byte dtypes are computed in kFloat.
struct Typed {
  uint32_t expression = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;
  ExpressionBuilder* build = nullptr;  // of its program
};

// Appends expressions to a program, and collects the scalars of the call.
class ExpressionBuilder {
 public:
  explicit ExpressionBuilder(KernelProgram& program) : program_(program) {}

  Typed load(uint32_t operand, c10::ScalarType dtype);
  // `argument`: the position of the argument that the number comes from.
  Typed scalar(double value, size_t argument) { return scalar(std::bit_cast<int64_t>(value), kDouble, argument); }
  Typed scalar(int64_t value, size_t argument) { return scalar(value, c10::ScalarType::Long, argument); }
  Typed constant(double value, c10::ScalarType dtype);
  // Rounds a value to `dtype`; appends nothing if that has no effect.
  Typed convert(Typed value, c10::ScalarType dtype);
  // Operands must have the same dtype, which is the result's, or kBool for comparisons. A result of a two-byte dtype
  // computed in kFloat is only rounded when it is converted.
  Typed apply(KernelOperation operation, Typed a);
  Typed apply(KernelOperation operation, Typed a, Typed b);
  Typed apply(KernelOperation operation, Typed a, Typed b, Typed c);
  Typed row_size();
  // Returns the element of `operand` at offset `index` * `stride`; both are kLong.
  Typed gather(uint32_t operand, c10::ScalarType dtype, Typed index, Typed stride);
  Typed column();
  // Adds a scalar determined by the operands' sizes rather than an argument.
  Typed fixed(int64_t value) { return scalar(value, kNoArgument); }
  static constexpr uint32_t kNoArgument = 0xFFFFFFFFU;
  const std::vector<int64_t>& scalars() const { return scalars_; }
  const std::vector<uint32_t>& scalar_arguments() const { return scalar_arguments_; }

 private:
  static constexpr c10::ScalarType kDouble = c10::ScalarType::Double;
  Typed append(KernelExpression expression, c10::ScalarType dtype);
  Typed scalar(int64_t bits, c10::ScalarType type, size_t argument);
  KernelProgram& program_;
  std::vector<int64_t> scalars_;
  std::vector<uint32_t> scalar_arguments_;
};

// Returns kFloat for kHalf and kBFloat16, otherwise the dtype. Throws UnsupportedError for dtypes without arithmetic in
// kernels.
c10::ScalarType computed_as(c10::ScalarType dtype);

class OperatorCall {
 public:
  // Returns the elements of a tensor. `dims` maps its dimensions to those of the iteration space; nullptr for the last
  // ones.
  using Content = std::function<Typed(ValueId, const std::vector<int64_t>* dims)>;
  // Returns the operand for a tensor that is gathered from; `dims` is -1 for the gathered dimension.
  using Source = std::function<uint32_t(ValueId, const std::vector<int64_t>& dims)>;

  OperatorCall(const Graph& graph, NodeId node, ExpressionBuilder& build, Content content, Source source)
      : build(build), graph_(graph), node_(node), content_(std::move(content)), source_(std::move(source)) {}

  ExpressionBuilder& build;

  // Arguments by position. All throw UnsupportedError if the argument has another kind.
  bool is_none(size_t i) const;
  // Returns whether an argument is a number or a tensor with one element, which libtorch's kernels treat as a number.
  bool is_single(size_t i) const;
  Typed tensor(size_t i) const;  // in its dtype; numbers as kDouble or kLong
  double number(size_t i) const;
  int64_t integer(size_t i) const;
  bool flag(size_t i) const { return integer(i) != 0; }
  std::string_view string(size_t i) const;
  std::span<const int64_t> ints(size_t i) const;
  bool is_ints(size_t i) const;
  // Returns ATen's promoted dtype of the operands: tensors have priority over 0-dim tensors, and these over numbers.
  c10::ScalarType promoted(std::initializer_list<size_t> operands) const;
  // As promoted(), but with integers promoted to floating point.
  c10::ScalarType promoted_to_float(std::initializer_list<size_t> operands) const;
  // Returns `tensor(i)` converted to `dtype`; a number is not rounded to two bytes.
  Typed operand(size_t i, c10::ScalarType dtype) const;
  // Returns a tensor whose dimensions correspond to `dims` of the iteration space instead of the last ones.
  Typed along(size_t i, const std::vector<int64_t>& dims) const;
  // Returns the element at `index` of dimension `dim`. The index is checked at run time.
  Typed in_range(size_t i, int64_t dim, Typed index) const;
  Typed gathered(size_t i, const std::vector<int64_t>& dims, Typed index) const;
  c10::ScalarType result_dtype(size_t i = 0) const;
  int64_t rank(size_t i) const;  // of a tensor
  // Bit mask of the arguments whose values affect the program; numbers passed as scalars are not included.
  uint64_t decisive() const { return decisive_; }
  size_t argument_count() const { return graph_.arguments(node_).size(); }

 private:
  const Argument& argument(size_t i) const { return graph_.arguments(node_)[i]; }
  // Returns an argument that affects the program.
  const Argument& deciding(size_t i, ArgumentKind kind, const char* what) const;
  ValueId value(size_t i) const;
  const Graph& graph_;
  NodeId node_;
  Content content_;
  Source source_;
  mutable uint64_t decisive_ = 0;
};

// The operator table: one row per operator. Internal to kernels/compiler.

using c10::ScalarType;
using Operation = KernelOperation;
using Call = OperatorCall;
using Results = std::vector<Typed>;

// Returns the dimensions of argument `input` that an operator reduces, in ascending order. Throws UnsupportedError for
// unsupported reductions.
using ReducedDimensions = std::vector<int64_t> (*)(const Call& call);

struct KernelRow {
  const char* name;  // without namespace and overload; in-place variants use the functional one's row
  // Returns one expression per result. Throws UnsupportedError for unsupported arguments.
  Results (*make)(const Call& call);
  // whether results may differ from eager by a few ulps instead of being bitwise equal
  bool inexact = false;
  ReducedDimensions reduced = nullptr;  // nullptr: pointwise
  size_t input = 0;
  // For an operator that returns nothing: the arguments that the expressions of `make` are written to.
  std::vector<size_t> writes;
  // Returns the results from `second_results` on, which reduce other dimensions, in a separate program.
  Results (*make_second)(const Call& call) = nullptr;
  ReducedDimensions reduced_second = nullptr;
  size_t second_results = 0;

  const char* file = __builtin_FILE();  // the file of the row
};

// As ExpressionBuilder::apply.
template <class... Rest>
Typed apply(Operation operation, Typed a, Rest... rest) {
  return a.build->apply(operation, a, rest...);
}
inline Typed operator-(Typed a) { return apply(Operation::kNegate, a); }
inline Typed operator+(Typed a, Typed b) { return apply(Operation::kAdd, a, b); }
inline Typed operator-(Typed a, Typed b) { return apply(Operation::kSubtract, a, b); }
inline Typed operator*(Typed a, Typed b) { return apply(Operation::kMultiply, a, b); }
inline Typed operator/(Typed a, Typed b) { return apply(Operation::kDivide, a, b); }
inline Typed select(Typed condition, Typed a, Typed b) { return apply(Operation::kSelect, condition, a, b); }
inline Typed square_root(Typed a) { return apply(Operation::kSquareRoot, a); }
inline Typed exponential(Typed a) { return apply(Operation::kExponentialOrZero, a); }
inline Typed convert(Typed a, ScalarType dtype) { return a.build->convert(a, dtype); }
inline Typed constant_of(double value, Typed like) { return like.build->constant(value, like.dtype); }
bool has_two_bytes(ScalarType dtype);
// Returns a * b + c, rounded once where eager's kernels do: those for AVX2 and above are compiled with FP contraction.
Typed multiply_add(Typed a, Typed b, Typed c);

// Returns nullptr if there is no row. `name` has namespace and overload: "aten::add_.Tensor".
const KernelRow* find_kernel_row(std::string_view name);

std::vector<KernelRow> pointwise_rows();
std::vector<KernelRow> row_reduction_rows();
std::vector<KernelRow> optimizer_rows();
std::vector<KernelRow> gather_rows();

}  // namespace shadowgraph
