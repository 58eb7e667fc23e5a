// Replaces nodes by the operators that a C++ function over ATen calls. Used by `decompose` and `split-bias`.
//
//     at::Tensor addmm(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta,
//                      const at::Scalar& alpha) { return at::add(at::mul(self, beta), at::mul(at::mm(a, b), alpha)); }
//
//     ExpansionTable table;
//     table.add("aten::addmm", &addmm);
//     Expander(graph, table).expand(node);
//
// The function has the operator's C++ signature (SymInt as int64_t). It runs on fake tensors of the node's operands,
// and the operators that it calls replace the node. They inherit its region, phase, flags, forward link and source
// line; shape rules give their shapes, dtypes and strides. Results with other strides or another dtype than recorded
// are copied to match. Operands as results are cloned. Storage kinds, free points and saved tensors are kept.
//
// A function that does not support a call calls decline("..."). It may leave results undefined that are not used.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/op_registration/infer_schema.h>

#include <functional>
#include <map>
#include <memory>
#include <source_location>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/calls/node_calls.h"
#include "core/fake/simulated_devices.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/graph/graph.h"

namespace shadowgraph {

class CallRecording;

class ExpansionTable {
 public:
  template <class Return, class... Args>
  void add(const std::string& operator_name, Return (*function)(Args...),
           std::source_location place = std::source_location::current()) {
    Row row;
    row.kernel = c10::KernelFunction::makeFromUnboxedRuntimeFunction(function);
    row.inferred_schema =
        std::make_unique<c10::FunctionSchema>(c10::inferFunctionSchemaFlattenedReturns<Return(Args...)>());
    rows_.insert_or_assign(operator_name, std::move(row));
    places_.insert_or_assign(operator_name, place);
  }
  // For operator families: takes and returns the stack of a boxed kernel.
  using Boxed = std::function<void(const c10::OperatorHandle& op, torch::jit::Stack* stack)>;
  void add_boxed(const std::string& operator_name, Boxed function,
                 std::source_location place = std::source_location::current()) {
    boxed_.insert_or_assign(operator_name, std::move(function));
    places_.insert_or_assign(operator_name, place);
  }

  bool has(const std::string& operator_name) const {
    return rows_.contains(operator_name) || boxed_.contains(operator_name);
  }
  // Returns the source location where a row was added; line 0 if there is none.
  std::source_location place(const std::string& operator_name) const {
    const auto found = places_.find(operator_name);
    return found == places_.end() ? std::source_location() : found->second;
  }
  // Throws Error if the function does not have the operator's signature.
  void call(const c10::OperatorHandle& op, torch::jit::Stack* stack) const;
  std::vector<std::string> names() const;  // sorted

 private:
  struct Row {
    c10::KernelFunction kernel;
    std::unique_ptr<c10::FunctionSchema> inferred_schema;  // types of the C++ function, checked against the operator
  };
  std::map<std::string, Row, std::less<>> rows_;
  std::map<std::string, Boxed, std::less<>> boxed_;
  std::map<std::string, std::source_location, std::less<>> places_;
};

// Called by a decomposition that does not support the call; the node is kept.
[[noreturn]] void decline(const std::string& why);

class Expander {
 public:
  // Both must outlive this object, which keeps a FakeTensorMode active on the current thread.
  Expander(Graph& graph, const ExpansionTable& table);

  // Returns nullopt if the node was replaced by the nodes in inserted(), otherwise the reason why it was kept. Rethrows
  // the function's exceptions other than decline(); the graph verifies in any case.
  std::optional<std::string> expand(NodeId node);
  const std::vector<NodeId>& inserted() const { return inserted_; }

  // Updates links of backward nodes to replaced nodes. Call once, at the end. Linear.
  void relink();

 private:
  struct ResultPair {
    ValueId recorded;
    at::Tensor made;  // computed by the function; undefined if it does not compute this result
    ValueId adopted;  // its replacement in the graph
  };
  bool pair_up(const Argument& result, const c10::IValue& value, std::vector<ResultPair>& pairs) const;
  at::Tensor as_recorded(NodeId node, std::span<const ResultPair> pairs, size_t i, bool aliases,
                         CallRecording& recording);
  void take_over(NodeId node, ValueId from, ValueId to);
  bool adopt_results(NodeId node, const torch::jit::Stack& stack, CallRecording& recording, std::string& why);
  void move_saved(NodeId node);
  void set_free_points(const CallRecording& recording);
  void undo();

  Graph& graph_;
  const ExpansionTable& table_;
  FakeTensorMode mode_{with_all_devices()};
  BelowAutograd below_;
  NodeCalls calls_;
  std::vector<NodeId> inserted_;
  std::unordered_set<StorageId> adopted_;        // replace storages of the node's results
  std::unordered_map<NodeId, NodeId> replaced_;  // erased node -> its last replacement
};

}  // namespace shadowgraph

// The table of decompositions: operators as functions of more basic ones. Internal to `decompose` and `split-bias`.
//
// Each row is registered in one of the add_* functions. Results equal the operator's within rounding, or bitwise where
// a comment says so. Half precision is computed in float, as the kernels do.

namespace shadowgraph::decompositions {

// x * alpha, or x itself if alpha is 1.
at::Tensor scaled(const at::Tensor& x, const at::Scalar& alpha);
// Converts half precision to float; returns other dtypes unchanged.
at::Tensor computed_in(const at::Tensor& x);

void add_matrix_products(ExpansionTable& table);  // addmm, addmv, addbmm, baddbmm, addr: product, scale, add
void add_convolution_bias(ExpansionTable& table);
void add_pointwise(ExpansionTable& table);
void add_softmax(ExpansionTable& table);
void add_views(ExpansionTable& table);
void add_normalization(ExpansionTable& table);
void add_embedding_and_loss(ExpansionTable& table);
void add_attention(ExpansionTable& table);
void add_foreach_and_fused(ExpansionTable& table);

// All except add_convolution_bias.
const ExpansionTable& all();

}  // namespace shadowgraph::decompositions
