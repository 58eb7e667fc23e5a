// The tree of a program's modules, by path.
//
// "layer1.0.conv1" is a child of "layer1.0", and that of "layer1". Containers without a region (such as a ModuleList)
// are in the tree by their path only. All calls of a module share one entry. A backward node belongs to the module of
// the forward node it differentiates. A node outside every module belongs to the root, whose path is empty.
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

// Returns the path of the module that a node is charged to; "" outside all modules. A path of more than 500 bytes is
// cut and numbered.
std::string module_path(const Graph& graph, NodeId node);

// Returns "fc.weight" for sg::parameter("fc.weight"); "" for anything that is not a named placeholder.
std::string placeholder_name(const Graph& graph, NodeId node);

// Note with the kind of kernel that runs a node, if it is not the operator's own; read by time models.

inline constexpr std::string_view kKernelNote = "kernel";
// A compiler-generated kernel: memory-bound.
inline constexpr std::string_view kCompiledKernel = "compiled";
// No kernel: a copy between device and host by a copy engine, concurrent with kernels.
inline constexpr std::string_view kCopyEngine = "copy engine";

}  // namespace shadowgraph
