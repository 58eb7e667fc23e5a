// Chooses which dimensions of an iteration space are rows, the row and loops inside them. Internal to kernels/compiler.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shadowgraph/kernels/kernel.h"

namespace shadowgraph {

struct IterationSpace {
  std::vector<int64_t> sizes;
  std::vector<bool> is_reduced;  // by dimension
  bool reduces = false;          // also if the dimensions have size 1, or if there are none
  // By operand of the program: its strides along each dimension, 0 where it is broadcast. Each has all dimensions.
  std::vector<std::vector<int64_t>> strides;
  std::vector<bool> is_whole;
};

// Fills in what plan and program say of dimensions: ranks, layouts, sizes, strides, the range. The program must have
// its expressions and stores. Throws KernelError where a program counts columns of anything but the row.
void arrange_loops(IterationSpace space, KernelPlan& plan);

inline bool uses(std::span<const KernelExpression> expressions, KernelOperation operation) {
  for (const KernelExpression& expression : expressions) {
    if (expression.operation == operation) return true;
  }
  return false;
}

}  // namespace shadowgraph
