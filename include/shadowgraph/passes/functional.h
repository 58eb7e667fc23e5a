// Functionalization, reinplacing, decomposition and bias splitting.
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

// Functionalization: removes all writes, except for copies to mutated placeholders at the end.
//
//     FunctionalizeResult result = functionalize(graph);
//     result.mutated     // parameters, buffers, inputs and constants that the program writes, with their write-backs
//     result.aliased     // outputs that share a storage with one of those, or with an earlier output
//
//     %1 = aten::t(self=%0)                        %1 = aten::t(self=%0)
//     %2 = aten::add_.Tensor(self=%1, other=%0)    %2 = aten::add.Tensor(self=%1, other=%0)
//     %3 = aten::relu(self=%0)                     %3 = aten::as_strided(self=%2, size=[2, 2], stride=[2, 1], ...)
//                                                  %4 = aten::relu(self=%3)
//                                                  %5 = aten::copy_(self=%0, src=%3)          the epilogue
//
// Outputs, gradients and final contents of placeholders are bitwise equal to eager, including random numbers; outputs
// share storages with inputs and with one another as in eager; every kernel has operands with the original sizes and
// strides. Region, phase, flags, forward links, saved tensors and lifetimes are preserved; every value other than a
// view has a separate storage. Idempotent. Linear. Ids of the original graph are invalid afterwards.
//
// Contents are tracked by storage, so there is no list of supported operators. See docs/graph.md.
struct FunctionalizeResult {
  bool changed = false;

  struct Mutated {
    NodeId placeholder;  // of the mutated input, parameter, buffer or constant
    NodeId write_back;   // the aten::copy_ of the epilogue
  };
  std::vector<Mutated> mutated;  // in order of the placeholders

  struct Aliased {
    uint32_t output = 0;  // position in sg::output
    NodeId placeholder;   // the placeholder whose storage it shares; invalid: an earlier output
    uint32_t other = 0;   // position of that output
  };
  std::vector<Aliased> aliased;

  int64_t writes = 0;            // nodes that write
  int64_t scatters = 0;          // those that write a view of part of a storage
  int64_t views = 0;             // recomputed views
  int64_t functional_calls = 0;  // writes without a functional operator: core/calls/functions.h

  PassResult summary() const;
};

// Throws UnsupportedError, leaving the graph unchanged, for writes by targets with unknown effects, writes to tensors
// without strides, and reads of a storage that the graph does not create.
FunctionalizeResult functionalize(Graph& graph);

// Returns the first node that writes and is not part of an epilogue; invalid if there is none. An epilogue consists of
// write-backs to placeholders, with the views they need, after all other nodes. Random draws are not writes.
NodeId first_mutation(const Graph& graph);

// Reinplacing, the inverse of functionalization: reuses memory that is no longer needed instead of allocating.
//
//     %1 = aten::mul.Tensor(self=%0, other=%9)         %1 = aten::mul.Tensor(self=%0, other=%9)
//     %2 = aten::relu(self=%1)                         %2 = aten::relu_(self=%1)
//     %3 = aten::slice_scatter(self=%2, src=%7, ...)   %3 = aten::slice.Tensor(self=%2, ...)
//                                                      %4 = aten::copy_(self=%3, src=%7)
//
// An operator runs in place if its in-place form exists (ir/operators/operator_forms.h), its result has the same
// geometry as the operand that it overwrites, and the storage of that operand is not read afterwards through any view.
//
// Scatters become writes through a view. If the scattered value is computed from the same view, it is computed in
// place. A parameter that is overwritten completely by an epilogue (aten::copy_) is reused as well.
//
// Results, aliasing of outputs and final contents are bitwise unchanged. Placeholders are written only if the graph
// writes them back anyway. Saved tensors are not overwritten before the backward that reads them. Linear.

struct ReinplaceResult {
  bool changed = false;
  int64_t operators = 0;    // nodes now running in place
  int64_t scatters = 0;     // scatters that became writes through a view, or were removed
  int64_t write_backs = 0;  // copies of the epilogue that were removed

  PassResult summary() const;
};

ReinplaceResult reinplace(Graph& graph);

// Decomposition: replaces operators by more basic ones, until all are in a given set.
//
//     DecomposeResult result = decompose(graph, {.to = OperatorSet::named("no-fused")});
//     // result.expanded["aten::addmm"] == 24, result.remaining["aten::max_pool2d_with_indices"] == 1
//
// Captures are below autograd, so composite operators are decomposed already. The formulas are rows of
// passes/decompose/decompositions.h. Results have the recorded dtypes, sizes and strides and equal the originals within
// rounding; random operators are never decomposed. The backward of a fused operator is decomposed before its forward,
// so that internal statistics of the kernel become unused. Linear in nodes before and after.

class OperatorSet {
 public:
  // Parses
  //   core-aten   operators tagged as core by libtorch
  //   no-fused    all except attention, foreach and fused optimizers, and multiplications with an addend (addmm,
  //               addcdiv, ...)
  //   basic       all that have no decomposition
  // or names joined by '+', "aten::mm+aten::add.Tensor+aten::view" (without overload: all overloads), or "@path", a
  // file with one name per line. Throws Error for anything else.
  static OperatorSet named(const std::string& text);
  static OperatorSet of(std::set<std::string> names);

  bool has(const std::string& operator_name) const { return has_(operator_name); }
  // Returns text from which named() creates the same set.
  const std::string& text() const { return text_; }

 private:
  OperatorSet(std::string text, std::function<bool(const std::string&)> has)
      : text_(std::move(text)), has_(std::move(has)) {}
  std::string text_;
  std::function<bool(const std::string&)> has_;
};

struct DecomposeOptions {
  OperatorSet to = OperatorSet::named("core-aten");  // operators to keep

  static OptionTable<DecomposeOptions> table() {
    return OptionTable<DecomposeOptions>().parsed(
        "to", &DecomposeOptions::to, &OperatorSet::named, +[](const OperatorSet& set) { return set.text(); },
        "Operators to decompose into: core-aten, no-fused, basic, names separated by '+', or @file");
  }
};

struct DecomposeResult {
  std::map<std::string, int64_t> expanded;   // number of calls by operator
  std::map<std::string, int64_t> remaining;  // calls of operators outside of the set, including views and built-ins
  std::map<std::string, std::string> why;    // reasons for some of those, as given by their formula

  PassResult summary() const;
};

DecomposeResult decompose(Graph& graph, const DecomposeOptions& options = {});

// Bias splitting: splits operators that add a bias into a product and an addition.
//
//     addmm(bias, x, w)                 mm(x, w), add(bias)
//     convolution(x, w, bias, ...)      convolution(x, w, None, ...), add(bias as [C, 1, 1])
//     addbmm(self, a, b)                bmm(a, b), sum over the batch, add(self)
//
// beta and alpha have the semantics of the operator: beta * self + alpha * product. With beta = 0 the addend is not
// read, so NaN in it has no effect. aten::linear with a bias is captured as addmm, or as a product and an addition.
//
// For solvers (ColossalAI's bias_addition_split): if the product is sharded over devices, partial sums are reduced
// before the bias is added once. Backward nodes are unchanged, since the gradient of a bias is a separate sum. Results
// are equal within rounding (a fused addition rounds once); integers bitwise.

struct SplitBiasResult {
  int64_t split = 0;  // number of nodes
  PassResult summary() const;
};
// Splits only nodes for which wanted(node) returns true.
SplitBiasResult split_bias_of(Graph& graph, const std::function<bool(NodeId)>& wanted);
SplitBiasResult split_bias(Graph& graph);

}  // namespace shadowgraph
