// Decides what a checkpoint recomputes, without changing the graph. checkpoint.cpp applies the decision.
//
//     segment   its nodes          -> level      nested segments are deeper levels
//     level     its demands        -> accepted   backward nodes that read a tensor allocated there
//               blocked and kept   -> recomputed_storages, recomputed
//
// Levels are decided from the innermost outwards, since an inner level's operands become demands of the outer one.
#include "passes/recompute/recompute_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "core/calls/functions.h"
#include "passes/recompute/regions.h"

namespace shadowgraph {

// Recompute must not update running statistics again. In training, batch norm does not read them.
std::vector<size_t> statistics_to_leave_out(const Graph& graph, NodeId node) {
  const std::string& name = graph.target(node).name();
  if (name != "aten::native_batch_norm" && name != "aten::cudnn_batch_norm" && name != "aten::miopen_batch_norm") {
    return {};
  }
  const Argument* training = graph.find_argument(node, "training");
  if (training == nullptr || training->kind != ArgumentKind::kBool || !training->b) return {};
  std::vector<size_t> positions;
  for (const char* statistic : {"running_mean", "running_var"}) {
    const Argument* argument = graph.find_argument(node, statistic);
    if (argument != nullptr && argument->kind == ArgumentKind::kValue) {
      positions.push_back(static_cast<size_t>(argument - graph.arguments(node).data()));
    }
  }
  return positions;
}

// One value must cover the whole storage. Backward may only read it, and it must not be visible outside.
OffloadPoints offload_points(const Graph& graph, const Effects& effects, StorageId storage) {
  OffloadPoints points;
  const NodeId born = graph.storage(storage).born;
  if (!born.valid() || graph.is_erased(born) || graph.is_placeholder(born)) return {};
  bool possible = true;
  const auto is_written = [&](NodeId n) {
    return std::ranges::find(effects.writes(n), storage, &StorageWrite::storage) != effects.writes(n).end();
  };
  const auto note = [&](NodeId n) {
    if (!points.last_forward.valid() || graph.is_before(points.last_forward, n)) points.last_forward = n;
  };
  // Checks every value in the storage: a write by backward to any view would be lost.
  graph.for_each_value_in(storage, [&](ValueId v) {
    const Value& value = graph.value(v);
    if (!value.producer.valid() || graph.is_erased(value.producer)) return;
    const bool in_forward = graph.node(value.producer).phase == Graph::kForward;
    const bool strided = value.kind == ValueKind::kTensor && value.layout == c10::Layout::Strided;
    possible = possible && strided;
    if (in_forward) note(value.producer);
    bool read = false;
    graph.for_each_use(v, [&](NodeId user) {
      const PhaseId phase = graph.node(user).phase;
      if (is_end(graph.node(user).target) || (phase != Graph::kForward && phase != Graph::kBackward)) possible = false;
      if (phase == Graph::kForward) {
        note(user);
      } else {
        read = true;
        if (is_written(user)) possible = false;
      }
    });
    if (!in_forward) return;  // a view that backward creates of its operand
    if (read) points.read.push_back(v);
    if (strided && value.offset == 0 && graph.logical_bytes(v) == graph.storage(storage).bytes &&
        is_dense(view_of(graph, v))) {
      points.whole = v;
    }
  });
  if (!possible || !points.whole.valid() || points.read.empty() || !points.last_forward.valid()) return {};
  // A view of another dtype cannot be taken from the copy with the same strides.
  const c10::ScalarType dtype = graph.value(points.whole).dtype;
  const bool same_dtype = std::ranges::all_of(points.read, [&](ValueId v) { return graph.value(v).dtype == dtype; });
  return same_dtype ? points : OffloadPoints{};
}

// Segments are given by regions or by ranges of nodes; if mixed, their nesting would be ambiguous.
RecomputeSchedule::RecomputeSchedule(const Graph& graph, std::span<const CheckpointSegment> segments)
    : graph_(graph), effects_(Effects::of(graph)) {
  const auto by_nodes = std::count_if(segments.begin(), segments.end(), [](const CheckpointSegment& segment) {
    return segment.first.valid() || segment.last.valid();
  });
  if (by_nodes == 0) {
    assign_levels(segments);
  } else if (static_cast<size_t>(by_nodes) == segments.size()) {
    assign_ranges(segments);
  } else {
    throw GraphError("segments given by regions and segments given by nodes cannot be combined; use one kind");
  }
  for (size_t i = 0; i < segments.size(); ++i) {
    levels_[i].keeps.insert(segments[i].keep.begin(), segments[i].keep.end());
  }
  collect_demands();
  index_writes();
  std::vector<int32_t> inner_first(levels_.size());
  std::iota(inner_first.begin(), inner_first.end(), 0);
  std::stable_sort(inner_first.begin(), inner_first.end(),
                   [&](int32_t a, int32_t b) { return levels_[size_t(a)].depth > levels_[size_t(b)].depth; });
  for (const int32_t level : inner_first) decide(level);
}

// Nesting is as deep as the user's segments, so walking up is cheap.
bool RecomputeSchedule::is_within(int32_t inner, int32_t outer) const {
  while (inner >= 0 && inner != outer) inner = levels_[size_t(inner)].outer;
  return inner == outer;
}

// Returns the innermost level that contains both.
int32_t RecomputeSchedule::common_level(int32_t a, int32_t b) const {
  while (a >= 0 && !is_within(b, a)) a = levels_[size_t(a)].outer;
  return a;
}

int32_t RecomputeSchedule::allocation_level(StorageId storage) const {
  const NodeId born = graph_.storage(storage).born;
  return born.valid() && !graph_.is_erased(born) ? level_of(born) : -1;
}

// Returns the level that would recompute this value for a reader in level `from`; -1 if none does. A storage that a
// level keeps counts as allocated outside it, so the enclosing level is tried next.
int32_t RecomputeSchedule::candidate_level(int32_t from, ValueId id) const {
  const Value& value = graph_.value(id);
  if (from < 0 || value.kind != ValueKind::kTensor || !value.storage.valid()) return -1;
  int32_t level = common_level(from, allocation_level(value.storage));
  while (level >= 0 && levels_[size_t(level)].keeps.contains(value.storage)) level = levels_[size_t(level)].outer;
  return level >= 0 && is_within(level_of(value.producer), level) ? level : -1;
}

int32_t RecomputeSchedule::level_with_copy(int32_t level, ValueId id) const {
  const int32_t home = candidate_level(level, id);
  return home >= 0 && levels_[size_t(home)].recomputed_storages.contains(graph_.value(id).storage) ? home : -1;
}

// Only backward nodes that differentiate a node of a segment read the copy. Others keep the original.
void RecomputeSchedule::collect_demands() {
  for (const NodeId n : graph_.nodes()) {
    const Node& node = graph_.node(n);
    if (node.phase != Graph::kBackward || !node.forward.valid() || graph_.is_erased(node.forward)) continue;
    const int32_t from = level_of(node.forward);
    if (from < 0) continue;
    graph_.for_each_input(n, [&](ValueId v) {
      const int32_t level = candidate_level(from, v);
      if (level >= 0) levels_[size_t(level)].demands.push_back({n, v, true});
    });
  }
}

// Lists writers by storage and version, and numbers draws by generator: copies draw in the same order.
void RecomputeSchedule::index_writes() {
  const uint32_t storages = graph_.storage_count();
  writers_begin_.assign(size_t{storages} + 1, 0);
  for (const NodeId n : graph_.nodes()) {
    for (const StorageWrite& write : effects_.writes(n)) {
      if (write.storage.index < storages) ++writers_begin_[write.storage.index + 1];
    }
  }
  for (uint32_t i = 0; i < storages; ++i) writers_begin_[i + 1] += writers_begin_[i];
  writers_.resize(writers_begin_[storages]);
  IdMap<StorageId, uint32_t> draws_so_far;
  for (const NodeId n : graph_.nodes()) {
    for (const StorageWrite& write : effects_.writes(n)) {
      if (write.storage.index < storages) {
        writers_[writers_begin_[write.storage.index] + write.before] = n;
      } else if (effects_.random(n) && draws(n)) {
        draw_order_[n] = ++draws_so_far[write.storage];
      }
    }
  }
}

NodeId RecomputeSchedule::next_writer(StorageId storage, uint32_t version) const {
  const uint32_t at = writers_begin_[storage.index] + version;
  return at < writers_begin_[storage.index + 1] ? writers_[at] : NodeId();
}

// Returns whether a random node actually draws. Attention draws nothing with dropout_p = 0.
bool RecomputeSchedule::draws(NodeId n) const {
  const Argument* p = graph_.find_argument(n, "dropout_p");
  if (p != nullptr && p->kind == ArgumentKind::kFloat && p->d == 0) return false;
  return graph_.target(n).name() != "sg_random::get_state";
}

namespace {

[[noreturn]] void refuse_segment(const CheckpointSegment& segment, const std::string& what) {
  throw GraphError(fmt::format("cannot checkpoint segment '{}': {}", segment.name, what));
}
[[noreturn]] void refuse_overlap(const CheckpointSegment& a, const CheckpointSegment& b) {
  throw GraphError(fmt::format("segments '{}' and '{}' overlap", a.name, b.name));
}

// Forward nodes, except recomputed ones.
class ForwardNodes {
 public:
  explicit ForwardNodes(const Graph& graph) : graph_(graph), recomputed_(recompute_regions(graph)) {}
  bool contains(NodeId n) const {
    return graph_.node(n).phase == Graph::kForward && !graph_.is_placeholder(n) &&
           !recomputed_[graph_.node(n).region].valid();
  }

