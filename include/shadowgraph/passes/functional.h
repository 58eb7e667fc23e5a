// Programs without writes, and the way back.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/passes/pass.h"

namespace SHADOWGRAPH_API shadowgraph {

// Alias and mutation resolution: the same program without a write, but for copies to what it was given, at the end.
//
//     FunctionalizeResult result = functionalize(graph);
//     result.mutated     // parameters, buffers, inputs, constants that the program writes, each with its write-back
//     result.aliased     // outputs that share a storage with one of those, or with an earlier output
//
//     %1 = aten::t(self=%0)                        %1 = aten::t(self=%0)
//     %2 = aten::add_.Tensor(self=%1, other=%0)    %2 = aten::add.Tensor(self=%1, other=%0)
//     %3 = aten::relu(self=%0)                     %3 = aten::as_strided(self=%2, size=[2, 2], stride=[2, 1], ...)
//                                                  %4 = aten::relu(self=%3)
//                                                  %5 = aten::copy_(self=%0, src=%3)          the epilogue
//
// What holds afterwards, and is checked by replay (tests/core/replay/functionalize_replay_test.cpp):
//
//   - outputs, gradients and the final contents of everything given are bitwise what eager leaves, random numbers
//     included;
//   - outputs share storages with inputs and with one another as in eager;
//   - every kernel gets operands of the sizes and strides that it had.
//
// Region, phase, flags, forward links, saved tensors and lifetimes are carried over; a value that is not a view has a
// storage of its own. Running it again changes nothing.
//
// Contents belong to storages, so there is no list of operators here. Each storage has an *image*: a value whose
// storage holds, place for place, what the program's storage would hold now. A write gives a new image. A value that is
// read after that is taken from it again, by the views it came through or by as_strided. docs/graph.md
// tells the rest.
//
// Ids of the old graph mean nothing afterwards. Linear; see bench/passes.cpp.

struct FunctionalizeResult {
  bool changed = false;

  struct Mutated {
    NodeId placeholder;  // its name, or the constant, is its argument
    NodeId write_back;   // the aten::copy_ of the epilogue
  };
  std::vector<Mutated> mutated;  // in order of the placeholders

  struct Aliased {
    uint32_t output = 0;  // position in sg::output
    NodeId placeholder;   // whose storage it shares; invalid: that of an earlier output
    uint32_t other = 0;   // that output
  };
  std::vector<Aliased> aliased;

  int64_t writes = 0;            // nodes that wrote
  int64_t scatters = 0;          // of them, through a view of part of a storage
  int64_t views = 0;             // views taken again
  int64_t functional_calls = 0;  // writes without a functional operator: core/calls/functions.h

  PassResult summary() const;
};

// Throws UnsupportedError for writes by targets of which nothing is known, and for writes to tensors without strides.
// Throws it, too, for reads of a storage that nothing in the graph made. The graph is then as it was.
FunctionalizeResult functionalize(Graph& graph);

// Returns the first node that writes and is not part of an epilogue; invalid if there is none. An epilogue is
// write-backs to placeholders with the views they need, behind all else. Random numbers drawn are no writes here.
NodeId first_mutation(const Graph& graph);

// The reverse of functionalize: writes to memory that nobody needs any more, instead of new memory.
//
//     %1 = aten::mul.Tensor(self=%0, other=%9)         %1 = aten::mul.Tensor(self=%0, other=%9)
//     %2 = aten::relu(self=%1)                         %2 = aten::relu_(self=%1)
//     %3 = aten::slice_scatter(self=%2, src=%7, ...)   %3 = aten::slice.Tensor(self=%2, ...)
//                                                      %4 = aten::copy_(self=%3, src=%7)
//
// An operator is run in place if
//
//   - its in-place form exists (ir/operators/operator_forms.h);
//   - its result is laid out like the operand that it would overwrite;
//   - nothing reads that operand's storage afterwards, by whatever view.
//
// Scatters become a write through the view. If what they scatter is computed from that very place, they become the
// computation itself in place. A parameter that an epilogue overwrites as a whole (aten::copy_) is such memory, too: an
// optimizer step is in place again.
//
// Bitwise the same results, the same aliasing of what the program returns, the same final contents; fewer bytes. What
// the caller gave is not written unless the graph writes it back anyway. Tensors that autograd keeps are not
// overwritten before the backward that reads them. Linear.

struct ReinplaceResult {
  bool changed = false;
  int64_t operators = 0;    // nodes that run in place now
  int64_t scatters = 0;     // scatters that became writes through a view, or vanished
  int64_t write_backs = 0;  // copies of the epilogue that are not needed any more

  PassResult summary() const;
};

ReinplaceResult reinplace(Graph& graph);

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
        "target operators: core-aten, no-fused, basic, names joined by '+', or @file");
  }
};

struct DecomposeResult {
  std::map<std::string, int64_t> expanded;   // calls by operator
  std::map<std::string, int64_t> remaining;  // calls of operators outside the set, views and built-ins included
  std::map<std::string, std::string> why;    // of some that remain: what their row said

  PassResult summary() const;
};

DecomposeResult decompose(Graph& graph, const DecomposeOptions& options = {});

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
