// What a cost rule sees of one call: the shapes of its tensors and its numbers, by schema position, and no graph.
//
// Cost rules (flop_table.h, elementwise_table.h) are pure functions of this, so that they are tested on shapes written
// by hand. A rule must not trust ranks or counts: graphs come from files too. Reading past the end answers kAbsent.
//
//     std::vector<int64_t> a{2, 3}, b{3, 5};
//     Operand arguments[] = {Operand::of_tensor(a), Operand::of_tensor(b)};
//     matmul_flops("aten::mm", {.arguments = arguments});   // 2 * 2 * 3 * 5
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>

#include "shadowgraph/export.h"
#include "shadowgraph/saturating.h"

namespace SHADOWGRAPH_API shadowgraph {

using Shape = std::span<const int64_t>;  // sizes, elements

struct Operand {
  enum class Kind : uint8_t {
    kAbsent,   // None, an undefined tensor, or no such position
    kTensor,   // shape
    kTensors,  // tensors; undefined ones are left out
    kNumber,   // number: int, float or bool
    kInts,     // shape holds the integers; bools are 0 and 1
    kOther,    // a string, a device, a generator, ...
  };
  Kind kind = Kind::kAbsent;
  double number = 0;
  Shape shape;
  std::span<const Shape> tensors;
  int64_t element_bytes = 0;   // of a tensor, or of the first of a list; 0: not known
  bool channels_last = false;  // of an image of three or more dimensions

  static Operand of_tensor(Shape sizes, int64_t element_bytes = 0) {
    return {.kind = Kind::kTensor, .shape = sizes, .element_bytes = element_bytes};
  }
  static Operand of_tensors(std::span<const Shape> list, int64_t element_bytes = 0) {
    return {.kind = Kind::kTensors, .tensors = list, .element_bytes = element_bytes};
  }
  static Operand of_ints(Shape ints) { return {.kind = Kind::kInts, .shape = ints}; }
  static Operand of_number(double value) { return {.kind = Kind::kNumber, .number = value}; }
  bool is_tensor() const { return kind == Kind::kTensor; }
  bool present() const { return kind != Kind::kAbsent; }
};

struct OperandShapes {
  std::span<const Operand> arguments;  // one per schema argument
  std::span<const Operand> results;    // one per schema return

  const Operand& argument(size_t i) const { return i < arguments.size() ? arguments[i] : kAbsentOperand; }
  const Operand& result(size_t i) const { return i < results.size() ? results[i] : kAbsentOperand; }
  // A tensor argument's shape; empty if it is not a tensor (as for a 0-dim tensor: ask is_tensor() where it matters).
  Shape shape(size_t i) const { return argument(i).is_tensor() ? argument(i).shape : Shape(); }
  size_t rank(size_t i) const { return argument(i).is_tensor() ? argument(i).shape.size() : kNoRank; }
  double number(size_t i, double otherwise) const {
    return argument(i).kind == Operand::Kind::kNumber ? argument(i).number : otherwise;
  }
  // The same as an integer; what no int64 can hold becomes `otherwise`.
  int64_t integer(size_t i, int64_t otherwise) const {
    const double value = number(i, static_cast<double>(otherwise));
    return value > -9.2e18 && value < 9.2e18 ? static_cast<int64_t>(value) : otherwise;
  }
  bool flag(size_t i, bool otherwise = false) const { return number(i, otherwise ? 1 : 0) != 0; }
  // Element `k` of a list of ints or bools.
  int64_t element(size_t i, size_t k, int64_t otherwise) const {
    const Operand& list = argument(i);
    return list.kind == Operand::Kind::kInts && k < list.shape.size() ? list.shape[k] : otherwise;
  }

  static constexpr size_t kNoRank = static_cast<size_t>(-1);

 private:
  static constexpr Operand kAbsentOperand{};
};

// Counts saturate (shadowgraph/saturating.h).
inline int64_t product_of(Shape sizes) {
  int64_t product = 1;
  for (int64_t size : sizes) product = saturating_multiply(product, size);
  return product;
}
inline int64_t product_of(std::initializer_list<int64_t> sizes) {
  return product_of(Shape(sizes.begin(), sizes.size()));
}
// Elements of a tensor, or of all tensors of a list; 0 for anything else.
inline int64_t element_count(const Operand& operand) {
  if (operand.kind == Operand::Kind::kTensor) return product_of(operand.shape);
  int64_t count = 0;
  for (Shape shape : operand.tensors) count = saturating_add(count, product_of(shape));
  return count;
}
// As many bytes as they take without gaps.
inline int64_t byte_count(const Operand& operand) {
  return saturating_multiply(element_count(operand), operand.element_bytes);
}

}  // namespace shadowgraph
