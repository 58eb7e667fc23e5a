// Does what PyTorch's CUDA caching allocator does, without CUDA. Its facts come from c10/cuda/CUDACachingAllocator.cpp
// of 2.13, sizes from c10/core/AllocatorConfig.h, which is what CUDA's uses.
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "profiler/memory/caching_allocator_state.h"

namespace shadowgraph {

uint32_t CachingAllocator::State::make(int64_t address, int64_t size, int32_t stream, bool small, bool expandable) {
  uint32_t id;
  if (unused.empty()) {
    id = static_cast<uint32_t>(blocks.size());
    blocks.emplace_back();
  } else {
    id = unused.back();
    unused.pop_back();
    blocks[id] = {};
  }
  Block& block = blocks[id];
  block.address = address;
  block.size = size;
  block.stream = stream;
  block.small = small;
  block.expandable = expandable;
  return id;
}

int64_t CachingAllocator::State::merge(uint32_t id, uint32_t other) {
  if (!is_room(other) || blocks[other].mapped != blocks[id].mapped) return 0;
  blocks[other].mapped ? take(other) : take_unmapped(other);
  const int64_t bytes = blocks[other].size;
  if (blocks[id].previous == other) {
    blocks[id].address = blocks[other].address;
    link(blocks[other].previous, id, blocks[id].next);
  } else {
    link(blocks[id].previous, id, blocks[other].next);
  }
  blocks[id].size += bytes;
  drop(other);
  return bytes;
}

CachingAllocator::Handle CachingAllocator::State::allocate(int64_t bytes, int32_t stream, uint32_t tag) {
  TORCH_INTERNAL_ASSERT(bytes >= 0);
  if (bytes == 0) return {};
  if (bytes > kMostBytes) out_of_memory(bytes);
  const int64_t size = rounded(bytes);
  const bool small = size <= kSmallRequest;
  uint32_t id = find_free(small, stream, size);
  if (id == kNone) {
    if (collects()) collect_garbage();
    id = from_device(small, stream, size);
    if (id == kNone && release_oversize(small, stream, size)) id = from_device(small, stream, size);
    if (id == kNone) {
      release_cached();
      id = from_device(small, stream, size);
      if (id != kNone) ++stats.retries;
    }
    if (id == kNone) out_of_memory(bytes);
  }
  const bool was_split = blocks[id].is_split();
  const bool counts = !blocks[id].expandable;  // PyTorch leaves expandable segments out of inactive_split
  if (should_split(blocks[id], size)) {
    // The front goes out under the number that the whole had; the rest stays free.
    const Block whole = blocks[id];
    const uint32_t rest = make(whole.address + size, whole.size - size, whole.stream, whole.small, whole.expandable);
    link(id, rest, blocks[id].next);
    blocks[id].size = size;
    put(rest);
    if (counts) add(stats.inactive_split, was_split ? -size : blocks[rest].size);
  } else if (was_split && counts) {
    add(stats.inactive_split, -blocks[id].size);
  }
  Block& block = blocks[id];
  block.allocated = true;
  block.requested = bytes;
  block.tag = tag;
  add(stats.requested, bytes);
  add(stats.allocated, block.size);
  add(stats.active, block.size);
  note(Action::kAllocate, block.address, bytes, stream, tag);
  return {id};
}

void CachingAllocator::State::free(uint32_t id) {
  Block& block = blocks[id];
  TORCH_INTERNAL_ASSERT(block.allocated, "freed twice");
  block.allocated = false;
  add(stats.allocated, -block.size);
  note(Action::kFreeRequested, block.address, block.requested, block.stream, block.tag);
  if (block.elsewhere) {
    waiting.push_back(id);
  } else {
    finish_free(id);
  }
}

void CachingAllocator::State::finish_free(uint32_t id) {
  Block& block = blocks[id];
  note(Action::kFreeCompleted, block.address, block.requested, block.stream, block.tag);
  add(stats.active, -block.size);
  add(stats.requested, -block.requested);
  int64_t change = 0;
  change -= merge(id, blocks[id].previous);
  change -= merge(id, blocks[id].next);
  put(id);
  if (blocks[id].expandable) return;
  if (blocks[id].is_split()) change += blocks[id].size;
  add(stats.inactive_split, change);
}

void CachingAllocator::State::finish_waiting() {
  for (const uint32_t id : std::exchange(waiting, {})) {
    blocks[id].elsewhere = false;
    finish_free(id);
  }
}

CachingAllocator::CachingAllocator(const AllocatorSettings& settings, int64_t capacity)
    : state_(std::make_unique<State>()) {
  state_->settings = settings;
  state_->capacity = capacity;
}
CachingAllocator::~CachingAllocator() = default;
CachingAllocator::CachingAllocator(CachingAllocator&&) noexcept = default;
CachingAllocator& CachingAllocator::operator=(CachingAllocator&&) noexcept = default;

CachingAllocator::Handle CachingAllocator::allocate(int64_t bytes, int32_t stream, uint32_t tag) {
  return state_->allocate(bytes, stream, tag);
}
void CachingAllocator::free(Handle handle) {
  if (handle.valid()) state_->free(handle.block);
}
void CachingAllocator::record_stream(Handle handle, int32_t stream) {
  if (!handle.valid()) return;
  State::Block& block = state_->blocks[handle.block];
  if (block.stream != stream) block.elsewhere = true;
}
void CachingAllocator::synchronize() { state_->finish_waiting(); }
void CachingAllocator::empty_cache() { state_->release_cached(); }

const CachingAllocator::Stats& CachingAllocator::stats() const { return state_->stats; }
void CachingAllocator::reset_peaks() {
  Stats& stats = state_->stats;
  for (Figure* figure :
       {&stats.requested, &stats.allocated, &stats.active, &stats.reserved, &stats.inactive_split, &stats.segments}) {
    figure->peak = figure->now;
  }
}
int64_t CachingAllocator::address(Handle handle) const {
  return handle.valid() ? state_->blocks[handle.block].address : 0;
}
void CachingAllocator::record_history() { state_->recording = true; }
const std::vector<CachingAllocator::Event>& CachingAllocator::history() const { return state_->events; }

std::vector<CachingAllocator::SegmentInfo> CachingAllocator::snapshot() const {
  const State& state = *state_;
  std::vector<bool> dropped(state.blocks.size());
  for (const uint32_t id : state.unused) dropped[id] = true;
  std::vector<SegmentInfo> segments;
  for (uint32_t first = 0; first < state.blocks.size(); ++first) {
    if (dropped[first] || state.blocks[first].previous != State::kNone) continue;
    SegmentInfo segment{};
    for (uint32_t id = first; id != State::kNone; id = state.blocks[id].next) {
      const State::Block& block = state.blocks[id];
      if (!block.mapped) continue;
      const bool follows = !segment.blocks.empty() && segment.address + segment.bytes == block.address;
      if (!follows) {
        if (!segment.blocks.empty()) segments.push_back(std::exchange(segment, {}));
        segment.address = block.address;
        segment.stream = block.stream;
        segment.small = block.small;
        segment.expandable = block.expandable;
      }
      const bool active = block.allocated || block.elsewhere;
      segment.bytes += block.size;
      segment.blocks.push_back(
          {block.address, block.size, active ? block.requested : 0, block.allocated, active, block.tag});
    }
    if (!segment.blocks.empty()) segments.push_back(std::move(segment));
  }
  std::sort(segments.begin(), segments.end(),
            [](const SegmentInfo& a, const SegmentInfo& b) { return a.address < b.address; });
  return segments;
}

}  // namespace shadowgraph