 private:
  const Graph& graph_;
  const IdMap<RegionId, RegionId> recomputed_;
};

}  // namespace

// Segments given by regions form a tree, as regions do. A node belongs to the innermost segment around its region;
// nodes between the regions of a segment also belong to it.
class RecomputeSchedule::SegmentTree {
 public:
  SegmentTree(RecomputeSchedule& plan, std::span<const CheckpointSegment> segments)
      : plan_(plan), graph_(plan.graph_), levels_(plan.levels_), segments_(segments), forward_(plan.graph_) {}

  void run() {
    find_segments_of_regions();
    nest();
    find_extents();
    assign_nodes();
  }

 private:
  struct Extent {
    NodeId first, last;
  };

  // Regions of one segment must be siblings, so that nodes between them have the same caller.
  void find_segments_of_regions() {
    for (size_t i = 0; i < segments_.size(); ++i) {
      const CheckpointSegment& segment = segments_[i];
      if (segment.regions.empty()) refuse_segment(segment, "it has no regions");
      for (const RegionId region : segment.regions) {
        if (region.index >= graph_.region_count() || region == Graph::kRootRegion) {
          refuse_segment(segment, "a region does not exist");
        }
        if (graph_.region(region).parent != graph_.region(segment.regions[0]).parent) {
          refuse_segment(segment,
                         fmt::format("'{}' and '{}' have different parents", name_of_region(graph_, segment.regions[0]),
                                     name_of_region(graph_, region)));
        }
        if (segment_at_[region] >= 0) {
          refuse_segment(segment, fmt::format("region '{}' is in another segment, or more than once in this one",
                                              name_of_region(graph_, region)));
        }
        segment_at_[region] = static_cast<int32_t>(i);
      }
    }
  }

