// Decides, without changing the graph, what a checkpoint computes again. checkpoint.cpp carries it out.
//
//     segment   its nodes          -> level      segments within it are deeper levels
//     level     its demands        -> accepted   backward nodes that read a tensor born there
//               blocked and kept   -> made_again, recomputed
//
// Levels are decided from the innermost outwards, since an inner one asks the outer one for its operands.
#include "passes/checkpoint/checkpoint_plan.h"

#include <algorithm>

#include "shadowgraph/analysis/aliases.h"
#include "shadowgraph/analysis/effects.h"

namespace shadowgraph {

// Running statistics change with every run of the operator, so a second run must leave them alone. The formula of a
// training batch norm does not read them.
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

// Says whether a storage can wait on the host. All of it must be one value, so that one copy there and one back will
// do. Backward may only read it, and nothing outside may hold it.
HostTrip host_trip(const Graph& graph, const Effects& effects, StorageId storage) {
  HostTrip trip;
  const NodeId born = graph.storage(storage).born;
  if (!born.valid() || graph.is_erased(born) || graph.is_placeholder(born)) return {};
  bool possible = true;
  const auto is_written = [&](NodeId n) {
    const auto writes = effects.writes(n);
    return std::any_of(writes.begin(), writes.end(),
                       [&](const StorageWrite& write) { return write.storage == storage; });
  };
  const auto note = [&](NodeId n) {
    if (!trip.last_forward.valid() || graph.is_before(trip.last_forward, n)) trip.last_forward = n;
  };
  // Every value in the storage has a say: a view that backward writes to would be lost.
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
    if (!in_forward) return;  // a view that backward makes of what it reads
    if (read) trip.read.push_back(v);
    if (strided && value.offset == 0 && graph.logical_bytes(v) == graph.storage(storage).bytes &&
        is_dense(view_of(graph, v))) {
      trip.whole = v;
    }
  });
  if (possible && trip.whole.valid()) {
    // A view of another dtype could not be taken from the copy by the same strides.
    for (const ValueId v : trip.read) possible = possible && graph.value(v).dtype == graph.value(trip.whole).dtype;
  }
  return possible && trip.whole.valid() && !trip.read.empty() && trip.last_forward.valid() ? trip : HostTrip{};
}

// Effects are worked out once for all levels. Names of regions and ranges of nodes are two ways to say segments; mixed,
// nobody could say which lies within which.
CheckpointPlan::CheckpointPlan(const Graph& graph, std::span<const CheckpointSegment> segments)
    : graph_(graph), effects_(Effects::of(graph)) {
  const auto by_nodes = std::count_if(segments.begin(), segments.end(), [](const CheckpointSegment& segment) {
    return segment.first.valid() || segment.last.valid();
  });
  if (by_nodes == 0) {
    assign_levels(segments);
  } else if (static_cast<size_t>(by_nodes) == segments.size()) {
    assign_ranges(segments);
  } else {
    throw GraphEditError("segments of regions and segments of nodes cannot be checkpointed at once");
  }
  for (size_t i = 0; i < segments.size(); ++i) {
    levels_[i].keeps.insert(segments[i].keep.begin(), segments[i].keep.end());
  }
  collect_demands();
  index_writes();
  std::vector<int32_t> inner_first(levels_.size());
  for (size_t i = 0; i < levels_.size(); ++i) inner_first[i] = static_cast<int32_t>(i);
  std::stable_sort(inner_first.begin(), inner_first.end(),
                   [&](int32_t a, int32_t b) { return levels_[size_t(a)].depth > levels_[size_t(b)].depth; });
  for (const int32_t level : inner_first) decide(level);
}

// ---- Levels

// Nesting is as deep as the user's segments, so walking up is cheap.
bool CheckpointPlan::is_within(int32_t inner, int32_t outer) const {
  while (inner >= 0 && inner != outer) inner = levels_[size_t(inner)].outer;
  return inner == outer;
}

// Returns the innermost level that has both.
int32_t CheckpointPlan::common_level(int32_t a, int32_t b) const {
  while (a >= 0 && !is_within(b, a)) a = levels_[size_t(a)].outer;
  return a;
}

int32_t CheckpointPlan::level_of_birth(StorageId storage) const {
  const NodeId born = graph_.storage(storage).born;
  return born.valid() && !graph_.is_erased(born) ? level_of(born) : -1;
}

// Returns the level that would make this value again for a reader in level `from`; -1 if none does. A storage that a
// level keeps counts as made outside it, so the next level around is asked.
int32_t CheckpointPlan::candidate_level(int32_t from, ValueId id) const {
  const Value& value = graph_.value(id);
  if (from < 0 || value.kind != ValueKind::kTensor || !value.storage.valid()) return -1;
  int32_t level = common_level(from, level_of_birth(value.storage));
  while (level >= 0 && levels_[size_t(level)].keeps.contains(value.storage)) level = levels_[size_t(level)].outer;
  return level >= 0 && is_within(level_of(value.producer), level) ? level : -1;
}

int32_t CheckpointPlan::home_for(int32_t level, ValueId id) const {
  const int32_t home = candidate_level(level, id);
  return home >= 0 && levels_[size_t(home)].made_again.contains(graph_.value(id).storage) ? home : -1;
}

// ---- Who needs what

// Only backward nodes that differentiate a node of a segment get the copy. Other readers keep the original, so that the
// result is right whatever they are.
void CheckpointPlan::collect_demands() {
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

// Lists writers by storage and version, so that asking who wrote next costs nothing. Draws are numbered by generator:
// copies must draw in the same order without a gap.
void CheckpointPlan::index_writes() {
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

NodeId CheckpointPlan::next_writer(StorageId storage, uint32_t version) const {
  const uint32_t at = writers_begin_[storage.index] + version;
  return at < writers_begin_[storage.index + 1] ? writers_[at] : NodeId();
}

// Says whether a random node draws. Attention is random by its tag, and with dropout_p = 0 draws nothing; taking a
// state leaves it as it is.
bool CheckpointPlan::draws(NodeId n) const {
  const Argument* p = graph_.find_argument(n, "dropout_p");
  if (p != nullptr && p->kind == ArgumentKind::kFloat && p->d == 0) return false;
  return graph_.target(n).name() != "sg_random::get_state";
}

}  // namespace shadowgraph
