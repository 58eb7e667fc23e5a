// Replay: runs a graph, or the part needed for some values, on real or fake tensors. As a module: graph_module.h.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/graph/target.h"

namespace torch::nn {
class Module;
}

namespace SHADOWGRAPH_API shadowgraph {

// Tensors for the placeholders of a graph in a run.
//
//     Bindings().module(net).bind("input0", x)         by name
//     Bindings().in_order({weight, bias, x})           all, in program order
//
// A name that is not in the graph is an error, except for those of a module. Tensors are held, not copied.

class Bindings {
 public:
  Bindings& bind(const std::string& name, at::Tensor tensor) {
    named_.insert_or_assign(name, Entry{std::move(tensor), true});
    return *this;
  }
  // Binds its parameters and buffers under the names that a capture declares them with.
  Bindings& module(const torch::nn::Module& module);
  // Binds parameters, buffers and inputs, not constants, in the order of their nodes. Takes precedence over names.
  Bindings& in_order(std::vector<at::Tensor> tensors) {
    ordered_ = std::move(tensors);
    return *this;
  }

  struct Entry {
    at::Tensor tensor;
    bool must_exist = false;
  };
  const std::unordered_map<std::string, Entry>& named() const { return named_; }
  const std::vector<at::Tensor>& ordered() const { return ordered_; }

 private:
  std::unordered_map<std::string, Entry> named_;
  std::vector<at::Tensor> ordered_;
};

// Interprets a graph, or the part needed for some values.
//
//     Interpreter interpreter(graph);
//     ReplayResult result = interpreter.run(Bindings().module(net).bind("input0", x));
//     // result.outputs, result.gradients["layer.weight"]
//
// Graphs are recorded below autograd and run there, unless InterpreterOptions::autograd is set: autograd, view tracking
// and autocast are off, and results have no history. Values are released after their last use. Random operators use the
// default generators, so a run after the same manual_seed is bitwise as eager. A generator created by the program is
// advanced as in eager: in the capturing process, it is the same object; elsewhere, each run starts with the recorded
// state, or uses InterpreterOptions::generators. A generator created or seeded in the program is reset in every run.
//
// A run writes to the storages of bound tensors, as eager does (but see `copy_inputs`), and increments their version
// counters. Their geometry is not changed: `t_`, `set_` and `resize_` of a placeholder apply to a tensor of the run.
// Constants that the graph writes are copied first. An sg::alias is a view of its storage with the value's geometry.
//
// Uninitialized contents (aten::empty) are those of the allocator, as in eager.
//
// The constructor prepares all arguments, so that repeated runs are cheap. An Interpreter must be used by one thread;
// its graph must outlive it, unchanged. Derive from it to observe or replace individual nodes.

// Groups of nodes that can run as one call with the same results (shadowgraph/kernels/kernel.h), and an order in which
// each is consecutive. A run calls run() for each group; if it returns false, the nodes run individually. Bound to one
// graph, whose ids must not change. May be called from interpreters on several threads.
class NodeGroups {
 public:
  struct Group {
    std::vector<NodeId> nodes;     // consecutive in order()
    std::vector<ValueId> results;  // values set by run(); other values of these nodes are unused
  };
  virtual ~NodeGroups() = default;
  // Returns all nodes of the graph, each after its dependences.
  virtual const std::vector<NodeId>& order() const = 0;
  virtual const std::vector<Group>& groups() const = 0;
  // `values`: all values of the run by value id, with operands set; run() sets the results. Returns false if it did
  // nothing; the nodes then run individually, followed by nodes_ran(). Exceptions end the run like errors of operators.
  virtual bool run(uint32_t group, std::span<c10::IValue> values) = 0;
  virtual void nodes_ran(uint32_t group) { (void)group; }
};

struct InterpreterOptions {
  // Run the nodes needed for these values (core/replay/replay_program.h) and return them as outputs; empty: all.
  std::vector<ValueId> only;
  // With `only`: run exactly these nodes, in this order; producers of operands and writes to them must precede.
  std::vector<NodeId> nodes;
  // Device that replaces all devices in the graph: a capture on fake CUDA can run on the CPU.
  std::optional<c10::Device> device;
  // Require the dtype, sizes, strides and device of bound tensors to match their placeholder.
  bool check_bindings = true;
  // Check dtype, sizes, strides and offset of every result. For tests; about 0.1 us a node.
  bool check_results = false;
  // Copy bound tensors that the graph writes, instead of modifying them.
  bool copy_inputs = false;
  // Replaces the default generator of its device; advanced by the run.
  std::optional<at::Generator> generator;
  // Replace generators created by the program, by the name noted at the nodes ("generator" = "g0").
  std::map<std::string, at::Generator> generators;
  // Run operators through autograd, so that results have a history, where grad mode is on in both the caller and the
  // recorded program. For forward graphs. A graph captured entirely without gradients uses the caller's grad mode.
  bool autograd = false;
  // Throw for nodes that cannot run when they are reached, for derived classes that implement such nodes.
  bool defer_errors = false;
  // Groups of this graph. Used in plain runs: on real tensors, without `autograd` and `nodes`, and without an active
  // capture or Python mode. With `only`, groups that are entirely needed are used. Their nodes skip run_node.
  std::shared_ptr<NodeGroups> groups;
};

struct ReplayResult {
  std::vector<at::Tensor> outputs;              // of sg::output, or values of `only`; None is an undefined tensor
  std::map<std::string, at::Tensor> gradients;  // of sg::gradient, by parameter name
};

struct ReplayProgram;
class PendingTransfers;
struct RegisteredFunction;  // shadowgraph/capture/functions.h

class Interpreter {
 public:
  // Throws Error if the graph does not have a value of `only`. Linear.
  explicit Interpreter(const Graph& graph, InterpreterOptions options = {});
  virtual ~Interpreter();
  C10_DISABLE_COPY_AND_ASSIGN(Interpreter);