  // Finds the innermost segment of each region; parents have smaller indices.
  void nest() {
    IdMap<RegionId, int32_t> around(-1);
    for (uint32_t i = 1; i < graph_.region_count(); ++i) {
      const RegionId id(i);
      around[id] = std::as_const(by_region_)[graph_.region(id).parent];
      const int32_t own = std::as_const(segment_at_)[id];
      by_region_[id] = own >= 0 ? own : around[id];
    }
    levels_.resize(segments_.size());
    for (size_t i = 0; i < segments_.size(); ++i) {
      levels_[i].segment = &segments_[i];
      levels_[i].outer = around[segments_[i].regions[0]];
    }
    for (CheckpointLevel& level : levels_) {
      for (int32_t outer = level.outer; outer >= 0; outer = levels_[size_t(outer)].outer) ++level.depth;
    }
  }

  // A segment extends from the first to the last node of its regions.
  void find_extents() {
    extents_.resize(segments_.size());
    for (const NodeId n : graph_.nodes()) {
      if (!forward_.contains(n)) continue;
      const int32_t level = std::as_const(by_region_)[graph_.node(n).region];
      plan_.level_of_[n] = level;
      for (int32_t l = level; l >= 0; l = levels_[size_t(l)].outer) {
        Extent& extent = extents_[size_t(l)];
        if (!extent.first.valid()) extent.first = n;
        extent.last = n;
      }
    }
    for (size_t i = 0; i < segments_.size(); ++i) {
      if (segments_[i].regions.size() > 1 && extents_[i].first.valid()) {
        begins_[extents_[i].first].push_back(static_cast<int32_t>(i));
      }
    }
  }

