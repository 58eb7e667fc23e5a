// Shows the modules of a program as a tree of paths, and which of them a node belongs to.
//
// "layer1.0.conv1" is a child of "layer1.0", and that a child of "layer1". Containers that no region names (a
// ModuleList) stand in the tree by their path alone. All calls of a module are one entry. A backward node belongs to
// the module of the forward node it differentiates. A node outside every module belongs to the root, whose path is
// empty.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/graph/graph.h"

namespace shadowgraph {

struct Module {
  static constexpr uint32_t kNone = 0xFFFFFFFFU;

  std::string path;        // "" for the root
  std::string class_name;  // "" if no region names this path
  uint32_t calls = 0;      // regions with this path
  uint32_t depth = 0;      // 0 for the root
  uint32_t parent = kNone;
  std::vector<uint32_t> children;  // in order of first entry
};

struct ModuleTree {
  std::vector<Module> modules;  // parents before children; modules[0] is the root
  IdMap<RegionId, uint32_t> of_region;

  static ModuleTree of(const Graph& graph);
  uint32_t of_node(const Graph& graph, NodeId node) const;
};

// Returns the region that a node's costs are charged to: for a backward node that of its forward node, when known.
RegionId charged_region(const Graph& graph, NodeId node);

// Returns the path of the module that a node is charged to; "" outside all modules.
std::string module_path(const Graph& graph, NodeId node);

// Returns "fc.weight" for sg::parameter("fc.weight"); "" for anything that is not a named placeholder.
std::string placeholder_name(const Graph& graph, NodeId node);

// What kernel a node stands for, where it is not the operator's own: time models read it.

inline constexpr std::string_view kKernelNote = "kernel";
// One that a compiler makes: it moves what it must, at the pace of the memory.
inline constexpr std::string_view kCompiledKernel = "compiled";
// None: a copy between device and host by an engine of its own, beside kernels.
inline constexpr std::string_view kCopyEngine = "copy engine";

}  // namespace shadowgraph
