// Executes an exported graph: call arguments, module regions, and the executor.
#pragma once

#include <ATen/core/function_schema.h>

#include <span>

#include "core/capture/exported/program.h"
#include "core/capture/recorder.h"

namespace shadowgraph {

// Values computed so far in a graph, by value number.
using ValueTable = std::vector<c10::IValue>;

// Converts an operand to the type of the schema's argument. An int for a float becomes a float; a number for a tensor
// becomes a wrapped number, which is not recorded as a tensor. Throws Error that names the argument.
c10::IValue argument_for(const c10::Argument& argument, const ExportedOperand& operand, const ValueTable& values);

// Returns all operands in order, lists flattened, for targets without a schema. Throws Error for graphs.
std::vector<c10::IValue> flat_arguments(std::span<const NamedOperand> operands, const ValueTable& values);

// Opens the modules that nodes were called in as regions of the active capture.

class ModuleRegions {
 public:
  // `around`: modules that are already entered.
  explicit ModuleRegions(const std::vector<SavedModuleCall>* around = nullptr)
      : recorder_(current_recorder()), outer_count_(around != nullptr ? around->size() : 0), open_(copy_of(around)) {}
  ~ModuleRegions() { leave_to(outer_count_); }
  C10_DISABLE_COPY_AND_ASSIGN(ModuleRegions);

  // Leaves the modules that the next node is not in, and enters those it is in.
  void move_to(const std::vector<SavedModuleCall>& stack);
  const std::vector<SavedModuleCall>& open() const { return open_; }

 private:
  static std::vector<SavedModuleCall> copy_of(const std::vector<SavedModuleCall>* stack) {
    return stack != nullptr ? *stack : std::vector<SavedModuleCall>();
  }
  void leave_to(size_t depth);

  Recorder* recorder_;
  size_t outer_count_;  // number of open modules that the caller leaves
  std::vector<SavedModuleCall> open_;
};

// Calls the nodes of an exported graph in order, on the tensors it is given. A value is dropped after its last use, as
// in TorchScript's interpreter, so storages have the same lifetimes.

class ExportedExecutor {
 public:
  // Keeps references to both. `path` is for messages.
  ExportedExecutor(const SavedProgram& program, const std::string& path) : program_(program), path_(path) {}

  // Takes one value for each input of the graph. Operator errors are rethrown with the file, node and operator
  // prepended: DataDependentError and NoRuleError keep their type, all others become Error.
  std::vector<c10::IValue> run(std::vector<c10::IValue> inputs) const;

 private:
  using ModuleStack = std::vector<SavedModuleCall>;
  // Module context of a graph: nodes without a module stack, such as in branches of cond, are in the modules `around`
  // it.
  struct Place {
    const ModuleStack& around;
    ModuleRegions& regions;
  };
  std::vector<c10::IValue> run_graph(const ExportedGraph& graph, std::vector<c10::IValue> inputs, Place place) const;
  void run_node(const ExportedNode& node, ValueTable& values, Place place) const;
  std::vector<c10::IValue> call(const ExportedNode& node, ValueTable& values, Place place) const;
  std::vector<c10::IValue> call_operator(const ExportedNode& node, const ValueTable& values) const;
  const ModuleStack& stack_of(const ExportedNode& node, const Place& place) const {
    return node.module_stack == 0 ? place.around : program_.module_stacks[node.module_stack];
  }

  const SavedProgram& program_;
  const std::string& path_;
};

}  // namespace shadowgraph
