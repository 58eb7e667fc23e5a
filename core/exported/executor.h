// Calls the nodes of an exported graph one after the other, on whatever tensors it is given. Internal to core/exported.
//
// A value is dropped after the node that uses it last, as TorchScript's interpreter does, so storages live as long.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "core/exported/call_arguments.h"
#include "core/exported/module_regions.h"
#include "core/exported/program.h"

namespace shadowgraph {

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
