// Works out what calls make of indices that data decides and the program counts (core/fake/routing.h), and what
// collectives bring of that. Internal to core/.
#pragma once

#include <ATen/core/stack.h>

#include <optional>
#include <vector>

#include "core/dispatch/operator_info.h"
#include "core/fake/routing.h"

namespace shadowgraph {

// Returns the position of the operand that a call counts or marks, if nobody knows its contents and the call looks like
// routing. That is bincount(ids, minlength=E), histc(ids, E, 0, E), zeros(T, E).scatter(1, ids, 1) or scatter_add of one
// dimension.
std::optional<uint16_t> routed_operand(const OperatorInfo& info, const torch::jit::Stack& stack, size_t begin);
// Gives the counts to the result of bincount or histc.
void give_counts(const at::Tensor& result, const std::shared_ptr<const Routing>& routing);
// Returns a fake tensor like `index` that holds dealt indices.
at::Tensor dealt_like(const at::Tensor& index, const Routing& routing, int64_t dim);

// What a collective is given, where that follows from an assumption: it holds on all ranks, each of which does as this
// one does.
class SentContents {
 public:
  // Make it before the call. Nothing is sent where no operand follows from an assumption.
  static std::optional<SentContents> of(const OperatorInfo& info, const torch::jit::Stack& stack, size_t begin);
  // Gives its outputs, after the call, what comes from the others.
  void arrive(const torch::jit::Stack& stack, size_t results) const;

 private:
  const OperatorInfo* info_ = nullptr;
  torch::jit::Stack arguments_;
  std::vector<at::Tensor> sent_;  // real
  Assumptions assumed_;
};

}  // namespace shadowgraph
