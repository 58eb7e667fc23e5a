// The storages alive at some step, in words.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"
#include "shadowgraph/profile/timeline.h"

namespace SHADOWGRAPH_API shadowgraph {

// One storage that is alive at some step, in words.
struct LiveStorage {
  StorageId storage;
  int64_t bytes = 0;
  StorageKind kind = StorageKind::kTemporary;
  std::string module;    // path of the module that made it; empty outside all modules
  std::string producer;  // operator, or for what existed before its placeholder and name: "sg::parameter fc.weight"
  std::string source;    // "file:line" of the producer, when known
  // The first value in it tells. Undefined, and no shape: no value is in it.
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<int64_t> shape;
};

// The `count` largest storages alive at `step`.
std::vector<LiveStorage> live_storages(const Graph& graph, const MemoryTimeline& timeline, uint32_t step, size_t count);

}  // namespace shadowgraph
