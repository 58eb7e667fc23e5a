// How a graph's edits are carried out: uses, lifetimes, aliases and saved tensors that change along with nodes. Users
// call Graph's edits (shadowgraph/graph/graph.h); each is a few of these steps. Internal to ir/.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shadowgraph/graph/graph.h"

namespace shadowgraph {

class Graph::Editor {
 public:
  explicit Editor(Graph& graph) : graph_(graph) {}

  // The list of nodes in program order. make_room_at() renumbers around a node when order numbers have run out between
  // its neighbours, so that is_before() stays a comparison.
  void link_before(NodeId id, NodeId position);
  void unlink(NodeId id);
  void make_room_at(NodeId id);
  // The list of uses of each value, threaded through the arguments themselves. Whoever changes arguments drops their
  // uses before and enters them after.
  void enter_uses(NodeId id, std::span<Argument> arguments);
  void drop_uses(std::span<const Argument> arguments);
  void append_use(uint32_t use, ValueId value);
  bool has_entered_uses(std::span<const Argument> arguments) const;
  // Lists are shared by copies of an argument, and a use belongs to one node. So a node gets lists of its own.
  Run copy_list(Run list);
  Run own_arguments(std::span<const Argument> arguments);
  // The list of values in each storage.
  void join_storage(ValueId id);
  void leave_storage(ValueId id);

  // What changes when a value takes the place of another: its views and in-place results follow it to its storage.
  struct Rehoming;
  class DoomedNodes;
  bool mentions(std::span<const Argument> arguments, ValueId id) const;
  // Saved tensors and deaths of storages. A node that goes hands both on, so that the lives of storages stay as
  // recorded.
  void forget_saved_elsewhere(NodeId id);
  void repair_saved(NodeId id);
  void add_frees(NodeId id, std::span<const StorageId> storages);
  void drop_free(StorageId id);
  void remove(NodeId id);
  void hand_births_on(NodeId id, const DoomedNodes* doomed);
  void hand_deaths_on(NodeId id, NodeId heir);
  // Placeholders come first (0), sg::output and sg::gradient last (2), everything else between.
  static constexpr int kPlaceholderRank = 0;
  static constexpr int kEndRank = 2;
  static int rank_of(TargetId target);
  // These throw GraphError before anything is changed.
  void check_operands(std::span<const Argument> arguments, NodeId position, const char* what) const;
  void check_order_of_kinds(NodeId before, TargetId target, NodeId after) const;
  void check_range_move(NodeId first, NodeId last, NodeId position) const;
  uint32_t redirect(ValueId of, ValueId with, const UseFilter* filter);
  void collect_arguments(std::span<Argument> arguments, NodeId user, ValueId of, const UseFilter* filter,
                         std::vector<Argument*>& found);
  void follow_aliases(Rehoming& rehoming);
  void check_extents(const Rehoming& rehoming) const;
  void rehome(const Rehoming& rehoming);
  std::string describe(NodeId id) const;
  uint32_t intern_dims(std::span<const int64_t> sizes, std::span<const int64_t> strides);

 private:
  Graph& graph_;
};

}  // namespace shadowgraph
