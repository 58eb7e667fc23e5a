// Implements a graph's edits: keeps uses, storage lifetimes, aliases and saved tensors consistent as nodes change.
// Users call Graph's edits (shadowgraph/graph/graph.h); each consists of a few of these steps. Internal to ir/.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "shadowgraph/graph/graph.h"

namespace shadowgraph {

class Graph::Editor {
 public:
  explicit Editor(Graph& graph) : graph_(graph) {}

  // Maintains the list of nodes in program order.
  void link_before(NodeId id, NodeId position);
  void unlink(NodeId id);
  void make_room_at(NodeId id);
  // Maintains the use list of each value, which is threaded through the arguments themselves. Code that changes
  // arguments drops their uses first and enters the new ones afterwards.
  void enter_uses(NodeId id, std::span<Argument> arguments);
  void drop_uses(std::span<const Argument> arguments);
  void append_use(uint32_t use, ValueId value);
  bool has_entered_uses(std::span<const Argument> arguments) const;
  // Copies of an argument share its lists, but a use belongs to one node, so each node gets its own copy of a list.
  Run copy_list(Run list);
  Run own_arguments(std::span<const Argument> arguments);
  // Maintains the list of values in each storage.
  void join_storage(ValueId id);
  void leave_storage(ValueId id);

  // State of an edit that replaces a value: its views and in-place results follow it to the new storage.
  struct Rehoming;
  class NodesToErase;
  bool mentions(std::span<const Argument> arguments, ValueId id) const;
  // Maintains saved tensors and the points at which storages are freed. Both pass from an erased node to a remaining
  // one, so that storage lifetimes stay as recorded.
  void forget_saved_elsewhere(NodeId id);
  void repair_saved(NodeId id);
  void add_frees(NodeId id, std::span<const StorageId> storages);
  void drop_free(StorageId id);
  void remove(NodeId id);
  void transfer_allocations(NodeId id, const NodesToErase* to_erase);
  void transfer_frees(NodeId id, NodeId successor);
  // Placeholders come first (0), sg::output and sg::gradient last (2), everything else between.
  static constexpr int kPlaceholderRank = 0;
  static constexpr int kEndRank = 2;
  static int rank_of(TargetId target);
  // The checks throw GraphError before anything is changed.
  void check_operands(std::span<const Argument> arguments, NodeId position, const char* what) const;
  void check_order_of_kinds(NodeId before, TargetId target, NodeId after) const;
  void check_range_move(NodeId first, NodeId last, NodeId position) const;
  uint32_t redirect(ValueId of, ValueId with, const UseFilter* filter);
  Argument* argument_of(std::span<Argument> arguments, uint32_t use);
  void follow_aliases(Rehoming& rehoming);
  void check_extents(const Rehoming& rehoming) const;
  void rehome(const Rehoming& rehoming);
  std::string describe(NodeId id) const;
  uint32_t intern_dims(std::span<const int64_t> sizes, std::span<const int64_t> strides);

 private:
  Graph& graph_;
};

}  // namespace shadowgraph
