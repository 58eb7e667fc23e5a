// The lives of a step's storages: from when to when each is alive, with how many bytes, and for what.
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

constexpr uint32_t kToTheEnd = 0xFFFFFFFFU;

// Counts steps of lives: a node is at twice its place in the graph, a cast that is not in the graph between two nodes.
constexpr uint32_t at_node(uint32_t place) { return 2 * place; }
constexpr uint32_t before_node(uint32_t place) { return place == 0 ? 0 : 2 * place - 1; }
constexpr uint32_t place_of(uint32_t step) { return step / 2; }

// Has the lives of a step, and where the optimizer begins.
struct Lives {
  std::vector<Life> all;
  uint32_t steps = 0;
  uint32_t optimizer = 0;  // its first step; `steps` without one
};

struct Most {
  int64_t bytes = 0;
  uint32_t step = 0;
  BytesByKind by_kind{};
};

Most most_of(const Lives& lives);
BytesByKind held_at_end(const Lives& lives);

}  // namespace shadowgraph::step_lives
