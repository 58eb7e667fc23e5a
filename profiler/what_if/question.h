// Represents a step by the lives of its storages: from when to when each is alive, with how many bytes, for what.
//
// A what-if question changes this list and no graph: it halves bytes, moves ends, drops lives and adds others. The
// answer is the most that is alive at once. Every step over the list is linear in storages and nodes.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "profiler/program_costs.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/profile/memory.h"
#include "shadowgraph/profile/what_if.h"

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

// Knows one recorded step, and how a question changes the lives of its storages. what_if() calls the parts in this
// order: recorded(), convert(), later_micro_batch(), with_optimizer(), spread().
//
// Each part has a file: in_other_dtype.cpp, other_optimizer.cpp, zero.cpp; question.cpp reads the graph and has the
// rest. All are linear in the graph. An optimizer costs a capture of its step over fake parameters.

class Question {
 public:
  // Both must outlive it. Throws Error for a graph that is no training step.
  Question(const Graph& graph, const WhatIf& change);

  const ProgramCosts& costs() const { return costs_; }
  bool is_steady() const { return steady_; }
  bool has_float32_parameters() const;
  bool clips_or_scales() const;
  std::string phase_at(uint32_t step) const;

  Lives recorded() const;
  // Gives what follows from float32 parameters the dtype asked for, and adds the casts of a program in that dtype.
  void convert(Lives& lives) const;
  // Returns the lives of a micro-batch after the first. Gradients are there already, and each new one is a temporary
  // that lives until it has been added.
  Lives later_micro_batch(const Lives& first) const;
  // Puts the step of another optimizer in place of the recorded one: a first step, or one that finds its state.
  Lives with_optimizer(const Lives& recorded, const std::string& name, bool steady) const;
  // Leaves a rank its part under ZeRO.
  void spread(Lives& lives) const;

 private:
  void find_phases();
  bool is_backward(uint32_t step) const { return graph_.node(costs_.nodes[step]).phase == Graph::kBackward; }
  bool is_float32(NodeId node) const;
  // Returns the step of the last node of the backward call to which the node at this step belongs.
  uint32_t end_of_call(uint32_t step) const;
  // Says whether the node itself computes a loss, which models do in float32.
  bool is_loss(NodeId node) const;
  IdMap<NodeId, uint8_t> loss_nodes() const;
  // Says whether results beside the first are float32 on CUDA, whatever the type of the operands.
  bool gives_float32_statistics(NodeId node) const;
  // Marks storages that stay float32: of losses and statistics, single numbers, and buffers of modules without
  // parameters (tables of positions, counters, scales).
  IdMap<StorageId, uint8_t> kept_in_float32() const;
  // Returns what marks a node's results, but only storages that the node made. A view that a loss takes of the model's
  // output stays in the model's type.
  std::function<void(ValueId)> keep_if_born(NodeId node, IdMap<StorageId, uint8_t>& kept) const;
  // Returns the place of the first operator that uses a storage and computes no loss; kToTheEnd without one.
  uint32_t first_use_outside_losses(StorageId storage) const;
  uint32_t last_use_in_losses(StorageId storage) const;
  // Returns float32 copies of what a loss is given. They are there until forward ends, or as long as the loss's own
  // backward reads them.
  std::vector<Life> copies_for_losses() const;
  // Returns the bytes that the parameters of one module have now, for the module that owns most.
  int64_t largest_module(const Lives& lives) const;
  int64_t whole_bytes(const Life& life) const;
  // Returns the step of an optimizer over the parameters that have gradients here.
  Graph optimizer_step(const std::string& name, bool steady) const;

  const Graph& graph_;
  const WhatIf& change_;
  const ProgramCosts costs_;
  const c10::Device device_;
  const IdMap<NodeId, uint8_t> computes_loss_;
  uint32_t optimizer_ = 0;  // place of its first node; the number of nodes without one
  std::optional<uint32_t> first_backward_;
  bool steady_ = false;
};

std::optional<c10::ScalarType> dtype_of(const Graph& graph, StorageId storage);

}  // namespace shadowgraph::step_lives