  void assign_nodes() {
    for (const NodeId n : graph_.nodes()) {
      open_segments_at(n);
      if (forward_.contains(n)) {
        int32_t& level = plan_.level_of_[n];
        if (!open_.empty() && !plan_.is_within(level, open_.back())) {
          const int32_t around = open_.back();
          if (level != levels_[size_t(around)].outer)
            refuse_overlap(segments_[size_t(around)], segments_[size_t(level)]);
          level = around;
        }
        for (int32_t l = level; l >= 0; l = levels_[size_t(l)].outer) levels_[size_t(l)].nodes.push_back(n);
      }
      while (!open_.empty() && extents_[size_t(open_.back())].last == n) open_.pop_back();
    }
  }

  // A segment of several regions includes the nodes between them, so it is opened at its first node and closed at its
  // last. A segment that begins inside another must end inside it.
  void open_segments_at(NodeId n) {
    const auto found = begins_.find(n);
    if (found == begins_.end()) return;
    std::sort(found->second.begin(), found->second.end(),
              [&](int32_t a, int32_t b) { return levels_[size_t(a)].depth < levels_[size_t(b)].depth; });
    for (const int32_t begun : found->second) {
      if (!open_.empty() && !plan_.is_within(begun, open_.back())) {
        refuse_overlap(segments_[size_t(open_.back())], segments_[size_t(begun)]);
      }
      open_.push_back(begun);
    }
  }

  RecomputeSchedule& plan_;
  const Graph& graph_;
  std::vector<CheckpointLevel>& levels_;
  const std::span<const CheckpointSegment> segments_;
  const ForwardNodes forward_;
  IdMap<RegionId, int32_t> segment_at_{-1};                  // by region of a segment
  IdMap<RegionId, int32_t> by_region_{-1};                   // the innermost segment
  std::vector<Extent> extents_;                              // by segment
  std::unordered_map<NodeId, std::vector<int32_t>> begins_;  // segments of several regions
  std::vector<int32_t> open_;                                // segments around the current node, innermost last
};

void RecomputeSchedule::assign_levels(std::span<const CheckpointSegment> segments) {
  SegmentTree(*this, segments).run();
}

// Segments given by nodes nest by their ranges. At the same begin, the one that ends last is outermost.
void RecomputeSchedule::assign_ranges(std::span<const CheckpointSegment> segments) {
  const ForwardNodes forward(graph_);
  std::unordered_map<NodeId, std::vector<int32_t>> begins;
  levels_.resize(segments.size());
  for (size_t i = 0; i < segments.size(); ++i) {
    const CheckpointSegment& segment = segments[i];
    for (const NodeId end : {segment.first, segment.last}) {
      if (!end.valid() || end.index >= graph_.node_capacity() || graph_.is_erased(end))
        refuse_segment(segment, "a node does not exist");
      if (!forward.contains(end)) refuse_segment(segment, "its first or last node is not a forward node");
    }
    if (graph_.is_before(segment.last, segment.first)) refuse_segment(segment, "its last node comes before its first");
    if (!segment.regions.empty()) refuse_segment(segment, "it has both nodes and regions");
    levels_[i].segment = &segment;
    begins[segment.first].push_back(static_cast<int32_t>(i));
  }
  std::vector<int32_t> open;  // innermost last
  for (const NodeId n : graph_.nodes()) {
    if (const auto found = begins.find(n); found != begins.end()) {
      std::stable_sort(found->second.begin(), found->second.end(), [&](int32_t a, int32_t b) {
        return graph_.is_before(segments[size_t(b)].last, segments[size_t(a)].last);
      });
      for (const int32_t begun : found->second) {
        if (!open.empty()) {
          const CheckpointSegment& around = segments[size_t(open.back())];
          const CheckpointSegment& inner = segments[size_t(begun)];
          if (graph_.is_before(around.last, inner.last) || (around.first == inner.first && around.last == inner.last)) {
            refuse_overlap(around, inner);
          }
          levels_[size_t(begun)].outer = open.back();
        }
        levels_[size_t(begun)].depth = static_cast<int32_t>(open.size());
        open.push_back(begun);
      }
    }
    if (forward.contains(n) && !open.empty()) {
      level_of_[n] = open.back();
      for (const int32_t level : open) levels_[size_t(level)].nodes.push_back(n);
    }
    while (!open.empty() && segments[size_t(open.back())].last == n) open.pop_back();
  }
}

namespace {

// Returns whether the operator resizes a written argument or replaces its storage, which cannot be recomputed.
bool changes_storage(const OperatorFacts& facts) {
  return !facts.written.empty() && (facts.resizes || facts.takes_storage);
}

}  // namespace

// Decides for one level which nodes can be recomputed, and which of those are needed. Obstacles are propagated first;
// the remaining demands are accepted, and only nodes that they depend on are recomputed.
class RecomputeSchedule::Decision {
 public:
  Decision(RecomputeSchedule& plan, int32_t index)
      : plan_(plan), graph_(plan.graph_), effects_(plan.effects_), index_(index), level_(plan.levels_[size_t(index)]) {
    // Tensors that backward needs before the segment has ended would be recomputed while it runs.
    std::erase_if(level_.demands, [&](const CheckpointDemand& demand) {
      // A gradient computed within forward; recompute would save nothing.
      const bool early = graph_.is_before(demand.at, level_.nodes.back());
      if (early) ++plan_.kept_, ++plan_.obstacles_["needed before its segment ends"];
      return early;
    });
    for (const CheckpointDemand& demand : level_.demands) {
      if (!end_.valid() || graph_.is_before(end_, demand.at)) end_ = demand.at;
    }
  }

