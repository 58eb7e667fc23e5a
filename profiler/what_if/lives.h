// Represents a step by the lives of its storages: from when to when each is alive, with how many bytes, for what.
//
// A what-if question changes this list and no graph: it halves bytes, moves ends, drops lives and adds others. The
// answer is the most that is alive at once. Every step over the list is linear in storages and nodes.
#pragma once

#include <cstdint>
#include <vector>

#include "shadowgraph/profile/timeline.h"

namespace shadowgraph::step_lives {

struct Life {
  uint32_t born = 0;  // first and last step alive, both inclusive
  uint32_t last = 0;
  int64_t bytes = 0;
  StorageKind kind = StorageKind::kTemporary;
  StorageId storage;  // of the graph; invalid: none of it
};

constexpr uint32_t kToTheEnd = 0xFFFFFFFFU;  // Life::last of what outlives the step

// Steps of lives count double. The node at place p of the graph is step 2p. The odd step before it is for a cast, whose
// copy is there before the node runs. The graph has no such node, since its program ran in float32.
constexpr uint32_t at_node(uint32_t place) { return 2 * place; }
constexpr uint32_t before_node(uint32_t place) { return place == 0 ? 0 : 2 * place - 1; }
constexpr uint32_t place_of(uint32_t step) { return step / 2; }

// Has the lives of a step, and where the optimizer begins.
struct Lives {
  std::vector<Life> all;
  uint32_t steps = 0;
  uint32_t optimizer = 0;  // its first step; `steps` without one
};

// The most bytes alive at once, at the first step that has them.
struct Most {
  int64_t bytes = 0;
  uint32_t step = 0;
  BytesByKind by_kind{};
};

Most most_of(const Lives& lives);
// Returns the bytes of what outlives the step.
BytesByKind held_at_end(const Lives& lives);

}  // namespace shadowgraph::step_lives
