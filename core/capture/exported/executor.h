// Runs an exported graph: arguments of calls, regions of modules, and the executor. Internal to core/exported.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/capture/exported/program.h"
#include "core/capture/recorder.h"

namespace shadowgraph {

// What the nodes of a graph have made so far, by number.
using ValueTable = std::vector<c10::IValue>;

// Returns an operand as the schema's argument wants it. An integer for a float becomes a float. An integer in place of
// a tensor becomes a number that is not recorded as a tensor. Throws Error that names the argument.
c10::IValue argument_for(const c10::Argument& argument, const ExportedOperand& operand, const ValueTable& values);

// Returns all operands in order, lists flattened, for what has no schema. Throws Error for graphs.
std::vector<c10::IValue> plain_arguments(std::span<const NamedOperand> operands, const ValueTable& values);

// Opens the modules that nodes were called in as regions of the capture under way. Internal to core/exported.

class ModuleRegions {
 public:
  // `around` are modules that are entered already.
  explicit ModuleRegions(const std::vector<SavedModuleCall>* around = nullptr)
      : recorder_(current_recorder()), around_(around != nullptr ? around->size() : 0), open_(copy_of(around)) {}
  ~ModuleRegions() { leave_to(around_); }
  ModuleRegions(const ModuleRegions&) = delete;
  ModuleRegions& operator=(const ModuleRegions&) = delete;

  // Leaves the modules that the next node is not in, and enters those that it is in.
  void move_to(const std::vector<SavedModuleCall>& stack);
  const std::vector<SavedModuleCall>& open() const { return open_; }

 private:
  static std::vector<SavedModuleCall> copy_of(const std::vector<SavedModuleCall>* stack) {
    return stack != nullptr ? *stack : std::vector<SavedModuleCall>();
  }
  void leave_to(size_t depth);

  Recorder* recorder_;
  size_t around_;  // how many of the open ones are somebody else's to leave
  std::vector<SavedModuleCall> open_;
};

// Calls the nodes of an exported graph one after the other, on whatever tensors it is given. Internal to core/exported.
//
// A value is dropped after the node that uses it last, as TorchScript's interpreter does, so storages live as long.

class ExportedExecutor {
 public:
  // Keeps references to both. `path` is for messages.
  ExportedExecutor(const SavedProgram& program, const std::string& path) : program_(program), path_(path) {}

  // Takes one value for each input of the graph. What operators throw comes with the file, the node and the operator
  // before it: DataDependentError and NoRuleError as such, all else as Error.
  std::vector<c10::IValue> run(std::vector<c10::IValue> inputs) const;

 private:
  using ModuleStack = std::vector<SavedModuleCall>;
  // Says where a graph runs: its nodes that say nothing of modules are in those `around` it, as the branches of cond.
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
