// Why no kernel is made of an operator that has no row. Internal to kernels/, and for the operator card.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/graph/graph.h"
#include "shadowgraph/graph/target.h"
#include "shadowgraph/kernels/program.h"

namespace shadowgraph {

// The reason of an operator that could have a row.
inline constexpr std::string_view kNoRow = "nobody has written its row";

// Returns a clause, as "it is a matrix product, which libtorch's BLAS does better than a loop".
std::string_view why_no_kernel(const Target& target);

// Shows one node to the rows of the operator table: operands and numbers as expressions, and what they become. Internal
// to kernels/compiler.

// An expression, and the dtype that it has for ATen. An expression of a two-byte dtype is computed as a kFloat.
struct Typed {
  uint32_t expression = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;
};

// Appends expressions to a program, and collects scalars of the call beside it.
class ExpressionBuilder {
 public:
  explicit ExpressionBuilder(KernelProgram& program) : program_(program) {}

  Typed load(uint32_t operand, c10::ScalarType dtype);
  // `argument` is the place in the call that the number comes from.
  Typed scalar(double value, size_t argument);
  Typed scalar(int64_t value, size_t argument);
  Typed constant(double value, c10::ScalarType dtype);
  // Rounds a value to what `dtype` can hold; appends nothing where that changes nothing.
  Typed convert(Typed value, c10::ScalarType dtype);
  // Takes operands of one dtype and gives a result of the same, or kBool for comparisons. A result that is computed in
  // kFloat for two bytes is not rounded until it is converted.
  Typed apply(KernelOperation operation, Typed a);
  Typed apply(KernelOperation operation, Typed a, Typed b);
  Typed apply(KernelOperation operation, Typed a, Typed b, Typed c);
  Typed row_size();
  // Returns the element of `operand` that lies `index` steps of `stride` on; all of them are kLong.
  Typed gather(uint32_t operand, c10::ScalarType dtype, Typed index, Typed stride);
  Typed column();
  // Adds a number that the sizes of the operands decide and no argument gives.
  Typed fixed(int64_t value) { return scalar(value, kNoArgument); }
  static constexpr uint32_t kNoArgument = 0xFFFFFFFFU;
  const std::vector<int64_t>& scalars() const { return scalars_; }
  const std::vector<uint32_t>& scalar_arguments() const { return scalar_arguments_; }

 private:
  Typed append(KernelExpression expression, c10::ScalarType dtype);
  KernelProgram& program_;
  std::vector<int64_t> scalars_;
  std::vector<uint32_t> scalar_arguments_;
};

// Returns kFloat for kHalf and kBFloat16, otherwise the dtype. Throws UnsupportedError for a dtype that kernels do not
// compute with.
c10::ScalarType computed_as(c10::ScalarType dtype);

class OperatorCall {
 public:
  // Returns the elements of a tensor. Its dimensions are those `dims` of what is computed, or the last ones for
  // nullptr.
  using Content = std::function<Typed(ValueId, const std::vector<int64_t>* dims)>;
  // Returns the operand of a tensor that is gathered from, along the dimension that `dims` has as -1.
  using Source = std::function<uint32_t(ValueId, const std::vector<int64_t>& dims)>;

  OperatorCall(const Graph& graph, NodeId node, ExpressionBuilder& build, Content content, Source source)
      : build(build), graph_(graph), node_(node), content_(std::move(content)), source_(std::move(source)) {}

  ExpressionBuilder& build;

  // These return arguments by position. All throw UnsupportedError if the argument is of another kind.
  bool is_none(size_t i) const;
  // Says whether an argument is a number, or a tensor of one element, which libtorch's kernels take for one.
  bool is_single(size_t i) const;
  Typed tensor(size_t i) const;  // as it is; a number as kDouble or kLong
  double number(size_t i) const;
  int64_t integer(size_t i) const;
  bool flag(size_t i) const { return integer(i) != 0; }
  std::string_view string(size_t i) const;
  std::span<const int64_t> ints(size_t i) const;
  bool is_ints(size_t i) const;
  // Returns what operands promote to in ATen: tensors come before zero-dimensional ones, and these before numbers.
  c10::ScalarType promoted(std::initializer_list<size_t> operands) const;
  // Returns the same for an operator that makes floating-point numbers of integers.
  c10::ScalarType promoted_to_float(std::initializer_list<size_t> operands) const;
  // Returns `tensor(i)` as `dtype`; a number is not rounded to two bytes.
  Typed operand(size_t i, c10::ScalarType dtype) const;
  // Returns a tensor whose dimensions lie along `dims` of the space, rather than along the last ones.
  Typed along(size_t i, const std::vector<int64_t>& dims) const;
  // Returns that tensor's element at `index` of its dimension `dim`. The index is checked when the kernel runs.
  Typed in_range(size_t i, int64_t dim, Typed index) const;
  Typed gathered(size_t i, const std::vector<int64_t>& dims, Typed index) const;
  c10::ScalarType result_dtype(size_t i = 0) const;
  int64_t rank(size_t i) const;  // of a tensor
  // Bits of the arguments whose values decide what is computed; numbers that the kernel gets as scalars have no bit.
  uint64_t decisive() const { return decisive_; }
  size_t argument_count() const { return graph_.arguments(node_).size(); }

  Typed apply(KernelOperation operation, Typed a) const { return build.apply(operation, a); }
  Typed apply(KernelOperation operation, Typed a, Typed b) const { return build.apply(operation, a, b); }
  Typed apply(KernelOperation operation, Typed a, Typed b, Typed c) const { return build.apply(operation, a, b, c); }

 private:
  const Argument& argument(size_t i) const { return graph_.arguments(node_)[i]; }
  void decide_by(size_t i) const { decisive_ |= uint64_t{1} << i; }
  const Graph& graph_;
  NodeId node_;
  Content content_;
  Source source_;
  mutable uint64_t decisive_ = 0;
};

// Says what operators compute, a row each. Internal to kernels/compiler.

using c10::ScalarType;
using Operation = KernelOperation;
using Call = OperatorCall;
using Results = std::vector<Typed>;

// Returns the dimensions of argument `input` that an operator reduces, ascending. Throws UnsupportedError for what no
// kernel does.
using ReducedDimensions = std::vector<int64_t> (*)(const Call& call);

struct KernelRow {
  const char* name;  // without namespace and overload; in-place variants have the row of the functional one
  // Makes one expression a result. Throws UnsupportedError for what the row does not do.
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