  void run() {
    if (level_.demands.empty()) return;
    find_obstacles();
    accept();
    if (level_.accepted.empty()) return;
    select();
    find_random_runs();
    add_outer_demands();
  }

 private:
  struct StorageUse {
    std::vector<std::pair<NodeId, uint32_t>> readers;  // readers of contents, with the version
    std::vector<NodeId> writers;
    bool kept = false;
  };

  bool allocated_here(StorageId s) const {
    return s.index < graph_.storage_count() && plan_.is_within(plan_.allocation_level(s), index_);
  }

  bool is_here(NodeId n) const { return plan_.is_within(plan_.level_of(n), index_); }

  // Returns whether the recompute has a copy of the storage, which its nodes read.
  bool is_recomputed(StorageId s) const {
    const auto found = storages_.find(s);
    return found != storages_.end() && !found->second.kept;
  }

  // Returns whether the contents that a node read are unchanged when they are needed again.
  bool is_unchanged(StorageId s, uint32_t version) const {
    const NodeId writer = plan_.next_writer(s, version);
    return !writer.valid() || !graph_.is_before(writer, end_);
  }

  // Returns the first reason why this node cannot be recomputed, regardless of others; "" if there is none. The reason
  // is part of the report, so it names the operator.
  std::string obstacle(NodeId n) const {
    const std::string& name = graph_.target(n).name();
    if (effects_.unknown(n)) return name + ": its effects are unknown";
    if (effects_.host_read(n)) return name + ": copies data to the host";
    if (effects_.collective(n) && !level_.segment->collectives) return name + ": a collective";
    if (changes_storage(graph_.facts(n))) return name + ": changes a tensor's storage";
    if (!graph_.note(n, kGeneratorNote).empty()) return name + ": uses a generator created by the program";
    std::string reason;
    graph_.for_each_output(n, [&](ValueId v) {
      const StorageId s = graph_.value(v).storage;
      if (graph_.value(v).kind == ValueKind::kTensor && !s.valid()) reason = name + ": a result has no storage";
      // It would be duplicated next to the kept one.
      if (level_.keeps.contains(s) && graph_.storage(s).born == n)
        reason = name + ": produces a tensor that must be kept";
    });
    graph_.for_each_input(n, [&](ValueId v) {
      const StorageId s = graph_.value(v).storage;
      if (s.valid() && allocated_here(s) && !is_here(graph_.value(v).producer))
        reason = name + ": an operand from outside the segment";
    });
    for (const StorageWrite& write : effects_.writes(n)) {
      if (level_.keeps.contains(write.storage)) reason = name + ": writes to a tensor that must be kept";
      if (effects_.is_generator(write.storage) || allocated_here(write.storage)) continue;
      // Repeating a write to a storage that others read would be visible.
      if (!is_statistic(n, write.storage)) reason = name + ": writes to a tensor from outside the segment";
    }
    return reason;
  }

