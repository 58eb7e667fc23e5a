#include <algorithm>
#include <limits>
#include <optional>

#include "ir/analysis/module_tree.h"
#include "profiler/cost/scratch_rules.h"
#include "profiler/program_costs.h"
#include "shadowgraph/profile/memory.h"
#include "shadowgraph/profile/profile.h"

namespace shadowgraph {
namespace {

std::optional<StorageKind> placeholder_kind(TargetId target) {
  if (target == target_of(Builtin::kParameter)) return StorageKind::kParameter;
  if (target == target_of(Builtin::kBuffer)) return StorageKind::kBuffer;
  if (target == target_of(Builtin::kInput)) return StorageKind::kInput;
  if (target == target_of(Builtin::kConstant)) return StorageKind::kConstant;
  return std::nullopt;
}

bool allocated_in_graph(const Graph& graph, const Storage& storage) {
  return storage.born.valid() && storage.born.index < graph.node_capacity() && !graph.is_erased(storage.born);
}

// Marks tensors that existed before the step and are read only by the optimizer: its state, unless it is a first step.
IdMap<StorageId, uint8_t> optimizer_state_before(const Graph& graph, const IdMap<NodeId, uint32_t>& order,
                                                 std::optional<uint32_t> last_backward) {
  IdMap<StorageId, uint8_t> state;
  if (!last_backward) return state;
  IdMap<StorageId, uint8_t> read_elsewhere;
  for (const NodeId id : graph.nodes()) {
    if (graph.is_placeholder(id)) continue;
    const bool steps = graph.node(id).phase == Graph::kOptimizer && order[id] > *last_backward;
    graph.for_each_input(id, [&](ValueId value) {
      const StorageId storage = graph.value(value).storage;
      if (storage.valid()) (steps ? state : read_elsewhere)[storage] = 1;
    });
  }
  for (uint32_t i = 0; i < graph.storage_count(); ++i) {
    const StorageId id(i);
    const NodeId born = graph.storage(id).born;
    const auto kind =
        allocated_in_graph(graph, graph.storage(id)) ? placeholder_kind(graph.node(born).target) : std::nullopt;
    const bool given = kind == StorageKind::kInput || kind == StorageKind::kConstant;
    if (!given || read_elsewhere[id] != 0 || placeholder_name(graph, born).starts_with("gradient.")) state[id] = 0;
  }
  return state;
}

// Returns true for literals that the host writes into a tensor: they take no separate memory.
bool is_literal(const Graph& graph, const Storage& storage) {
  return storage.kind == StorageKind::kConstant && existed_before(graph, storage) && storage.born.valid() &&
         !graph.is_erased(storage.born) && !graph.note(storage.born, "literal").empty();
}

constexpr uint32_t kNever = std::numeric_limits<uint32_t>::max();

// Returns, for each position in program order, where the next backward begins; kNever after the last one.
std::vector<uint32_t> next_backward(const Graph& graph) {
  std::vector<uint32_t> next;
  next.reserve(graph.node_count());
  for (const NodeId node : graph.nodes()) {
    const auto at = static_cast<uint32_t>(next.size());
    next.push_back(graph.node(node).phase == Graph::kBackward ? at : kNever);
  }
  uint32_t following = kNever;
  for (size_t at = next.size(); at-- > 0;) next[at] = following = std::min(following, next[at]);
  return next;
}

}  // namespace

bool existed_before(const Graph& graph, const Storage& storage) {
  return !allocated_in_graph(graph, storage) || placeholder_kind(graph.node(storage.born).target).has_value();
}

IdMap<NodeId, uint32_t> program_order(const Graph& graph) {
  IdMap<NodeId, uint32_t> order;
  order.reserve(graph.node_capacity());
  uint32_t position = 0;
  for (NodeId node : graph.nodes()) order[node] = position++;
  return order;
}

IdMap<StorageId, StorageKind> storage_kinds(const Graph& graph, const IdMap<NodeId, uint32_t>& order) {
  IdMap<StorageId, StorageKind> kinds(StorageKind::kTemporary);
  IdMap<StorageId, uint8_t> saved;
  IdMap<StorageId, uint8_t> gradient;
  kinds.reserve(graph.storage_count());
  NodeId first_backward;
  std::optional<uint32_t> last_backward;
  for (NodeId id : graph.nodes()) {
    if (graph.node(id).phase == Graph::kBackward) {
      if (!first_backward.valid()) first_backward = id;
      last_backward = order[id];
    }
    for (const SavedTensor& tensor : graph.saved(id)) {
      const StorageId storage = graph.value(tensor.value).storage;
      if (storage.valid()) saved[storage] = 1;
    }
    if (graph.node(id).target == target_of(Builtin::kGradient)) {
      const auto arguments = graph.arguments(id);
      if (arguments.size() == 2 && arguments[1].kind == ArgumentKind::kValue) {
        const StorageId storage = graph.value(arguments[1].ref.value).storage;
        if (storage.valid()) gradient[storage] = 1;
      }
    }
  }

  const IdMap<StorageId, uint8_t> state = optimizer_state_before(graph, order, last_backward);
  for (uint32_t i = 0; i < graph.storage_count(); ++i) {
    const StorageId id(i);
    const Storage& storage = graph.storage(id);
    StorageKind kind = storage.kind;
    const bool born = allocated_in_graph(graph, storage);
    const auto placeholder = born ? placeholder_kind(graph.node(storage.born).target) : std::nullopt;
    if (placeholder) {
      // A gradient kept across steps exists before this one.
      kind = *placeholder == StorageKind::kInput && gradient[id] != 0 ? StorageKind::kGradient
             : state[id] != 0                                         ? StorageKind::kOptimizerState
                                                                      : *placeholder;
    } else if (kind == StorageKind::kTemporary && gradient[id] != 0) {
      kind = StorageKind::kGradient;
    } else if (kind == StorageKind::kTemporary && born) {
      const PhaseId phase = graph.node(storage.born).phase;
      const bool alive_at_backward = first_backward.valid() && (!storage.freed_after.valid() ||
                                                                order[storage.freed_after] >= order[first_backward]);
      const bool is_kept = saved[id] != 0 && !first_backward.valid();
      if (phase == Graph::kOptimizer && !storage.freed_after.valid()) {
        kind = StorageKind::kOptimizerState;
      } else if (phase == Graph::kForward && (is_kept || alive_at_backward)) {
        kind = StorageKind::kActivation;
      }
    }
    kinds[id] = kind;
  }
  return kinds;
}

MemoryTimeline MemoryTimeline::of(const Graph& graph, std::optional<c10::Device> device) {
  return ProgramCosts(graph).timeline(device);
}

MemoryTimeline ProgramCosts::timeline(std::optional<c10::Device> device) const {
  const Graph& graph = this->graph();
  MemoryTimeline timeline;
  timeline.kinds_ = kinds;
  timeline.nodes_ = nodes;
  const uint32_t steps = timeline.steps();
  if (steps == 0) return timeline;

  // First the changes at each step, then their prefix sums.
  timeline.live_.assign(steps, BytesByKind{});
  timeline.total_.assign(steps, 0);
  timeline.rounded_.assign(steps, 0);
  const auto add = [&](uint32_t born, uint32_t last, StorageKind kind, int64_t bytes) {
    timeline.live_[born][static_cast<size_t>(kind)] += bytes;
    timeline.rounded_[born] += rounded_bytes(bytes);
    if (last + 1 == steps) return;
    timeline.live_[last + 1][static_cast<size_t>(kind)] -= bytes;
    timeline.rounded_[last + 1] -= rounded_bytes(bytes);
  };
  timeline.intervals_.reserve(graph.storage_count());
  for (uint32_t i = 0; i < graph.storage_count(); ++i) {
    const StorageId id(i);
    const Storage& storage = graph.storage(id);
    if (!is_on(storage.device(), device)) continue;
    const bool freed = storage.freed_after.valid() && !graph.is_erased(storage.freed_after);
    const uint32_t born = existed_before(graph, storage) ? 0 : order[storage.born];
    const uint32_t last = std::max(born, freed ? order[storage.freed_after] : steps - 1);
    if (is_literal(graph, storage)) continue;
    timeline.intervals_.push_back({id, born, last, storage.bytes});
    add(born, last, timeline.kinds_[id], storage.bytes);
  }

  for (const auto& own : custom.scratch()) {
    if (is_on(own.device, device)) add(order[own.node], order[own.node], StorageKind::kTemporary, own.bytes);
  }

  for (uint32_t step = 0; step < steps; ++step) {
    BytesByKind& live = timeline.live_[step];
    int64_t total = 0;
    for (size_t kind = 0; kind < live.size(); ++kind) {
      if (step > 0) live[kind] += timeline.live_[step - 1][kind];
      total += live[kind];
    }
    if (step > 0) timeline.rounded_[step] += timeline.rounded_[step - 1];
    timeline.total_[step] = total;
    timeline.rounded_peak_ = std::max(timeline.rounded_peak_, timeline.rounded_[step]);
    const NodeId node = timeline.nodes_[step];
    const auto see = [&](MemoryPeak& peak, int64_t bytes) {
      if (step > 0 && bytes <= peak.bytes) return;
      peak = {.bytes = bytes, .step = step, .node = node, .phase = graph.node(node).phase, .by_kind = live};
    };
    see(timeline.peak_, total);
    // Registered scratch is in `live` already; the rest is on the device of the node's tensors.
    const NodeScratch& inside = scratch.of(node);
    const bool counts = inside.bytes > 0 && inside.source != ScratchSource::kRegistered &&
                        is_on(device_of_call(graph, node).value_or(c10::Device(c10::kCPU)), device);
    see(timeline.peak_with_scratch_, counts ? total + inside.bytes : total);
  }
  return timeline;
}

std::vector<StorageId> MemoryTimeline::alive_at(uint32_t step, size_t count) const {
  std::vector<Interval> alive;
  for (const Interval& interval : intervals_) {
    if (interval.born <= step && step <= interval.last && interval.bytes > 0) alive.push_back(interval);
  }
  count = std::min(count, alive.size());
  std::partial_sort(alive.begin(), alive.begin() + static_cast<std::ptrdiff_t>(count), alive.end(),
                    [](const Interval& a, const Interval& b) {
                      return a.bytes != b.bytes ? a.bytes > b.bytes : a.storage < b.storage;
                    });
  std::vector<StorageId> storages;
  for (size_t i = 0; i < count; ++i) storages.push_back(alive[i].storage);
  return storages;
}

std::vector<LiveStorage> live_storages(const Graph& graph, const MemoryTimeline& timeline, uint32_t step,
                                       size_t count) {
  if (timeline.steps() == 0) return {};
  return describe_storages(graph, timeline, timeline.alive_at(step, count));
}

std::vector<LiveStorage> describe_storages(const Graph& graph, const MemoryTimeline& timeline,
                                           const std::vector<StorageId>& storages) {
  std::vector<LiveStorage> result;
  IdMap<StorageId, size_t> place(storages.size());
  for (StorageId id : storages) {
    place[id] = result.size();
    result.push_back({.storage = id, .bytes = graph.storage(id).bytes, .kind = timeline.kind(id)});
    const NodeId born = graph.storage(id).born;
    if (!born.valid() || graph.is_erased(born)) continue;
    LiveStorage& live = result.back();
    live.producer = graph.target(born).name();
    if (const std::string name = placeholder_name(graph, born); !name.empty()) live.producer += " " + name;
    live.module = module_path(graph, born);
    if (graph.node(born).source.valid()) live.source = graph.text(graph.node(born).source);
  }
  // Use the first value in each storage.
  size_t missing = result.size();
  for (NodeId node : graph.nodes()) {
    if (missing == 0) break;
    graph.for_each_output(node, [&](ValueId value) {
      const StorageId storage = graph.value(value).storage;
      if (!storage.valid()) return;
      const size_t at = std::as_const(place)[storage];
      if (at >= result.size() || result[at].dtype != c10::ScalarType::Undefined) return;
      result[at].dtype = graph.value(value).dtype;
      result[at].shape.assign(graph.sizes(value).begin(), graph.sizes(value).end());
      --missing;
    });
  }
  return result;
}

std::optional<SteadyState> steady_state(const Graph& graph, const MemoryTimeline& timeline) {
  const uint32_t steps = timeline.steps();
  // Gradients that are kept across steps are accumulated into from the second step on, which the first does not show.
  const bool gradients_stay = graph.metadata.other.contains("zero_grads");
  if (steps == 0 || gradients_stay || graph.metadata.step == TrainingStep::kSteady) return std::nullopt;
  IdMap<NodeId, uint32_t> place;
  for (uint32_t step = 0; step < steps; ++step) place[timeline.node(step)] = step;
  struct Kept {
    uint32_t made;
    StorageId storage;
  };
  std::vector<Kept> kept;
  for (const StorageId id : timeline.alive_at(steps - 1, std::numeric_limits<size_t>::max())) {
    if (timeline.kind(id) != StorageKind::kOptimizerState || existed_before(graph, graph.storage(id))) continue;
    kept.push_back({place[graph.storage(id).born], id});
  }
  if (kept.empty()) return std::nullopt;
  std::ranges::sort(kept, {}, &Kept::made);

  BytesByKind later{};  // of tensors that the recorded step has yet to allocate
  int64_t all_later = 0;
  const auto add = [&](StorageId id, int sign) {
    const int64_t bytes = sign * graph.storage(id).bytes;
    later[static_cast<size_t>(timeline.kind(id))] += bytes;
    all_later += bytes;
  };
  for (const Kept& each : kept) add(each.storage, 1);
  SteadyState steady;
  size_t made = 0;
  for (uint32_t step = 0; step < steps; ++step) {
    for (; made < kept.size() && kept[made].made <= step; ++made) add(kept[made].storage, -1);
    if (step > 0 && timeline.total(step) + all_later <= steady.peak.bytes) continue;
    const NodeId node = timeline.node(step);
    steady.peak = {.bytes = timeline.total(step) + all_later,
                   .step = step,
                   .node = node,
                   .phase = graph.node(node).phase,
                   .by_kind = timeline.live(step)};
    for (size_t kind = 0; kind < later.size(); ++kind) steady.peak.by_kind[kind] += later[kind];
  }
  for (const Kept& each : kept) {
    if (each.made > steady.peak.step) steady.kept.push_back(each.storage);
  }
  return steady;
}

SavedBytes SavedBytes::of(const Graph& graph) {
  const auto order = program_order(graph);
  const std::vector<uint32_t> backward = next_backward(graph);
  const bool has_backward = !backward.empty() && backward[0] != kNever;
  struct Change {
    int64_t all = 0, activations = 0, storages = 0;
  };
  std::vector<Change> changes(graph.node_count() + 1);
  IdMap<StorageId, uint8_t> seen;
  for (const NodeId node : graph.nodes()) {
    for (const SavedTensor& tensor : graph.saved(node)) {
      const StorageId id = graph.value(tensor.value).storage;
      if (!id.valid() || seen[id] != 0) continue;
      seen[id] = 1;
      const Storage& storage = graph.storage(id);
      const bool freed = has_backward && storage.freed_after.valid() && !graph.is_erased(storage.freed_after);
      // FSDP2 frees gathered parameters while autograd still holds views of them.
      if (freed && order[storage.freed_after] < backward[order[node]]) continue;
      const Change change{storage.bytes, existed_before(graph, storage) ? 0 : storage.bytes, 1};
      Change& from = changes[order[node]];
      from = {from.all + change.all, from.activations + change.activations, from.storages + change.storages};
      if (!freed) continue;
      Change& until = changes[std::max(order[storage.freed_after], order[node]) + 1];
      until = {until.all - change.all, until.activations - change.activations, until.storages - change.storages};
    }
  }
  SavedBytes saved;
  Change now;
  for (const Change& change : changes) {
    now = {now.all + change.all, now.activations + change.activations, now.storages + change.storages};
    saved.all = std::max(saved.all, now.all);
    saved.activations = std::max(saved.activations, now.activations);
    saved.storages = std::max(saved.storages, now.storages);
  }
  return saved;
}

}  // namespace shadowgraph
