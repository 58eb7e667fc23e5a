// checkpoint: recomputes activations in backward instead of keeping them.
//
// Copies of forward nodes, inserted just before backward needs them, recompute the tensors of chosen regions that only
// backward still reads. The originals are freed in forward.
//
//     r5 = module "block" in r1                          r5 = checkpoint "block" in r1, with the module in it
//     %2 = aten::mm(%x, %w)    @s2 | r5                  %2 = ...                                  free(s2) where gelu read it
//     %3 = aten::gelu(%2)      @s3 | r5                  %3 = ...
//     ...                                                ...
//                                                        %9 = aten::mm(%x, %w) @s9 | r8 backward of n2     r8: "recompute"
//     %7 = gelu_backward(%g, %2) | backward of n3        %7 = gelu_backward(%g, %9)                free(s9)
//
// Decisions (recompute_schedule.cpp). A backward node reads the copy if it differentiates a node of the segment and
// reads a tensor whose storage was allocated there. All other readers, including other segments, read the original,
// which lives as long as they need it. Only nodes that such tensors depend on are recomputed.
//
//   writes              a storage is recomputed with all its writes, in order, if all of them are in the segment
//   operands            values from outside must not have been written in between
//   random numbers      the generator's state is saved before the first draw (core/calls/functions.h), set for the
//                       copies, and restored afterwards
//   running statistics  of a batch norm are not updated twice: the copy omits them
//   never recomputed    host reads, collectives unless requested, unknown targets, writes to storages from outside
//   kept on request     counts as allocated outside the segment, but inside its enclosing segment
//
// A tensor that cannot be recomputed is kept as before. The report lists how many and why.
//
// Offload. A tensor that is offloaded to CPU is copied after its last use in forward and copied back before its first
// use in backward. All backward readers, including recomputed nodes, read the copy.
//
//     %12 = aten::_to_copy(%2, device=cpu, non_blocking=true)          free(s2)
//     %13 = aten::_to_copy(%12, device=cuda:0, non_blocking=true) | backward
//
// Nested segments: the outer segment's copies of the inner one's nodes serve as forward for the inner one's copies.
//
// Lifetimes. The originals are freed after their last use in forward, the operands of the copies after those, and the
// copies after their last use. The nodes' `saved` lists are updated: tensors that are not kept are removed.
//
// Linear in the graph times the depth of nesting; about 1 us per node.
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <array>
#include <memory>
#include <set>

#include "core/calls/functions.h"
#include "ir/records.h"
#include "passes/recompute/forward_checkpoints.h"
#include "passes/recompute/host_copies.h"
#include "passes/recompute/recompute_schedule.h"
#include "passes/recompute/regions.h"
#include "shadowgraph/graph/analysis.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/passes/recompute.h"

namespace shadowgraph {
namespace {

class Rewrite {
 public:
  Rewrite(Graph& graph, std::span<const CheckpointSegment> segments)
      : graph_(graph), plan_(graph, segments), regions_(graph), copiers_(segments.size()) {}

  CheckpointResult run() {
    result_.kept = plan_.kept();
    result_.obstacles = plan_.obstacles();
    std::vector<size_t> outer_first;
    for (size_t i = 0; i < plan_.levels().size(); ++i) {
      if (plan_.levels()[i].position.valid()) outer_first.push_back(i);
    }
    find_offloads();
    if (outer_first.empty() && offloads_.empty()) return result_;
    std::stable_sort(outer_first.begin(), outer_first.end(),
                     [&](size_t a, size_t b) { return plan_.levels()[a].depth < plan_.levels()[b].depth; });
    note_touched_storages();
    for (const size_t level : outer_first) wrap(level);
    std::vector<bool> has_inner(plan_.levels().size(), false);
    for (const size_t level : outer_first) {
      for (int32_t outer = plan_.levels()[level].outer; outer >= 0;
           outer = plan_.levels()[static_cast<size_t>(outer)].outer) {
        has_inner[static_cast<size_t>(outer)] = true;
      }
    }
    for (const size_t level : outer_first) {
      recompute_level(level);
      redirect(level);
      // otherwise inner levels read its copies; many levels take much memory
      if (!has_inner[level]) copiers_[level].reset();
    }
    for (const Offload& offload : offloads_) offload_to_cpu(graph_, offload.points, changes_, result_);
    drop_saved();
    update_lifetimes(graph_, changes_);
    put_parents_first(graph_);
    result_.segments = static_cast<int64_t>(outer_first.size());
    return result_;
  }

