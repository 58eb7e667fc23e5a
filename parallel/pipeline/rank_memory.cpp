#include "parallel/pipeline/rank_memory.h"

#include <algorithm>
#include <numeric>

namespace shadowgraph {

using enum PipelineWork;

RankMemory::RankMemory(const PipelineStages& stages, const PipelineSchedule& schedule,
                       const PipelineRunOptions& options, int32_t rank)
    : stages_(stages),
      parts_(stages.parts()),
      schedule_(schedule),
      options_(options),
      rank_(rank),
      allocator_(options.allocator),
      gradients_(parts_.stages.size()),
      between_(parts_.stages.size(), 0) {
  for (int32_t s = 0; s < schedule.stages(); ++s) {
    if (!is_here(s)) continue;
    own_.push_back(s);
    gradients_[static_cast<size_t>(s)].resize(part(s).slots);
  }
}

void RankMemory::take(Held& held, int64_t bytes) {
  if (parts_.has_allocator) held.handle = allocator_.allocate(bytes);
  held.bytes = bytes;
  live_ += bytes;
  if (live_ > figures_.peak) {
    figures_.peak = live_;
    figures_.peak_at = now_;
  }
}

void RankMemory::drop(Held& held) {
  if (parts_.has_allocator) allocator_.free(held.handle);
  live_ -= held.bytes;
  held = {};
}

RankMemory::Slots& RankMemory::slots_of(int32_t stage, int32_t microbatch) {
  Slots& slots = slots_[key_of(stage, microbatch)];
  if (slots.empty()) slots.resize(part(stage).slots);
  return slots;
}

// Thousands of micro-batches that are through are no longer looked at.
void RankMemory::forget_if_empty(int32_t stage, int32_t microbatch) {
  const auto found = slots_.find(key_of(stage, microbatch));
  if (std::ranges::none_of(found->second, [](const Held& held) { return held.bytes > 0; })) slots_.erase(found);
}

// A gradient of a weight that is there already takes the new one in, which then goes.
void RankMemory::play(std::span<const PieceEvent> events, const StagePart& part, Slots& slots, Slots& gradients) {
  for (const PieceEvent& event : events) {
    const bool gradient = event.slot != PieceEvent::kScratch && part.is_gradient[event.slot] != 0;
    const bool is_added = gradient && (part.gradient_buffer > 0 || gradients[event.slot].bytes > 0);
    if (event.slot == PieceEvent::kScratch || is_added) {
      Held passing;
      take(passing, event.bytes);
      drop(passing);
    } else if (gradient) {
      take(gradients[event.slot], event.bytes);
    } else if (event.bytes > 0) {
      take(slots[event.slot], event.bytes);
    } else if (slots[event.slot].bytes > 0) {
      drop(slots[event.slot]);
    }
  }
}

void RankMemory::receive(std::span<const PieceEvent> events, Slots& slots) {
  if (options_.receives_ahead) return;
  for (const PieceEvent& event : events) take(slots[event.slot], event.bytes);
}

void RankMemory::count(const PipelineAction& a) {
  const StageFigures& of = stages_.of(a.stage);
  if (a.work == kForward) {
    ++between_[static_cast<size_t>(a.stage)];
    carried_ += of.carried;
    on_host_ += of.on_host;
  } else if (a.work == kBackward || a.work == kWeightGradient) {
    --between_[static_cast<size_t>(a.stage)];
    carried_ -= of.carried;
    on_host_ -= of.on_host;
  }
  figures_.host_peak = std::max(figures_.host_peak, on_host_);
  figures_.activations_peak = std::max(figures_.activations_peak, carried_);
  figures_.microbatches_peak =
      std::max(figures_.microbatches_peak, std::accumulate(between_.begin(), between_.end(), int32_t{0}));
}

void RankMemory::act(const PipelineAction& a) {
  now_ = a;
  if (a.work == kSendForward || a.work == kSendBackward) return;
  const StagePart& of = part(a.stage);
  Slots& slots = slots_of(a.stage, a.microbatch);
  Slots& gradients = gradients_[static_cast<size_t>(a.stage)];
  switch (a.work) {
    case kReceiveForward:
      return receive(of.received, slots);
    case kReceiveBackward:
      return receive(of.received_gradients, slots);
    case kForward:
      play(of.forward, of, slots, gradients);
      break;
    case kBackward:
      play(of.backward, of, slots, gradients);
      break;
    case kInputGradient:
      play(of.input_gradient, of, slots, gradients);
      break;
    case kWeightGradient:
      play(of.weight_gradient, of, slots, gradients);
      break;
    default:
      return;
  }
  count(a);
  // Within a rank the stage before is handed the gradient itself.
  if ((a.work == kBackward || a.work == kInputGradient) && is_here(a.stage - 1)) {
    Slots& before = slots_of(a.stage - 1, a.microbatch);
    for (const PieceEvent& event : part(a.stage - 1).received_gradients) take(before[event.slot], event.bytes);
  }
  forget_if_empty(a.stage, a.microbatch);
}

void RankMemory::optimizer_step() {
  now_ = {.stage = -1};
  for (const int32_t s : own_) {
    Slots slots(part(s).slots);
    const StagePart& of = part(s);
    play(of.optimizer, of, slots, slots);
    for (Held& held : slots) {
      if (held.bytes > 0) drop(held);
    }
  }
}

void RankMemory::step(std::span<PipelineActionTime> actions) {
  size_t at = 0;
  for (const PipelineAction& a : schedule_.of(rank_)) {
    if (!computes(a) && !transfers(a)) continue;
    act(a);
    if (at < actions.size()) actions[at++].live = live_;
  }
  optimizer_step();
  // zero_grad, and what the program held of its micro-batches to the end.
  for (auto& [key, slots] : slots_) {
    for (Held& held : slots) {
      if (held.bytes > 0) drop(held);
    }
  }
  slots_.clear();
  for (Slots& gradients : gradients_) {
    for (Held& held : gradients) {
      if (held.bytes > 0) drop(held);
    }
  }
}

void RankMemory::run(PipelineRank& of, std::span<PipelineActionTime> actions) {
  const auto keep = [this](int64_t bytes) {
    Held held;
    take(held, bytes);
  };
  for (const int32_t s : own_) {
    for (const int64_t bytes : part(s).resident) keep(bytes);
    for (const int64_t bytes : part(s).experts) keep(bytes);
    for (const int64_t bytes : part(s).state) keep(bytes);
    if (part(s).gradient_buffer > 0) keep(part(s).gradient_buffer);
    for (const int64_t bytes : part(s).inputs) keep(bytes * schedule_.microbatches());
    if (!options_.receives_ahead) continue;
    for (int32_t m = 0; m < schedule_.microbatches(); ++m) {
      if (!is_here(s - 1)) {
        for (const PieceEvent& event : part(s).received) keep(event.bytes);
      }
      if (!is_here(s + 1)) {
        for (const PieceEvent& event : part(s).received_gradients) keep(event.bytes);
      }
    }
  }
  // Forward and backward have a thread each, and with it a handle of cuBLAS.
  for (int i = 0; parts_.has_allocator && i < 2; ++i) allocator_.allocate(parts_.workspace);
  const int64_t resident = live_;
  step({});
  figures_ = {};
  figures_.peak = resident;
  step(actions);
  of.resident = resident;
  of.peak = figures_.peak;
  of.peak_at = figures_.peak_at;
  of.activations_peak = figures_.activations_peak;
  of.host_peak = figures_.host_peak;
  of.microbatches_peak = figures_.microbatches_peak;
  of.stages = own_;
  of.allocated_peak = allocator_.stats().allocated.peak;
  of.reserved_peak = allocator_.stats().reserved.peak;
}

}  // namespace shadowgraph
