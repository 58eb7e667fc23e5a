// What modules keep for backward waits on the host meanwhile.
//
//     const OffloadResult done = offload_modules(graph, {.modules = "model.layers.*"});    // done.tensors, done.bytes
//
// A tensor leaves after its last use in forward and comes back before its first use in backward:
//
//     %12 = aten::_to_copy(%2, device=cpu, non_blocking=true)
//     %13 = aten::_to_copy(%12, device=cuda:0, non_blocking=true) | backward
//
// Engines run these copies beside kernels. So what a module keeps stays until the module behind it has run, and is
// fetched when backward of that one begins. The copies carry the note "kernel"="copy engine".
//
// A tensor belongs to the module of its last use in forward. What a checkpoint keeps may wait on the host, too: run the
// pass behind `checkpoint`.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"
#include "shadowgraph/passes/options.h"
#include "shadowgraph/passes/pass.h"

namespace SHADOWGRAPH_API shadowgraph {

struct OffloadOptions {
  std::string modules = "auto";      // as regions_named() takes them (shadowgraph/passes/checkpoint.h)
  int64_t least = int64_t{1} << 20;  // bytes of a tensor; smaller ones stay

  static OptionTable<OffloadOptions> table() {
    return OptionTable<OffloadOptions>()
        .text("modules", &OffloadOptions::modules,
              "patterns of paths joined by '+', or auto: the longest run of numbered modules")
        .whole_number("least", &OffloadOptions::least, 0, "bytes of a tensor; smaller ones stay");
  }
};

struct OffloadResult {
  int64_t tensors = 0, bytes = 0;       // that wait on the host
  std::map<std::string, int64_t> left;  // of the modules, kept on the device, by reason
  PassResult summary() const;
};

// Throws Error if no region matches but for "auto". A graph without backward is left as it is. Linear.
OffloadResult offload_modules(Graph& graph, const OffloadOptions& options = {});
OffloadResult offload_regions(Graph& graph, std::span<const RegionId> regions, int64_t least = int64_t{1} << 20);

}  // namespace shadowgraph
