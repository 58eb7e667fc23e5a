// Operators replaced by more basic ones.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"
#include "shadowgraph/passes/pass.h"

namespace SHADOWGRAPH_API shadowgraph {

// ---------------------------------------------------------------------------------------------------------------------
// Decomposition: operators replaced by more basic ones, until only a chosen set is left.
//
//     DecomposeResult result = decompose(graph, {.to = OperatorSet::named("no-fused")});
//     // result.expanded["aten::addmm"] == 24, result.remaining["aten::max_pool2d_with_indices"] == 1
//
// A capture is below autograd, so composites are gone already. Operators with kernels of their own are left to
// decompose: addmm, norms, softmax, attention, losses, backward formulas, foreach and fused optimizers. The formulas
// are rows of passes/decompose/decompositions.h. Results have the recorded dtypes, sizes and strides and equal the
// originals within rounding; random operators are never decomposed. The backward of a fused operator is decomposed
// before its forward, so that the kernel's private statistics lose their last use.
//
// The idea is torch._decomp and Core ATen. Linear in nodes before and after.

// Operators that may stay.
class OperatorSet {
 public:
  //   core-aten   operators that libtorch tags as core
  //   no-fused    all but attention, foreach and fused optimizers, and multiplications with an addend (addmm, addcdiv, ...)
  //   basic       none that the table can decompose
  // or names joined by '+', "aten::mm+aten::add.Tensor+aten::view" (without overload: all of them), or "@path", a file
  // with a name a line. Throws Error for anything else.
  static OperatorSet named(const std::string& text);
  static OperatorSet of(std::set<std::string> names);

  bool has(const std::string& operator_name) const { return has_(operator_name); }
  // What named() makes the same set of.
  const std::string& text() const { return text_; }

 private:
  OperatorSet(std::string text, std::function<bool(const std::string&)> has)
      : text_(std::move(text)), has_(std::move(has)) {}
  std::string text_;
  std::function<bool(const std::string&)> has_;
};

struct DecomposeOptions {
  OperatorSet to = OperatorSet::named("core-aten");  // what may stay

  static OptionTable<DecomposeOptions> table() {
    return OptionTable<DecomposeOptions>().parsed(
        "to", &DecomposeOptions::to, &OperatorSet::named, +[](const OperatorSet& set) { return set.text(); },
        "core-aten, no-fused, basic, names joined by '+', or @file");
  }
};

struct DecomposeResult {
  std::map<std::string, int64_t> expanded;   // calls by operator
  std::map<std::string, int64_t> remaining;  // calls of operators outside the set, views and built-ins included
  std::map<std::string, std::string> why;    // of some that remain: what their row said

  PassResult summary() const;
};

DecomposeResult decompose(Graph& graph, const DecomposeOptions& options = {});
// Operators that have a row, sorted.
std::vector<std::string> decomposable_operators();

// ---------------------------------------------------------------------------------------------------------------------
// Bias-addition split: what adds a bias in one operator becomes the product and the addition by itself.
//
//     addmm(bias, x, w)                 mm(x, w), add(bias)
//     convolution(x, w, bias, ...)      convolution(x, w, None, ...), add(bias as [C, 1, 1])
//     addbmm(self, a, b)                bmm(a, b), sum over the batch, add(self)
//
// beta and alpha are kept as the operator has them: beta * self + alpha * product. With beta = 0 the addend is not
// read, so that NaN in it stays there. aten::linear with a bias is an addmm, or a product and an addition, in any
// capture.
//
// This serves solvers (ColossalAI's bias_addition_split). One that splits the product over devices reduces the partial
// sums first and adds the bias once. Backward nodes stay as they are: a bias' gradient is a sum of its own already.
// Values equal within rounding (an addition fused into a product rounds once); integers bitwise.

struct SplitBiasResult {
  int64_t split = 0;  // nodes
  PassResult summary() const;
};
// Those alone that are wanted.
SplitBiasResult split_bias_of(Graph& graph, const std::function<bool(NodeId)>& wanted);
SplitBiasResult split_bias(Graph& graph);

}  // namespace shadowgraph
