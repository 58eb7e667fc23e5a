// Running a graph, or the slice of it that some values need, on real or fake tensors. As a module: graph_module.h.
//
// Tests hold graphs against programs with it, deferred initialisation makes tensors with it, and kernels are tried in
// it. Preparing takes one walk; after that a node costs about a boxed call.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <functional>
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

// ---------------------------------------------------------------------------------------------------------------------
// Which tensors a graph's placeholders stand for in one run.
//
//     Bindings().module(net).bind("input0", x)         by name
//     Bindings().in_order({weight, bias, x})           all of them, in program order
//
// A name that the graph does not have is an error, except for a module's: a pass may have dropped a parameter that
// nothing uses. Tensors are held, not copied.

class Bindings {
 public:
  Bindings& bind(const std::string& name, at::Tensor tensor) {
    named_.insert_or_assign(name, Entry{std::move(tensor), true});
    return *this;
  }
  // Its parameters and buffers, by the names under which a capture declares them.
  Bindings& module(const torch::nn::Module& module);
  // Parameters, buffers and inputs (not constants: the graph holds those) in the order of their nodes. Counts before
  // names.
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

// ---------------------------------------------------------------------------------------------------------------------
// Runs a graph, or the slice of it that some values need, on real or fake tensors.
//
//     Interpreter interpreter(graph);
//     ReplayResult result = interpreter.run(Bindings().module(net).bind("input0", x));
//     // result.outputs, result.gradients["layer.weight"]
//
// The graph was recorded below autograd, so it runs there, unless InterpreterOptions::autograd says otherwise.
// Operators are called with autograd, view tracking and autocast off, and what comes out has no history. Values are
// released after their last use. Random operators draw from the default generators, so after the same manual_seed a run
// gives bitwise what eager gives. A generator of the program's own they move as eager does. In the process that
// captured it, it is the very object. Elsewhere each run begins with one in the state that the graph has noted, or
// draws from InterpreterOptions::generators. One that the program made or seeded while it ran begins anew with every
// run.
//
// A run writes to the storages of the tensors it is given, as eager does (or to copies of them, see `copy_inputs`).
// Each such tensor counts one in-place change for autograd. Its own geometry stays: `t_`, `set_` or `resize_` on a
// placeholder acts on the run's tensor of it. Constants that the graph writes are copied first, so that every run
// begins with the same. An sg::alias is a view of its storage with the value's geometry.
//
// Contents that no node wrote (aten::empty) are whatever the allocator gives, as in eager.
//
// The constructor prepares all arguments once; running many times is what this is for. An Interpreter belongs to one
// thread, its graph must outlive it unchanged. Derive from it to watch or replace single nodes. The idea is
// torch.fx.Interpreter's.

// Names nodes that may run as one call, and an order in which they stand together. The call is a kernel made of them
// (shadowgraph/kernels/kernel.h), or whatever gives the same results. A run asks each time that it comes to a group;
// what the group does not do runs node by node. It serves one graph, whose ids must stay. Interpreters of several
// threads may ask.
class NodeGroups {
 public:
  struct Group {
    std::vector<NodeId> nodes;     // one after another in order()
    std::vector<ValueId> results;  // what run() sets; nobody reads the others of these nodes
  };
  virtual ~NodeGroups() = default;
  // All nodes of the graph, so that each comes after what it depends on.
  virtual const std::vector<NodeId>& order() const = 0;
  virtual const std::vector<Group>& groups() const = 0;
  // `values` are those of the run, by value id: operands are there, results are to be set. False: nothing has happened,
  // the nodes will run, and nodes_ran() follows. What it throws ends the run as an operator's error does.
  virtual bool run(uint32_t group, std::span<c10::IValue> values) = 0;
  virtual void nodes_ran(uint32_t group) { (void)group; }
};

struct InterpreterOptions {
  // Run what these values need (core/replay/replay_program.h), and return them as outputs; empty: the whole graph.
  std::vector<ValueId> only;
  // With `only`: run exactly these nodes, in this order, rather than a slice of the graph. Operands come before users,
  // and whatever writes what a node reads must be among them.
  std::vector<NodeId> nodes;
  // Every device in the graph means this one: a capture on fake CUDA runs on the CPU.
  std::optional<c10::Device> device;
  // Bound tensors must have the dtype, sizes, strides and device of their placeholder.
  bool check_bindings = true;
  // Every result must have the dtype, sizes, strides and offset that the graph says. For tests; about 0.1 us a node.
  bool check_results = false;
  // Bound tensors are not written to: what the graph writes to is a copy.
  bool copy_inputs = false;
  // In place of the default generator of its device; it is left where the run ends.
  std::optional<at::Generator> generator;
  // In place of generators that the program made itself, by the names that the nodes note ("generator" = "g0").
  std::map<std::string, at::Generator> generators;
  // Operators go through autograd, with gradients where the caller has them on and the program had: what comes out has
  // a history. For forward graphs. A graph that was captured wholly without gradients follows the caller alone.
  bool autograd = false;
  // Nodes that cannot run (operator not registered, opaque argument) throw when reached, not before the first one runs.
  // This is for derived classes that run them in their own way.
  bool defer_errors = false;
  // Groups made for this very graph. They run as one where a run is plain: on real tensors, without `autograd` and
  // `nodes`, with nobody watching (a capture, a mode of Python's). With `only`, those run that the slice holds whole.
  // run_node is not called for nodes that ran so.
  std::shared_ptr<NodeGroups> groups;
};

struct ReplayResult {
  std::vector<at::Tensor> outputs;              // of sg::output, or the values of `only`; None is undefined
  std::map<std::string, at::Tensor> gradients;  // of sg::gradient, by parameter name
};

struct ReplayProgram;
class PendingTransfers;
struct RegisteredFunction;  // shadowgraph/capture/functions.h

class Interpreter {
 public:
  // Throws Error for a value of `only` that the graph does not have. Linear.
  explicit Interpreter(const Graph& graph, InterpreterOptions options = {});
  virtual ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  // Throws ReplayError; before anything ran if a placeholder is missing or does not fit, a device or an operator is not
  // there. An operator's own error comes with its node's text; what ran before it has had its effect.
  ReplayResult run(const Bindings& bindings);