  // Throws ReplayError: before any node runs if a placeholder is unbound or does not match, or a device or operator is
  // unavailable; otherwise for an operator's error, with the text of its node. Effects of earlier nodes remain.
  ReplayResult run(const Bindings& bindings);

  const Graph& graph() const { return graph_; }

 protected:
  // Called for each node in program order. By default, calls one of the functions below and stores the results;
  // operands are still available when it returns.
  virtual void run_node(NodeId node);
  // Replaces the arguments on the stack by the results.
  virtual void call_operator(NodeId node, const c10::OperatorHandle& op, torch::jit::Stack& stack);
  virtual void call_function(NodeId node, const RegisteredFunction& function, torch::jit::Stack& stack);
  // Called for placeholders, sg::constant, sg::alias, sg::output and sg::gradient.
  virtual void run_builtin(NodeId node);

  // Returns the current content of a value. Throws ReplayError if it is not computed or has been released.
  const c10::IValue& value(ValueId value) const;
  // For custom implementations of run_node, which must set all results of the node.
  void set_value(ValueId value, c10::IValue content);

 private:
  void check_devices() const;
  void bind(const Bindings& bindings);
  void check_binding(NodeId node, const at::Tensor& tensor) const;
  void check_names(const Bindings& bindings) const;
  at::Tensor own_tensor(const at::Tensor& bound, bool copied);
  void preserve(uint32_t step);
  void store_results(uint32_t step);
  void run_steps(bool caller_mode);
  bool runs_groups() const;
  bool run_group(uint32_t group);
  void check_result(NodeId node, ValueId value, const c10::IValue& content) const;
  const at::Generator& own_generator(uint32_t number);
  at::Tensor alias_of(NodeId node) const;
  [[noreturn]] void fail(NodeId node, const std::string& what) const;

  const Graph& graph_;
  InterpreterOptions options_;
  std::unique_ptr<const ReplayProgram> program_;
  std::vector<c10::IValue> values_;  // by value id; None: not computed, or released
  torch::jit::Stack stack_;
  std::unordered_map<const c10::StorageImpl*, c10::Storage> copies_;  // of this run, see copy_inputs
  ReplayResult result_;
  struct Drawing {
    at::Generator generator;
    bool has_begun = false;  // in this run
  };
  std::vector<Drawing> drawing_;                 // by ReplayProgram::generators
  std::unique_ptr<PendingTransfers> transfers_;  // for graphs that send or receive
  uint32_t step_ = 0;                            // current step
};

// An executable graph, or part of one: prepared once, run many times.
//
//     ReplayExecutor executor(std::move(graph));
//     at::Tensor y = executor.run({weight, bias, x})[0];                      by position: executor.input_names()
//     ReplayResult step = executor.run(Bindings().module(net).bind("x", x));  by name, gradients included
//
// An Interpreter that owns its graph and names its inputs. All errors are ReplayErrors that name the node and a remedy.
// Overhead of about 30 ns a node over boxed operator calls.
class ReplayExecutor {
 public:
  // Throws Error if the graph does not have a value of options.only. Linear.
  explicit ReplayExecutor(Graph graph, InterpreterOptions options = {});

  // Names of parameters, buffers and inputs in program order: the positional arguments of run().
  const std::vector<std::string>& input_names() const { return input_names_; }
  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs) {
    return interpreter_.run(Bindings().in_order(std::move(inputs))).outputs;
  }
  ReplayResult run(const Bindings& bindings) { return interpreter_.run(bindings); }

  const Graph& graph() const { return graph_; }

 private:
  const Graph graph_;
  std::vector<std::string> input_names_;
  Interpreter interpreter_;
};

}  // namespace shadowgraph
