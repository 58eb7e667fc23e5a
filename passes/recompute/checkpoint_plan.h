// What is to be computed again, decided without changing the graph. Internal to the checkpoint passes.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "shadowgraph/graph/analysis.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/passes/recompute.h"

namespace shadowgraph {

// The most that sums of bytes and of costs, by which plans are weighed, may come to.
constexpr int64_t kMostCountable = int64_t{1} << 58;

// Throws Error if all storages together have more bytes.
void check_countable(const Graph& graph);

// Segments nest; a segment with those around it is a chain of levels. A level computes again some of its nodes, at one
// place in backward, for backward nodes that belong to it and for the levels inside.

// A backward node, or a node that a level inside computes again, and a value that it reads.
struct CheckpointDemand {
  NodeId at;  // the backward node, or the place of the level inside
  ValueId value;
  bool direct = false;  // `at` itself reads it
};

// Random nodes that draw one after the other and are all computed again: one state serves them.
struct RandomRun {
  NodeId first;  // forward nodes
  NodeId last;
  c10::Device device = c10::Device(c10::DeviceType::CPU);
};

struct CheckpointLevel {
  const CheckpointSegment* segment = nullptr;
  int32_t outer = -1;  // index of the level around it
  int32_t depth = 0;
  std::vector<NodeId> nodes;  // of forward, in program order, those of inner levels included
  std::unordered_set<StorageId> keeps;
  std::vector<CheckpointDemand> demands;

  // ---- Decided
  std::vector<NodeId> recomputed;            // in program order
  std::unordered_set<StorageId> made_again;  // storages that have a copy at this level
  std::vector<CheckpointDemand> accepted;
  std::vector<RandomRun> random_runs;
  NodeId position;  // before which they are computed again; invalid: nothing is
};

class CheckpointPlan {
 public:
  // Throws GraphError for segments that overlap.
  CheckpointPlan(const Graph& graph, std::span<const CheckpointSegment> segments);

  const std::vector<CheckpointLevel>& levels() const { return levels_; }
  // Returns the innermost level of a forward node, -1 if it is in none.
  int32_t level_of(NodeId node) const { return std::as_const(level_of_)[node]; }
  // Where a node of `level` that is computed again there finds a value: the level that has a copy, -1: the original.
  int32_t home_for(int32_t level, ValueId value) const;
  const std::map<std::string, int64_t>& obstacles() const { return obstacles_; }
  int64_t kept() const { return kept_; }
  const Effects& effects() const { return effects_; }
  bool draws(NodeId node) const;

 private:
  void assign_levels(std::span<const CheckpointSegment> segments);
  void assign_ranges(std::span<const CheckpointSegment> segments);
  void collect_demands();
  void index_writes();
  void decide(int32_t level);
  class SegmentTree;
  class Decision;

  bool is_within(int32_t inner, int32_t outer) const;
  int32_t common_level(int32_t a, int32_t b) const;
  int32_t level_of_birth(StorageId storage) const;
  int32_t candidate_level(int32_t from, ValueId value) const;
  // Who makes version + 1 of it; invalid if nobody does.
  NodeId next_writer(StorageId storage, uint32_t version) const;

  const Graph& graph_;
  const Effects effects_;
  std::vector<CheckpointLevel> levels_;
  IdMap<NodeId, int32_t> level_of_{-1};
  std::vector<uint32_t> writers_begin_;  // by storage
  std::vector<NodeId> writers_;          // in order of versions
  IdMap<NodeId, uint32_t> draw_order_;   // of random nodes, from 1, by generator
  std::map<std::string, int64_t> obstacles_;
  int64_t kept_ = 0;
};

// Positions of arguments that this node writes and whose contents do not touch its results: a batch norm's running
// statistics in training. Computed again, it goes without.
std::vector<size_t> statistics_to_leave_out(const Graph& graph, NodeId node);

// How a storage that forward makes can wait for backward on the host.
struct HostTrip {
  ValueId whole;              // a value that fills it
  std::vector<ValueId> read;  // those that backward reads: parts of it, or other views
  NodeId last_forward;        // after which forward does not touch it; invalid: it has to stay
  NodeId fetch;               // before which it is copied back, at the latest for its first reader
};
HostTrip host_trip(const Graph& graph, const Effects& effects, StorageId storage);

}  // namespace shadowgraph