  // Statistics are the only write that a copy may omit.
  bool is_statistic(NodeId n, StorageId s) const {
    return std::ranges::any_of(statistics_to_leave_out(graph_, n), [&](size_t position) {
      return graph_.value(graph_.arguments(n)[position].ref.value).storage == s;
    });
  }

  // Finds all nodes that cannot be recomputed. Obstacles propagate to writers of its results.
  void find_obstacles() {
    blocked_.reserve(level_.nodes.size() / 8);
    for (const NodeId n : level_.nodes) {
      graph_.for_each_output(n, [&](ValueId v) {
        const StorageId s = graph_.value(v).storage;
        if (s.valid() && graph_.storage(s).born == n && !level_.keeps.contains(s)) storages_.try_emplace(s);
      });
      for (const StorageVersion& read : effects_.reads(n)) {
        const auto found = storages_.find(read.storage);
        if (found == storages_.end() || effects_.geometry_only(n)) continue;
        found->second.readers.emplace_back(n, read.version);
      }
      for (const StorageWrite& write : effects_.writes(n)) {
        if (const auto found = storages_.find(write.storage); found != storages_.end())
          found->second.writers.push_back(n);
      }
    }
    for (auto& [storage, use] : storages_) {
      // Some writer is outside the segment, and a copy would miss its write.
      if (use.writers.size() != effects_.final_version(storage)) keep(storage, "written to outside its segment");
    }
    for (const NodeId n : level_.nodes) {
      if (const std::string reason = obstacle(n); !reason.empty()) block(n, reason);
      if (effects_.geometry_only(n)) continue;
      for (const StorageVersion& read : effects_.reads(n)) {
        if (read.storage.index >= graph_.storage_count() || storages_.contains(read.storage)) continue;
        if (!is_unchanged(read.storage, read.version) && !is_statistic(n, read.storage)) {
          // A copy would read the current contents instead of the original ones.
          block(n, graph_.target(n).name() + ": an operand is written to before backward");
        }
      }
    }
    // A blocked node keeps what it allocates and writes; readers of a version that no longer exists are blocked, too.
    while (!pending_.empty()) {
      const NodeId n = pending_.back();
      pending_.pop_back();
      const std::string& reason = blocked_.at(n);
      // Including its views.
      graph_.for_each_output(n, [&](ValueId v) { keep(graph_.value(v).storage, reason); });
      for (const StorageWrite& write : effects_.writes(n)) keep(write.storage, reason);
    }
  }

  void block(NodeId n, const std::string& reason) {
    if (blocked_.try_emplace(n, reason).second) pending_.push_back(n);
  }

  // All writers of a kept storage must be kept, too: their copies would write to the original again.
  void keep(StorageId s, const std::string& reason) {
    const auto found = storages_.find(s);
    if (found == storages_.end() || found->second.kept) return;
    found->second.kept = true;
    reasons_.try_emplace(s, reason);
    for (const NodeId writer : found->second.writers) block(writer, reason);
    for (const auto& [reader, version] : found->second.readers) {
      if (!is_unchanged(s, version)) block(reader, reason);
    }
  }

