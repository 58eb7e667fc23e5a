// Replaces nodes by what a C++ function over ATen does: the machinery of `decompose` and `split-bias`.
//
//     at::Tensor addmm(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta,
//                      const at::Scalar& alpha) { return at::add(at::mul(self, beta), at::mul(at::mm(a, b), alpha)); }
//
//     ExpansionTable table;
//     table.add("aten::addmm", &addmm);
//     Expander(graph, table).expand(node);
//
// The function has the operator's C++ signature (SymInt as int64_t). It is run on fake tensors of the node's operands,
// and the operators that it calls become nodes in the node's place. They get its region, phase, flags, forward link and
// source line, and shapes, dtypes and strides from the rules. So a row of a table is nothing but the mathematics.
// Results that come out with other strides or another dtype than recorded are copied into ones that have them. A result
// that should be fresh but is an operand is cloned. Storages keep their kinds and deaths, saved tensors stay saved.
//
// A function that cannot do a call (training, dropout) says so: decline("..."). One that cannot give a result returns
// it undefined; the node is then left alone if that result is used.
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
#include "core/fake/pretended_devices.h"
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
  // For whole families: gets and leaves the stack as a boxed kernel does.
  using Boxed = std::function<void(const c10::OperatorHandle& op, torch::jit::Stack* stack)>;
  void add_boxed(const std::string& operator_name, Boxed function,
                 std::source_location place = std::source_location::current()) {
    boxed_.insert_or_assign(operator_name, std::move(function));
    places_.insert_or_assign(operator_name, place);
  }

  bool has(const std::string& operator_name) const {
    return rows_.contains(operator_name) || boxed_.contains(operator_name);
  }
  // Returns where a row was added; line 0 if there is none.
  std::source_location place(const std::string& operator_name) const {
    const auto found = places_.find(operator_name);
    return found == places_.end() ? std::source_location() : found->second;
  }
  // Throws Error if a row does not have its operator's signature.
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

// Ends an expansion that its function cannot do; the node stays.
[[noreturn]] void decline(const std::string& why);

class Expander {
 public:
  // Both must outlive this. A FakeTensorMode is active on this thread while it lives.
  Expander(Graph& graph, const ExpansionTable& table);

  // Empty if the node was replaced: then inserted() are the nodes in its place. Otherwise why it was left alone.
  // Throws what the function throws, other than by decline; the graph verifies in any case.
  std::optional<std::string> expand(NodeId node);
  const std::vector<NodeId>& inserted() const { return inserted_; }

  // Links of backward nodes to nodes that were replaced; once, at the end. Linear.
  void relink();

 private:
  struct ResultPair {
    ValueId recorded;
    at::Tensor made;  // by the function; undefined if it gives none
    ValueId adopted;  // what stands for it in the graph
  };
  bool pair_up(const Argument& result, const c10::IValue& value, std::vector<ResultPair>& pairs) const;
  at::Tensor as_recorded(NodeId node, std::span<const ResultPair> pairs, size_t i, bool aliases,
                         CallRecording& recording);
  void take_over(NodeId node, ValueId from, ValueId to);
  bool adopt_results(NodeId node, const torch::jit::Stack& stack, CallRecording& recording, std::string& why);
  void move_saved(NodeId node);
  void set_deaths(const CallRecording& recording);
  void undo();

  Graph& graph_;
  const ExpansionTable& table_;
  FakeTensorMode mode_{of_any_machine()};
  BelowAutograd below_;
  NodeCalls calls_;
  std::vector<NodeId> inserted_;
  std::unordered_set<StorageId> adopted_;        // now hold what the node's results held
  std::unordered_map<NodeId, NodeId> replaced_;  // erased node -> the last one in its place
};

}  // namespace shadowgraph

// The table of decompositions: operators as functions of more basic ones. Internal to `decompose` and `split-bias`.
//
// A row is a C++ function with the operator's signature and its line in one of the add_* functions; see
// passes/decompose/decompositions.h. Equal to the operator within rounding unless a comment says bitwise. In half
// precision they compute in float, as the kernels do.

namespace shadowgraph::decompositions {

// x times alpha, or x itself if alpha is one.
at::Tensor scaled(const at::Tensor& x, const at::Scalar& alpha);
// float for half precision, otherwise itself.
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

// All of them but add_convolution_bias.
const ExpansionTable& all();

}  // namespace shadowgraph::decompositions
