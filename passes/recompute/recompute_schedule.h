// Decides which nodes to recompute, without changing the graph. Internal to the checkpoint passes.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "shadowgraph/graph/analysis.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/passes/recompute.h"

namespace shadowgraph {

// Upper limit of the sums of bytes and costs by which plans are compared.
constexpr int64_t kMaxSum = int64_t{1} << 58;

// Throws Error if the total size of all storages exceeds the limit.
void check_countable(const Graph& graph);

// Segments nest; a segment with its enclosing segments is a chain of levels. A level recomputes some of its nodes, at
// one place in backward, for its backward nodes and for its inner levels.

// A value read by a backward node, or by a node that an inner level recomputes.
struct CheckpointDemand {
  NodeId at;  // the backward node, or the position of the inner level
  ValueId value;
  bool direct = false;  // `at` itself reads it
};

// Consecutive random nodes that are all recomputed and share one saved generator state.
struct RandomRun {
  NodeId first;  // forward nodes
  NodeId last;
  c10::Device device = c10::Device(c10::DeviceType::CPU);
};

struct CheckpointLevel {
  const CheckpointSegment* segment = nullptr;
  int32_t outer = -1;  // index of the enclosing level
  int32_t depth = 0;
  std::vector<NodeId> nodes;  // forward nodes in program order, including those of inner levels
  std::unordered_set<StorageId> keeps;
  std::vector<CheckpointDemand> demands;

  // ---- Decided
  std::vector<NodeId> recomputed;                     // in program order
  std::unordered_set<StorageId> recomputed_storages;  // storages with a copy at this level
  std::vector<CheckpointDemand> accepted;
  std::vector<RandomRun> random_runs;
  NodeId position;  // before which they are recomputed; invalid: nothing is
};

class RecomputeSchedule {
 public:
  // Throws GraphError if segments overlap.
  RecomputeSchedule(const Graph& graph, std::span<const CheckpointSegment> segments);

  const std::vector<CheckpointLevel>& levels() const { return levels_; }
  // Returns the innermost level of a forward node; -1 if there is none.
  int32_t level_of(NodeId node) const { return std::as_const(level_of_)[node]; }
  // Returns the level whose copy of a value a recomputed node of `level` reads; -1: the original.
  int32_t level_with_copy(int32_t level, ValueId value) const;
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
  int32_t allocation_level(StorageId storage) const;
  int32_t candidate_level(int32_t from, ValueId value) const;
  // Returns the node that creates version + 1 of the storage; invalid if there is none.
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

// Returns the positions of arguments that this node writes without affecting its results: a batch norm's statistics.
std::vector<size_t> statistics_to_leave_out(const Graph& graph, NodeId node);

// The points at which a storage allocated in forward is copied to CPU and back for backward.
struct OffloadPoints {
  ValueId whole;              // a value that fills it
  std::vector<ValueId> read;  // values that backward reads: parts of it, or other views
  NodeId last_forward;        // the last forward node that uses it; invalid: it cannot be offloaded
  NodeId fetch;               // before which it is copied back, at the latest for its first reader
};
OffloadPoints offload_points(const Graph& graph, const Effects& effects, StorageId storage);

}  // namespace shadowgraph