  // Accepts demands without obstacles. Copies are inserted just before the first backward node with a demand.
  void accept() {
    std::unordered_set<StorageId> counted;
    for (const CheckpointDemand& demand : level_.demands) {
      const StorageId s = graph_.value(demand.value).storage;
      if (is_recomputed(s) && !blocked_.contains(graph_.value(demand.value).producer)) {
        level_.accepted.push_back(demand);
        if (!level_.position.valid() || graph_.is_before(demand.at, level_.position)) level_.position = demand.at;
      } else if (counted.insert(s).second) {
        ++plan_.kept_;
        const auto reason = reasons_.find(s);
        ++plan_.obstacles_[reason == reasons_.end() ? std::string("made outside its segment") : reason->second];
      }
    }
  }

  // Walks backwards from what is needed to its dependences. Results read for their geometry need no contents.
  void select() {
    std::unordered_set<ValueId> values;
    std::unordered_set<StorageId> contents;
    for (const CheckpointDemand& demand : level_.accepted) {
      values.insert(demand.value);
      contents.insert(graph_.value(demand.value).storage);
    }
    for (size_t i = level_.nodes.size(); i-- > 0;) {
      const NodeId n = level_.nodes[i];
      bool needed = false;
      graph_.for_each_output(n, [&](ValueId v) { needed = needed || values.contains(v); });
      for (const StorageWrite& write : effects_.writes(n)) needed = needed || contents.contains(write.storage);
      if (!needed) continue;
      level_.recomputed.push_back(n);
      graph_.for_each_input(n, [&](ValueId v) {
        const StorageId s = graph_.value(v).storage;
        if (!is_recomputed(s)) return;

        values.insert(v);
        if (!effects_.geometry_only(n)) contents.insert(s);
      });
      graph_.for_each_output(n, [&](ValueId v) {
        const StorageId s = graph_.value(v).storage;
        if (is_recomputed(s)) level_.recomputed_storages.insert(s);
      });
    }
    std::reverse(level_.recomputed.begin(), level_.recomputed.end());
  }

  // Copies that draw must see the original generator state; consecutive ones share a saved state (5 KB).
  void find_random_runs() {
    std::unordered_map<StorageId, uint32_t> last_draw;
    std::unordered_map<StorageId, size_t> run_of;
    for (const NodeId n : level_.recomputed) {
      const uint32_t draw = std::as_const(plan_.draw_order_)[n];
      if (draw == 0) continue;
      for (const StorageWrite& write : effects_.writes(n)) {
        if (!effects_.is_generator(write.storage)) continue;
        const auto last = last_draw.find(write.storage);
        if (last == last_draw.end() || last->second + 1 != draw) {
          run_of[write.storage] = level_.random_runs.size();
          level_.random_runs.push_back({.first = n, .last = n, .device = device_of(write.storage)});
        }
        level_.random_runs[run_of[write.storage]].last = n;
        last_draw[write.storage] = draw;
      }
    }
  }

  c10::Device device_of(StorageId generator) const {
    // The pseudo storage of collectives has no device.
    const auto found = std::ranges::find(effects_.generators(), generator, &Effects::Generator::storage);
    return found == effects_.generators().end() ? c10::Device(c10::DeviceType::CPU) : found->device;
  }

  // An operand may be allocated in an outer segment that drops it as well. That level must recompute it first.
  void add_outer_demands() {
    for (const NodeId n : level_.recomputed) {
      graph_.for_each_input(n, [&](ValueId v) {
        const StorageId s = graph_.value(v).storage;
        if (s.valid() && is_recomputed(s)) return;
        const int32_t outer = plan_.candidate_level(level_.outer, v);
        if (outer >= 0) plan_.levels_[size_t(outer)].demands.push_back({level_.position, v, false});
      });
    }
  }

  RecomputeSchedule& plan_;
  const Graph& graph_;
  const Effects& effects_;
  const int32_t index_;
  CheckpointLevel& level_;
  NodeId end_;                                          // the last node that may need a copy
  std::unordered_map<StorageId, StorageUse> storages_;  // allocated in this level
  std::unordered_map<NodeId, std::string> blocked_;
  std::unordered_map<StorageId, std::string> reasons_;
  std::vector<NodeId> pending_;
};

void RecomputeSchedule::decide(int32_t level) {
  if (!levels_[size_t(level)].demands.empty()) Decision(*this, level).run();
}

}  // namespace shadowgraph