 private:
  void recompute_level(size_t index) {
    const CheckpointLevel& level = plan_.levels()[index];
    const RegionId region = regions_.add(Graph::kRootRegion, graph_.intern(level.segment->name), kRecomputeClass);
    copiers_[index] = std::make_unique<NodeCopier>(graph_, graph_, region);
    NodeCopier& copier = *copiers_[index];
    copier.reserve(level.recomputed.size());
    if (!level.segment->regions.empty()) {
      const RegionId first = level.segment->regions[0];
      const bool marked = !needs_region(graph_, *level.segment);
      copier.bind(marked ? first : graph_.region(first).parent, region);
    }
    size_t next_run = 0;
    std::unordered_map<NodeId, std::vector<std::pair<c10::Device, ValueId>>> ends;  // states to restore
    for (const NodeId n : level.recomputed) {
      for (; next_run < level.random_runs.size() && level.random_runs[next_run].first == n; ++next_run) {
        const RandomRun& run = level.random_runs[next_run];
        const ValueId outside = exchange_state(run, level.position, region);
        ends[run.last].emplace_back(run.device, outside);
      }
      bind_operands(copier, index, n);
      const NodeId copy = copier.copy(n, level.position);
      mutable_node(graph_, copy).phase = Graph::kBackward;
      mutable_node(graph_, copy).forward = n;
      for (const size_t statistic : statistics_to_leave_out(graph_, copy)) {
        graph_.set_argument(copy, statistic, Argument::none());
      }
      changes_.copies[copy] = 1;
      ++result_.recomputed;
      result_.repeated.push_back(n);
      if (const auto end = ends.find(n); end != ends.end()) {
        for (const auto& [device, state] : end->second) {
          add_state_node(set_random_state(), {Argument::of_value(state), Argument::of_device(device)}, level.position,
                         region, Graph::kBackward);
        }
      }
    }
    copier.finish();
  }

  // Binds operands that are not recomputed here: another level's copy, or the original.
  void bind_operands(NodeCopier& copier, size_t index, NodeId n) {
    const CheckpointLevel& level = plan_.levels()[index];
    const auto bind = [&](ValueId v) {
      if (copier.value(v).valid()) return;
      const StorageId storage = graph_.value(v).storage;
      if (storage.valid() && level.recomputed_storages.contains(storage)) return;  // recomputed by a copy
      const int32_t home = plan_.level_with_copy(level.outer, v);
      const ValueId replacement = home < 0 ? v : copiers_[static_cast<size_t>(home)]->value(v);
      if (replacement.valid()) copier.bind(v, replacement);
    };
    graph_.for_each_input(n, bind);
    for (const SavedTensor& saved : graph_.saved(n)) {
      // A tensor from outside; one that is produced later is resolved at the end.
      const NodeId producer = graph_.value(saved.value).producer;
      if (!graph_.is_erased(producer) && graph_.is_before(producer, n)) bind(saved.value);
    }
  }

  NodeId add_state_node(const Target& target, std::initializer_list<Argument> arguments, NodeId position,
                        RegionId region, PhaseId phase) {
    const NodeId n = graph_.insert_before(position, graph_.intern_target(target),
                                          std::span<const Argument>(arguments.begin(), arguments.size()));
    mutable_node(graph_, n).region = region;
    mutable_node(graph_, n).phase = phase;
    changes_.copies[n] = phase == Graph::kBackward ? 1 : 0;
    return n;
  }

  ValueId add_state(NodeId n, c10::Device device) {
    const std::array<int64_t, 1> sizes{random_state_bytes(device)};
    const std::array<int64_t, 1> strides{1};
    const StorageId storage = graph_.add_storage({.bytes = sizes[0], .born = n});
    changes_.made[storage] = 1;
    return graph_.add_tensor_result(
        n, {.dtype = c10::ScalarType::Byte, .sizes = sizes, .strides = strides, .storage = storage});
  }

  ValueId exchange_state(const RandomRun& run, NodeId position, RegionId region) {
    ValueId& kept = states_[run.first];
    if (!kept.valid()) {
      const NodeId n = add_state_node(get_random_state(), {Argument::of_device(run.device)}, run.first,
                                      graph_.node(run.first).region, Graph::kForward);
      kept = add_state(n, run.device);
      ++result_.random_states;
    }
    const NodeId n =
        add_state_node(exchange_random_state(), {Argument::of_value(kept), Argument::of_device(run.device)}, position,
                       region, Graph::kBackward);
    return add_state(n, run.device);
  }

  void redirect(size_t index) {
    const CheckpointLevel& level = plan_.levels()[index];
    std::unordered_map<ValueId, std::unordered_set<NodeId>> readers;
    std::vector<ValueId> order;
    for (const CheckpointDemand& demand : level.accepted) {
      if (!demand.direct) continue;
      auto& users = readers[demand.value];
      if (users.empty()) order.push_back(demand.value);
      users.insert(demand.at);
    }
    for (const ValueId v : order) {
      const auto& users = readers[v];
      result_.redirected += graph_.replace_uses_if(v, copiers_[index]->value(v),
                                                   [&](NodeId user, const Argument&) { return users.contains(user); });
    }
  }

  struct Offload {
    OffloadPoints points;
    size_t level = 0;
  };

