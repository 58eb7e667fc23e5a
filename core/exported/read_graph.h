// Reads the graph of an exported program from its JSON. Internal to core/exported.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/exported/program.h"
#include "support/json_place.h"

namespace shadowgraph {

// Reads the format's number of a dtype. Throws Error for one that is not known.
c10::ScalarType read_dtype(const JsonPlace& place);
SavedGeometry read_geometry(const JsonPlace& place);
// Reads a number, or an expression with its value for the example inputs.
SymbolicSize read_symbolic_size(const JsonPlace& place);

// Keeps the stacks of modules that nodes were called in, each once.
class ModuleStacks {
 public:
  ModuleStacks() : stacks_(1) {}
  // Takes the text in a node's metadata: "key,path,class;key,path,class", from the outermost.
  uint32_t intern(const std::string& text);
  std::vector<std::vector<SavedModuleCall>> take() && { return std::move(stacks_); }

 private:
  std::vector<std::vector<SavedModuleCall>> stacks_;  // the first is empty
  std::unordered_map<std::string, uint32_t> known_;
};

// Reads graphs within it, too.
ExportedGraph read_graph(const JsonPlace& place, ModuleStacks& modules);

}  // namespace shadowgraph