  const Graph& graph() const { return graph_; }

 protected:
  // Once per node, in program order. The default runs the node by the calls below and stores its results; operands are
  // still there when it returns.
  virtual void run_node(NodeId node);
  // The arguments are on the stack; leaves the results there.
  virtual void call_operator(NodeId node, const c10::OperatorHandle& op, torch::jit::Stack& stack);
  virtual void call_function(NodeId node, const RegisteredFunction& function, torch::jit::Stack& stack);
  // Placeholders, sg::constant, sg::alias, sg::output and sg::gradient.
  virtual void run_builtin(NodeId node);

  // What a value holds now; throws ReplayError if it is not computed or was released.
  const c10::IValue& value(ValueId value) const;
  // For a run_node of one's own: all results of the node must be set.
  void set_value(ValueId value, c10::IValue content);

 private:
  class Run;
  void check_devices() const;
  void bind(const Bindings& bindings);
  void check_binding(NodeId node, const at::Tensor& tensor) const;
  void check_names(const Bindings& bindings) const;
  at::Tensor own_tensor(const at::Tensor& bound, bool copied);
  void push_arguments(uint32_t step);
  void preserve(uint32_t step);
  void begin_transfer(const c10::OperatorHandle& op);
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
  std::unique_ptr<PendingTransfers> transfers_;  // of a graph that sends or receives
  uint32_t step_ = 0;                            // the one under way
};

// ---------------------------------------------------------------------------------------------------------------------
// A graph, or a slice of it, as something to run: prepared once, run many times.
//
//     ReplayExecutor executor(std::move(graph));
//     at::Tensor y = executor.run({weight, bias, x})[0];                      by position: executor.input_names()
//     ReplayResult step = executor.run(Bindings().module(net).bind("x", x));  by name, gradients included
//
// It is an Interpreter that owns its graph and knows what it takes. Every error is a ReplayError that names the node
// and what to do. A tensor may be missing or of another dtype, shape, stride or device; this process may lack an
// operator or device. Costs about 30 ns a node above calling the operators boxed.

class ReplayExecutor {
 public:
  // Throws Error for a value of options.only that the graph does not have. Linear.
  explicit ReplayExecutor(Graph graph, InterpreterOptions options = {});

  // Parameters, buffers and inputs in program order: what run takes by position.
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