  // Finds tensors that segments want to offload and that can be restored unchanged.
  void find_offloads() {
    for (size_t level = 0; level < plan_.levels().size(); ++level) {
      if (plan_.levels()[level].outer >= 0) continue;
      for (const StorageId s : plan_.levels()[level].segment->offload) {
        OffloadPoints points = offload_points(graph_, plan_.effects(), s);
        if (points.last_forward.valid()) offloads_.push_back({std::move(points), level});
      }
    }
  }

  void wrap(size_t index) {
    const CheckpointLevel& level = plan_.levels()[index];
    // Nodes of such a segment may start in one module and end in another, and forward is unchanged.
    if (level.segment->regions.empty() || !needs_region(graph_, *level.segment)) return;
    regions_.wrap_regions(level);
  }

  // Records, before any change, the storages that may be freed earlier: recomputed, or saved by segments only.
  void note_touched_storages() {
    for (const CheckpointLevel& level : plan_.levels()) {
      for (const CheckpointDemand& demand : level.accepted) changes_.touched[graph_.value(demand.value).storage] = 1;
      for (const StorageId s : level.recomputed_storages) changes_.touched[s] = 1;
    }
    const std::set<size_t> outermost = outermost_with_copies();
    std::vector<bool> dealt_with(graph_.node_capacity(), false);
    for (const size_t level : outermost)
      for (const NodeId n : plan_.levels()[level].nodes) dealt_with[n.index] = true;
    IdMap<StorageId, uint8_t> saved_outside;
    for (const NodeId n : graph_.nodes()) {
      if (dealt_with[n.index]) continue;
      for (const SavedTensor& saved : graph_.saved(n)) {
        if (const StorageId s = graph_.value(saved.value).storage; s.valid()) saved_outside[s] = 1;
      }
    }
    for (const size_t level : outermost) {
      for (const NodeId n : plan_.levels()[level].nodes) {
        for (const SavedTensor& saved : graph_.saved(n)) {
          const StorageId s = graph_.value(saved.value).storage;
          if (!s.valid() || std::as_const(saved_outside)[s] != 0) continue;
          const NodeId born = graph_.storage(s).born;
          if (born.valid() && !graph_.is_erased(born) && dealt_with[born.index]) changes_.touched[s] = 1;
        }
      }
    }
  }

  void drop_saved() {
    std::vector<bool> read_by_any(graph_.storage_count(), false);
    std::vector<bool> read_by_gradients(graph_.storage_count(), false);
    for (const NodeId n : graph_.nodes()) {
      if (graph_.node(n).phase != Graph::kBackward) continue;
      const bool copy = is_copy(n);
      graph_.for_each_input(n, [&](ValueId v) {
        const StorageId s = graph_.value(v).storage;
        if (!s.valid()) return;
        read_by_any[s.index] = true;
        if (!copy) read_by_gradients[s.index] = true;
      });
    }
    std::vector<SavedTensor> left;
    const auto keep_only = [&](NodeId n, const std::vector<bool>& read) {
      left.clear();
      for (const SavedTensor& saved : graph_.saved(n)) {
        const StorageId s = graph_.value(saved.value).storage;
        if (!s.valid() || read[s.index]) left.push_back(saved);
      }
      if (left.size() != graph_.saved(n).size()) graph_.set_saved(n, std::vector<SavedTensor>(left));
    };
    for (const size_t level : outermost_with_copies()) {
      for (const NodeId n : plan_.levels()[level].nodes) keep_only(n, read_by_any);
    }
    for (const NodeId n : graph_.nodes()) {
      if (is_copy(n)) keep_only(n, read_by_gradients);
    }
  }

  std::set<size_t> outermost_with_copies() const {
    std::set<size_t> found;
    for (size_t i = 0; i < plan_.levels().size(); ++i) {
      const bool sends =
          std::any_of(offloads_.begin(), offloads_.end(), [&](const Offload& offload) { return offload.level == i; });
      if (!plan_.levels()[i].position.valid() && !sends) continue;
      size_t outermost = i;
      while (plan_.levels()[outermost].outer >= 0) outermost = static_cast<size_t>(plan_.levels()[outermost].outer);
      found.insert(outermost);
    }
    return found;
  }

  bool is_copy(NodeId n) const { return std::as_const(changes_).copies[n] != 0; }

  Graph& graph_;
  const RecomputeSchedule plan_;
  CheckpointRegions regions_;
  CheckpointResult result_;
  std::vector<std::unique_ptr<NodeCopier>> copiers_;  // by level
  StorageChanges changes_;
  std::unordered_map<NodeId, ValueId> states_;  // by the first random node of a run
  std::vector<Offload> offloads_;
};

}  // namespace

CheckpointResult checkpoint_segments(Graph& graph, std::span<const CheckpointSegment> segments) {
  return is_forward_alone(graph) ? mark_segments(graph, segments).result : Rewrite(graph, segments).run();
}

}  // namespace shadowgraph
