// A training step as a chain: where forward is cut, what each stage holds, and the ways to keep it.
//
// All figures come from one walk over the graph's lives and, in a stage, from walks over its own nodes. They need not
// be exact: whatever the chain's solver makes of them is tried on the graph (checkpoint_curve.cpp).
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "passes/checkpoint/chain_builder.h"
#include "passes/checkpoint/countable.h"
#include "passes/checkpoint/forward_checkpoints.h"
#include "shadowgraph/analysis/effects.h"
#include "shadowgraph/analysis/recompute_regions.h"
#include "shadowgraph/passes/checkpoint_curve.h"
#include "shadowgraph/saturating.h"

namespace shadowgraph {

// Without a cost of the caller's, FLOPs and bytes stand for time.
ChainBuilder::ChainBuilder(const Graph& graph, const CheckpointChainOptions& options)
    : graph_(graph), options_(options), effects_(Effects::of(graph)), lives_(graph.storage_count()) {
  check_countable(graph_);
  if (!options_.cost) options_.cost = flops_and_bytes();
  if (options_.whole_stages) options_.most_options = 1;
  list_forward();
  find_lives();
}

// The order matters: stages must be known before what passes over them, and that before what each stage holds.
CheckpointChain ChainBuilder::run(std::span<const RegionId> regions) {
  if (forward_.empty() || !has_backward_) return {};
  if (regions.empty()) {
    cut();
  } else {
    cut_at(regions);
  }
  set_aside_what_passes_over();
  add_up_backward();
  for (size_t i = 0; i < ends_.size(); ++i) describe(i);
  measure();
  // What is there before the first stage but given by the caller counts as the chain's input.
  std::unordered_set<StorageId> given;
  for (int32_t at = 0; at < ends_[0]; ++at) {
    graph_.for_each_input(forward_[size_t(at)], [&](ValueId v) {
      const Value& value = graph_.value(v);
      if (!value.storage.valid() || graph_.node(value.producer).target != target_of(Builtin::kInput)) return;
      if (given.insert(value.storage).second) chain_.input += graph_.storage(value.storage).bytes;
    });
  }
  return std::move(chain_);
}

// Nodes that a checkpoint computes again are no forward of their own.
void ChainBuilder::list_forward() {
  const IdMap<RegionId, RegionId> again = recompute_regions(graph_);
  for (const NodeId n : graph_.nodes()) {
    has_backward_ = has_backward_ || graph_.node(n).phase == Graph::kBackward;
    const bool end =
        graph_.node(n).target == target_of(Builtin::kOutput) || graph_.node(n).target == target_of(Builtin::kGradient);
    if (graph_.node(n).phase != Graph::kForward || graph_.is_placeholder(n) || end ||
        std::as_const(again)[graph_.node(n).region].valid()) {
      continue;
    }
    place_[n] = static_cast<int32_t>(forward_.size());
    forward_.push_back(n);
    costs_.push_back(cost_of_node(n));
  }
}

int64_t ChainBuilder::cost_of_node(NodeId n) {
  const int64_t cost = options_.cost(graph_, n);
  total_cost_ = saturating_add(total_cost_, std::max<int64_t>(0, cost));
  if (cost < 0 || total_cost_ > kMostCountable) {
    throw Error(
        "the operators of this graph cost more than 2^58 together, which no plan of recomputing can be weighed by: is "
        "the file damaged?");
  }
  return cost;
}

// A stage's backward is what differentiates its nodes.
void ChainBuilder::add_up_backward() {
  backward_costs_.assign(ends_.size(), 0);
  for (const NodeId n : graph_.nodes()) {
    const NodeId of = graph_.node(n).forward;
    if (graph_.node(n).phase != Graph::kBackward || !of.valid() || graph_.is_erased(of)) continue;
    const int32_t place = std::as_const(place_)[of];
    if (place != kNowhere) backward_costs_[size_t(stage_of_[size_t(place)])] += cost_of_node(n);
  }
}

// Lives are counted by storage, not by value: a view keeps its base.
void ChainBuilder::find_lives() {
  for (size_t at = 0; at < forward_.size(); ++at) {
    const auto touch = [&](ValueId v) {
      const StorageId s = graph_.value(v).storage;
      if (!s.valid()) return;
      ForwardLife& life = lives_[s.index];
      if (graph_.storage(s).born == forward_[at]) life.born = static_cast<int32_t>(at);
      life.last = static_cast<int32_t>(at);
      life.gradient = life.gradient || graph_.value(v).requires_grad;
    };
    graph_.for_each_input(forward_[at], touch);
    graph_.for_each_output(forward_[at], touch);
  }
  // Everything after forward that reads a storage counts as backward: the optimizer does so for gradients alone.
  for (const NodeId n : graph_.nodes()) {
    if (is_forward(n) || graph_.is_placeholder(n)) continue;
    graph_.for_each_input(n, [&](ValueId v) {
      if (const StorageId s = graph_.value(v).storage; s.valid()) lives_[s.index].saved = true;
    });
  }
}

// A stage is called after what costs most in it, as people know it.
std::string ChainBuilder::name_of(size_t stage) const {
  if (stage < names_.size() && !names_[stage].empty()) return names_[stage];
  // The module of the node that costs most.
  int32_t most = begin_of(stage);
  for (int32_t at = begin_of(stage); at < ends_[stage]; ++at) {
    if (costs_[size_t(at)] > costs_[size_t(most)]) most = at;
  }
  const std::string path = path_of(forward_[size_t(most)]);
  return path.empty() ? fmt::format("stage {}", stage) : path.substr(4);
}

// Returns the cost of making these storages of a stage again, where `kept` are there: a walk backwards over the
// stage, as checkpoint_plan.cpp selects nodes.
int64_t ChainBuilder::cost_of(size_t stage, const Storages& wanted, const Storages& kept) const {
  Storages needed;
  for (const StorageId s : wanted) {
    if (!kept.contains(s)) needed.insert(s);
  }
  if (needed.empty()) return 0;
  int64_t cost = 0;
  for (int32_t at = ends_[stage]; at-- > begin_of(stage);) {
    const NodeId n = forward_[size_t(at)];
    bool runs = false;
    graph_.for_each_output(n, [&](ValueId v) { runs = runs || needed.contains(graph_.value(v).storage); });
    for (const StorageWrite& write : effects_.writes(n)) runs = runs || needed.contains(write.storage);
    if (!runs) continue;
    cost += costs_[size_t(at)];
    graph_.for_each_input(n, [&](ValueId v) {
      const StorageId s = graph_.value(v).storage;
      if (!s.valid() || kept.contains(s)) return;
      const ForwardLife& life = lives_[s.index];
      if (is_made(life) && life.born >= begin_of(stage)) needed.insert(s);
    });
  }
  return cost;
}

int64_t ChainBuilder::bytes_of(const Storages& storages) const {
  int64_t bytes = 0;
  for (const StorageId s : storages) bytes += graph_.storage(s).bytes;
  return bytes;
}

// Returns the most bytes of the stage's own tensors in its forward, if those in `stay` live to its end.
int64_t ChainBuilder::peak_with(size_t stage, const Storages& stay) const {
  const int32_t begin = begin_of(stage);
  std::vector<int64_t> change(size_t(ends_[stage] - begin) + 1, 0);
  for (const auto& [s, life] : own_) {
    change[size_t(life.born - begin)] += graph_.storage(s).bytes;
    if (!stay.contains(s) && life.last < ends_[stage]) change[size_t(life.last - begin) + 1] -= graph_.storage(s).bytes;
  }
  int64_t live = 0, most = 0;
  for (const int64_t by : change) most = std::max(most, live += by);
  return most;
}

// Describes one stage: what it makes, what it hands on, what backward saves of it. All figures are of whole storages.
void ChainBuilder::describe(size_t stage) {
  const int32_t begin = begin_of(stage), end = ends_[stage];
  own_.clear();
  Storages handed_on, saved;
  for (int32_t at = begin; at < end; ++at) {
    graph_.for_each_output(forward_[size_t(at)], [&](ValueId v) {
      const StorageId s = graph_.value(v).storage;
      if (!s.valid()) return;
      const ForwardLife& life = lives_[s.index];
      if (life.born != at || !is_made(life)) return;
      own_.emplace(s, life);
      if (life.last >= end) handed_on.insert(s);
      if (life.saved) saved.insert(s);
    });
  }
  Storages all = saved;
  all.insert(handed_on.begin(), handed_on.end());
  ChainStage result{.name = name_of(stage)};
  CheckpointStage part{.first = forward_[size_t(begin)],
                       .last = forward_[size_t(end) - 1],
                       .keep = {{}},
                       .offload = {{}},
                       .exposed = {0}};
  result.backward = backward_costs_[stage];
  // The last nodes of a stage may serve only the next stage; running again leaves them out.
  result.again = cost_of(stage, saved, {});
  result.forward = std::max(result.again, cost_of(stage, all, {}));
  result.output = bytes_of(handed_on);
  result.forward_peak = peak_with(stage, handed_on);
  result.keeping_peak = peak_with(stage, all);
  result.options = {{.saved = bytes_of(all)}};
  result.droppable = !fixed_[stage];
  if (result.droppable) find_options(stage, saved, handed_on, result, part);
  chain_.stages.push_back(std::move(result));
  chain_.parts.push_back(std::move(part));
}

// Measures what backward holds by the graph's own lives: what is resident when a stage's backward begins, and its
// peak. Backward meets stages from the last to the first.
void ChainBuilder::measure() {
  const size_t count = chain_.stages.size();
  std::vector<int64_t> live(count, 0);
  int64_t others = 0;
  const auto stage_of = [&](StorageId s) {
    const ForwardLife& life = lives_[s.index];
    return is_made(life) ? stage_of_[size_t(life.born)] : kNowhere;
  };
  std::unordered_map<NodeId, std::vector<StorageId>> births;
  for (uint32_t i = 0; i < graph_.storage_count(); ++i) {
    const Storage& storage = graph_.storage(StorageId(i));
    const bool there = !storage.born.valid() || graph_.is_erased(storage.born) || graph_.is_placeholder(storage.born);
    if (there) {
      others += storage.bytes;
    } else {
      births[storage.born].push_back(StorageId(i));
    }
    if (lives_[i].set_aside) chain_.elsewhere += storage.bytes;
  }
  chain_.elsewhere += others;
  int32_t stage = kNowhere;
  std::vector<bool> begun(count, false);
  for (const NodeId n : graph_.nodes()) {
    const bool backward = graph_.node(n).phase == Graph::kBackward;
    if (backward) {
      const NodeId of = graph_.node(n).forward;
      const int32_t place = of.valid() && !graph_.is_erased(of) ? std::as_const(place_)[of] : kNowhere;
      if (place != kNowhere && (stage == kNowhere || stage_of_[size_t(place)] < stage)) {
        stage = stage_of_[size_t(place)];
      }
      if (stage == kNowhere) stage = static_cast<int32_t>(count) - 1;
      if (!begun[size_t(stage)]) {
        // What is there, but for what earlier stages and this one keep, and what is not of the chain.
        int64_t resident = others - chain_.elsewhere;
        for (size_t later = size_t(stage) + 1; later < count; ++later) resident += live[later];
        chain_.stages[size_t(stage)].resident = std::max<int64_t>(0, resident);
        begun[size_t(stage)] = true;
      }
    }
    if (const auto found = births.find(n); found != births.end()) {
      for (const StorageId s : found->second) {
        const int32_t of = stage_of(s);
        (of == kNowhere ? others : live[size_t(of)]) += graph_.storage(s).bytes;
      }
    }
    if (backward) {
      int64_t bytes = others - chain_.elsewhere;
      for (size_t own = size_t(stage); own < count; ++own) bytes += live[own];
      ChainStage& at = chain_.stages[size_t(stage)];
      at.backward_peak = std::max(at.backward_peak, bytes);
    }
    // Deaths after the node: it was still alive while the node ran.
    for (const StorageId s : graph_.frees(n)) {
      const int32_t of = stage_of(s);
      (of == kNowhere ? others : live[size_t(of)]) -= graph_.storage(s).bytes;
    }
  }
  // A stage whose backward is nowhere needs at least what it kept.
  for (ChainStage& at : chain_.stages) at.backward_peak = std::max(at.backward_peak, at.options[0].saved);
}

CheckpointChain CheckpointChain::of(const Graph& graph, std::span<const RegionId> regions,
                                    const CheckpointChainOptions& options) {
  if (is_forward_alone(graph) && has_gradients(graph)) {
    CheckpointChainOptions whole = options;
    whole.whole_stages = true;
    return of(assumed_step(graph), regions, whole);
  }
  return ChainBuilder(graph, options).run(regions);
}

namespace {

// By stage: whether it is among those that are run again.
// A stage that is dropped and also keeps a part keeps it within the second run: nothing of it goes to the host.
std::vector<bool> dropped_by(const ChainPlan& plan) {
  std::vector<bool> dropped(plan.option.size(), false);
  for (const ChainSegment& segment : plan.segments) {
    for (size_t i = segment.first; i <= segment.last; ++i) dropped[i] = true;
  }
  return dropped;
}

}  // namespace

// Turns a plan into segments of nodes. A dropped range is one segment, and a stage that keeps a part is one within or
// beside it.
std::vector<CheckpointSegment> CheckpointChain::segments(const ChainPlan& plan) const {
  std::vector<CheckpointSegment> segments;
  for (const ChainSegment& dropped : plan.segments) {
    std::string name = stages[dropped.first].name;
    if (dropped.last != dropped.first) name += " .. " + stages[dropped.last].name;
    segments.push_back({.name = std::move(name),
                        .regions = {},
                        .first = parts[dropped.first].first,
                        .last = parts[dropped.last].last});
  }
  const std::vector<bool> dropped = dropped_by(plan);
  for (size_t i = 0; i < stages.size(); ++i) {
    const size_t option = plan.option[i];
    if (option == 0) continue;
    segments.push_back({.name = stages[i].name,
                        .regions = {},
                        .first = parts[i].first,
                        .last = parts[i].last,
                        .keep = parts[i].keep[option]});
    if (!dropped[i]) segments.back().offload = parts[i].offload[option];
  }
  return segments;
}

// Returns the cost of copies to the host that computing does not hide, of all stages that keep something there.
int64_t CheckpointChain::exposed(const ChainPlan& plan) const {
  const std::vector<bool> dropped = dropped_by(plan);
  int64_t cost = 0;
  for (size_t i = 0; i < stages.size(); ++i) {
    if (!dropped[i]) cost += parts[i].exposed[plan.option[i]];
  }
  return cost;
}

}  // namespace shadowgraph
