#include "parallel/stages/stage_memory.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <tuple>

#include "ir/analysis/module_tree.h"
#include "shadowgraph/units.h"
#include "sharding/ranks/ranks.h"

namespace shadowgraph {

StorageUses::StorageUses(const ProgramCosts& costs, const StageAssignment& assignment) {
  const Graph& graph = costs.graph();
  for (const NodeId n : costs.nodes) {
    if (assignment.stages_of(n).empty()) continue;
    const auto seen = [&](ValueId v) {
      if (graph.value(v).storage.valid()) note(costs, assignment, n, graph.value(v).storage);
    };
    graph.for_each_input(n, seen);
    graph.for_each_output(n, seen);
    // Storages freed here were held until here, regardless of their last use.
    for (const StorageId s : graph.frees(n)) {
      const auto& uses = uses_[s];
      const auto here = [&](const StageUse& use) {
        return std::ranges::binary_search(assignment.stages_of(n), use.stage);
      };
      if (std::ranges::any_of(uses, here)) note(costs, assignment, n, s);
    }
  }
}

void StorageUses::note(const ProgramCosts& costs, const StageAssignment& assignment, NodeId node, StorageId storage) {
  auto& uses = uses_[storage];
  const auto piece = static_cast<size_t>(assignment.piece(node));
  for (const int32_t stage : assignment.stages_of(node)) {
    auto at = std::ranges::lower_bound(uses, stage, {}, &StageUse::stage);
    if (at == uses.end() || at->stage != stage) at = uses.insert(at, {.stage = stage});
    at->last[piece] = costs.order[node];
  }
}

OptimizerShare::OptimizerShare(const ProgramCosts& costs) {
  const Graph& graph = costs.graph();
  parent_.resize(graph.storage_count());
  std::iota(parent_.begin(), parent_.end(), 0U);
  for (const NodeId n : costs.nodes) {
    if (graph.node(n).target == target_of(Builtin::kGradient)) {
      std::vector<StorageId> pair;  // the parameter and its gradient
      graph.for_each_input(n, [&](ValueId v) { pair.push_back(graph.value(v).storage); });
      if (pair.size() == 2 && pair[0].valid() && pair[1].valid()) join(pair[0], pair[1]);
    } else if (graph.node(n).phase == Graph::kOptimizer && !graph.is_placeholder(n)) {
      join_node(graph, n);
    }
  }
  by_root_.resize(graph.storage_count());
  for (uint32_t s = 0; s < graph.storage_count(); ++s) {
    if (costs.kinds[StorageId(s)] == StorageKind::kParameter) by_root_[root(s)].push_back(StorageId(s));
  }
}

const std::vector<StorageId>& OptimizerShare::parameters_of(StorageId storage) const {
  return by_root_[root(storage.index)];
}

uint32_t OptimizerShare::root(uint32_t storage) const {
  while (parent_[storage] != storage) storage = parent_[storage] = parent_[parent_[storage]];
  return storage;
}

void OptimizerShare::join(StorageId a, StorageId b) { parent_[root(a.index)] = root(b.index); }

// Joins tensors at the same index of a node's lists, or all tensors of a node without lists. Scalars are ignored, since
// all parameters may share them.
void OptimizerShare::join_node(const Graph& graph, NodeId node) {
  std::vector<StorageId> at_place;
  StorageId single;
  const auto take = [&](const Argument& argument, StorageId& with) {
    if (argument.kind != ArgumentKind::kValue) return;
    const ValueId v = argument.ref.value;
    const StorageId s = graph.value(v).storage;
    if (!s.valid() || graph.numel(v) <= 1) return;
    if (with.valid()) join(with, s);
    with = s;
  };
  bool has_lists = false;
  for (const auto run : {graph.arguments(node), graph.results(node)}) {
    for (const Argument& argument : run) has_lists |= argument.kind == ArgumentKind::kList;
  }
  for (const auto run : {graph.arguments(node), graph.results(node)}) {
    for (const Argument& argument : run) {
      if (argument.kind == ArgumentKind::kList) {
        const auto list = graph.list(argument);
        if (at_place.size() < list.size()) at_place.resize(list.size());
        for (size_t i = 0; i < list.size(); ++i) take(list[i], at_place[i]);
      } else if (!has_lists) {
        take(argument, single);
      }
    }
  }
}

constexpr uint8_t kAllocated = 0, kScratch = 1, kFreed = 2;
constexpr uint32_t kForwardPiece = 0, kInputPiece = 1, kWeightPiece = 2;
constexpr uint32_t kEnd = 0xFFFFFFFEU;  // after all nodes of a piece

static int64_t trained_elements(const Graph& graph, StorageId parameter) {
  int64_t elements = 0;
  graph.for_each_output(graph.storage(parameter).born, [&](ValueId v) {
    if (graph.value(v).requires_grad) elements += graph.numel(v);
  });
  return elements;
}

StageMemory::StageMemory(const ProgramCosts& costs, const ForwardLine& line, const StageAssignment& assignment)
    : costs_(costs),
      graph_(costs.graph()),
      line_(line),
      assignment_(assignment),
      uses_(costs, assignment),
      share_(costs),
      events_(static_cast<size_t>(assignment.stages())),
      optimizer_events_(events_.size()) {
  parts_.stages.resize(events_.size());
}

StageParts StageMemory::parts(std::vector<StageCosts>& figures, std::vector<std::string>& notes) {
  figures_ = &figures;
  notes_ = &notes;
  const c10::Device device = main_device(graph_, std::nullopt);
  parts_.has_allocator = device.is_cuda();
  for (uint32_t i = 0; i < graph_.storage_count(); ++i) {
    const StorageId s(i);
    const Storage& storage = graph_.storage(s);
    // Skips storages whose allocating node was erased by a pass.
    if (!is_on(storage.device(), device) || !storage.born.valid() || graph_.is_erased(storage.born)) continue;
    if (existed_before(graph_, storage)) {
      place_resident(s);
    } else if (assignment_.piece(storage.born) == Piece::kOptimizer) {
      place_optimizer(s);
    } else if (!assignment_.stages_of(storage.born).empty()) {
      place_allocated(s);
    }
  }
  place_scratch();
  write_pieces();
  return std::move(parts_);
}

std::vector<int32_t> StageMemory::stages_using(StorageId storage) const {
  std::vector<int32_t> stages;
  for (const StageUse& use : uses_.of(storage)) stages.push_back(use.stage);
  return stages;
}

std::vector<int32_t> StageMemory::holders_by_share(StorageId storage) const {
  std::vector<int32_t> stages;
  for (const StorageId parameter : share_.parameters_of(storage)) {
    for (const int32_t stage : stages_using(parameter)) stages.push_back(stage);
  }
  std::ranges::sort(stages);
  stages.erase(std::unique(stages.begin(), stages.end()), stages.end());
  if (stages.empty()) {
    stages.resize(static_cast<size_t>(assignment_.stages()));
    std::iota(stages.begin(), stages.end(), 0);
  }
  return stages;
}

uint32_t StageMemory::new_slot(int32_t stage, bool is_gradient) {
  StagePart& part = parts_.stages[static_cast<size_t>(stage)];
  part.is_gradient.push_back(is_gradient ? 1 : 0);
  return part.slots++;
}

void StageMemory::place_resident(StorageId storage) {
  const int64_t bytes = graph_.storage(storage).bytes;
  const StorageKind kind = costs_.kinds[storage];
  if (kind == StorageKind::kGradient) return place_existing_gradient(storage);
  std::vector<int32_t> stages = kind == StorageKind::kOptimizerState ? std::vector<int32_t>() : stages_using(storage);
  if (stages.empty()) stages = holders_by_share(storage);
  if (kind == StorageKind::kParameter && stages.size() > 1) {
    const std::string name = placeholder_name(graph_, graph_.storage(storage).born);
    if (uses_.of(storage).empty()) {
      stages = {0};
      notes_->push_back(fmt::format("parameter {} is unused: stage 0 holds it", name));
    } else {
      tied_.push_back({name, bytes, trained_elements(graph_, storage), stages});
      notes_->push_back(
          fmt::format("parameter {} is used by stages {}: each holds a copy, and their gradients are reduced", name,
                      fmt::join(stages, ", ")));
    }
  }
  for (const int32_t stage : stages) {
    StagePart& part = parts_.stages[static_cast<size_t>(stage)];
    StageCosts& figures = (*figures_)[static_cast<size_t>(stage)];
    if (kind == StorageKind::kInput) {
      part.inputs.push_back(bytes);
      figures.inputs += bytes;
      continue;
    }
    const bool of_experts = kind == StorageKind::kParameter && is_of_experts(graph_, graph_.storage(storage).born);
    (kind == StorageKind::kOptimizerState ? part.state : of_experts ? part.experts : part.resident).push_back(bytes);
    if (kind == StorageKind::kParameter) figures.weights += trained_elements(graph_, storage);
    if (of_experts) {
      figures.expert_weights += trained_elements(graph_, storage);
      figures.expert_parameters += bytes;
    }
    (kind == StorageKind::kParameter        ? figures.parameters
     : kind == StorageKind::kOptimizerState ? figures.optimizer_state
                                            : figures.other) += bytes;
  }
}

// A gradient that exists before the step: zero_grad frees it, or zeroes it and backward accumulates into it.
void StageMemory::place_existing_gradient(StorageId storage) {
  for (const StageUse& use : uses_.of(storage)) {
    if (!use.in_backward()) continue;
    const auto s = static_cast<size_t>(use.stage);
    parts_.stages[s].resident.push_back(graph_.storage(storage).bytes);
    (*figures_)[s].gradients += graph_.storage(storage).bytes;
  }
}

// Optimizer state created by the first step is resident from the second on. Other storages are freed within the step.
void StageMemory::place_optimizer(StorageId storage) {
  const Storage& allocated = graph_.storage(storage);
  const bool stays = costs_.kinds[storage] == StorageKind::kOptimizerState && !allocated.freed_after.valid();
  for (const int32_t stage : holders_by_share(storage)) {
    const auto s = static_cast<size_t>(stage);
    if (stays) {
      parts_.stages[s].state.push_back(allocated.bytes);
      (*figures_)[s].optimizer_state += allocated.bytes;
      continue;
    }
    const uint32_t slot = new_slot(stage, false);
    optimizer_events_[s].push_back(timed(0, costs_.order[allocated.born], kAllocated, {slot, allocated.bytes}));
    const uint32_t end = allocated.freed_after.valid() ? costs_.order[allocated.freed_after] : kEnd;
    optimizer_events_[s].push_back(timed(0, end, kFreed, {slot, 0}));
  }
}

// Returns whether the storage is a partial gradient of a tied parameter, which stays on its stage until reduced.
bool StageMemory::is_gradient_of_tied(StorageId storage) const {
  return assignment_.piece(graph_.storage(storage).born) == Piece::kWeightGradient && uses_.of(storage).size() > 1;
}

void StageMemory::place_allocated(StorageId storage) {
  const Storage& allocated = graph_.storage(storage);
  const auto& uses = uses_.of(storage);
  const bool is_forward = assignment_.piece(allocated.born) == Piece::kForward;
  if (line_.is_free(allocated.born)) {
    for (const StageUse& use : uses) add_lifetime(storage, use.stage, use, false);
    return;
  }
  const int32_t owner = assignment_.stages_of(allocated.born).front();
  const bool tied = is_gradient_of_tied(storage);
  for (const StageUse& use : uses) {
    if (use.stage == owner) add_lifetime(storage, owner, use, is_forward && uses.back().stage > owner);
  }
  if (uses.empty() || tied) return;
  if (is_forward && uses.back().stage > owner) send(storage, owner, uses.back().stage, true);
  if (!is_forward && uses.front().stage < owner) send(storage, owner, uses.front().stage, false);
}

// Sends a tensor from stage to stage. Stages in between forward what they receive.
void StageMemory::send(StorageId storage, int32_t from, int32_t to, bool forward) {
  const int64_t bytes = graph_.storage(storage).bytes;
  const int32_t step = forward ? 1 : -1;
  const auto uses_it = [&](const StageUse& use) {
    return use.stage > std::min(from, to) && use.stage < std::max(from, to);
  };
  if (std::ranges::count_if(uses_.of(storage), uses_it) < std::abs(to - from) - 1) {
    notes_->push_back(fmt::format("{} allocated by {} in stage {} are passed through other stages to stage {}",
                                  human_bytes(bytes), graph_.target(graph_.storage(storage).born).name(), from, to));
  }
  for (int32_t stage = from; stage != to; stage += step) {
    StageCosts& sender = (*figures_)[static_cast<size_t>(stage)];
    (forward ? sender.sends_forward : sender.sends_backward) += bytes;
    const int32_t receiver = stage + step;
    const uint32_t slot = new_slot(receiver, false);
    StagePart& part = parts_.stages[static_cast<size_t>(receiver)];
    (forward ? part.received : part.received_gradients).push_back({slot, bytes});
    auto& events = events_[static_cast<size_t>(receiver)];
    if (forward) {
      // Kept until the micro-batch's backward is done.
      events.push_back(timed(kWeightPiece, kEnd, kFreed, {slot, 0}));
      (*figures_)[static_cast<size_t>(receiver)].carried += bytes;
      continue;
    }
    TimedEvent freed = timed(kInputPiece, kEnd, kFreed, {slot, 0});
    for (const StageUse& use : uses_.of(storage)) {
      if (use.stage == receiver && use.in_backward()) freed = free_of(slot, kInputPiece, 0, use);
    }
    events.push_back(freed);
  }
}

void StageMemory::add_lifetime(StorageId storage, int32_t stage, const StageUse& use, bool held) {
  const Storage& allocated = graph_.storage(storage);
  const bool gradient = costs_.kinds[storage] == StorageKind::kGradient || is_gradient_of_tied(storage);
  const auto born = static_cast<uint32_t>(assignment_.piece(allocated.born));
  const uint32_t slot = new_slot(stage, gradient);
  auto& events = events_[static_cast<size_t>(stage)];
  events.push_back(timed(born, costs_.order[allocated.born], kAllocated, {slot, allocated.bytes}));
  StageCosts& figures = (*figures_)[static_cast<size_t>(stage)];
  if (gradient) {
    figures.gradients += allocated.bytes;
    return;
  }
  if (!allocated.freed_after.valid()) return;  // never freed by the program
  const TimedEvent freed =
      held ? timed(kWeightPiece, kEnd, kFreed, {slot, 0}) : free_of(slot, born, costs_.order[allocated.born], use);
  events.push_back(freed);
  if (born == kForwardPiece && freed.piece != kForwardPiece) figures.carried += allocated.bytes;
  if (born == kInputPiece && freed.piece == kWeightPiece) figures.awaiting += allocated.bytes;
}

// Frees after the last use: in the last piece that uses it, and in unsplit backward.
StageMemory::TimedEvent StageMemory::free_of(uint32_t slot, uint32_t born, uint32_t order, const StageUse& use) {
  TimedEvent freed = timed(born, order, kFreed, {slot, 0});
  for (uint32_t piece = born; piece <= kWeightPiece; ++piece) {
    if (use.last[piece] == StageUse::kNever) continue;
    const bool same_program = piece > kForwardPiece && freed.piece > kForwardPiece;
    freed.whole_order = same_program ? std::max(freed.whole_order, use.last[piece]) : use.last[piece];
    freed.piece = piece;
    freed.order = use.last[piece];
  }
  return freed;
}

void StageMemory::place_scratch() {
  for (const NodeId n : costs_.nodes) {
    const int64_t bytes = costs_.scratch.of(n).bytes;
    if (bytes == 0) continue;
    for (const int32_t stage : assignment_.stages_of(n)) {
      events_[static_cast<size_t>(stage)].push_back(
          timed(static_cast<uint32_t>(assignment_.piece(n)), costs_.order[n], kScratch, {PieceEvent::kScratch, bytes}));
    }
  }
}

void StageMemory::write_pieces() {
  const auto by_piece = [](const TimedEvent& a, const TimedEvent& b) {
    return std::tie(a.piece, a.order, a.rank, a.event.slot) < std::tie(b.piece, b.order, b.rank, b.event.slot);
  };
  const auto by_order = [](const TimedEvent& a, const TimedEvent& b) {
    return std::tie(a.whole_order, a.rank, a.event.slot) < std::tie(b.whole_order, b.rank, b.event.slot);
  };
  for (size_t s = 0; s < events_.size(); ++s) {
    StagePart& part = parts_.stages[s];
    std::ranges::sort(events_[s], by_piece);
    for (const TimedEvent& e : events_[s]) {
      (e.piece == kForwardPiece ? part.pieces.forward
       : e.piece == kInputPiece ? part.pieces.input_gradient
                                : part.pieces.weight_gradient)
          .push_back(e.event);
    }
    std::ranges::sort(events_[s], by_order);
    for (const TimedEvent& e : events_[s]) {
      if (e.piece != kForwardPiece) part.pieces.backward.push_back(e.event);
    }
    std::ranges::sort(optimizer_events_[s], by_order);
    for (const TimedEvent& e : optimizer_events_[s]) part.optimizer.push_back(e.event);
  }
}

}  // namespace shadowgraph
