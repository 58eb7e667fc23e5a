// Where the caching allocator takes blocks from and gives them back to: free blocks, and segments of the device.
#include <fmt/format.h>

#include <bit>

#include "profiler/memory/caching_allocator_state.h"
#include "shadowgraph/units.h"

namespace shadowgraph {

int64_t CachingAllocator::State::rounded(int64_t bytes) const {
  if (bytes < kMinBlock) return kMinBlock;
  const int log = std::bit_width(static_cast<uint64_t>(bytes)) - 1;
  const int64_t divisions = settings.roundup_power2_divisions[static_cast<size_t>(std::clamp(log - 20, 0, 15))];
  if (divisions > 1 && bytes > kMinBlock * divisions) {
    const int64_t step = (int64_t{1} << log) / divisions;
    return step == 0 ? int64_t{1} << (log + 1) : round_up(bytes, step);
  }
  return round_up(bytes, kMinBlock);
}

int64_t CachingAllocator::State::segment_size(int64_t size) const {
  if (size <= kSmallRequest) return kSmallSegment;
  if (size < kMinLargeRequest) return std::max(settings.large_segment_size, size);
  return round_up(size, kRoundLarge);
}

bool CachingAllocator::State::should_split(const Block& block, int64_t size) const {
  const int64_t rest = block.size - size;
  if (block.small || settings.expandable_segments) return rest >= kMinBlock;
  return size < settings.max_split_size && rest > kSmallRequest;
}

uint32_t CachingAllocator::State::find_free(bool small, int32_t stream, int64_t size) {
  Pool& pool = pools[small];
  if (collects()) ++pool.searches;
  FreeBlocks::Place at = pool.free.lower_bound(stream, size);
  if (at == pool.free.end() || pool.free.stream(at) != stream) return kNone;
  if (blocks[pool.free.block(at)].expandable) {
    // What a block may grow into counts as its size.
    const auto reach = [&](FreeBlocks::Place place) {
      const Block& block = blocks[pool.free.block(place)];
      const bool grows = block.next != kNone && !blocks[block.next].mapped;
      return block.size + (grows ? blocks[block.next].size : 0);
    };
    for (auto next = pool.free.next(at); blocks[pool.free.block(at)].expandable && next != pool.free.end() &&
                                         pool.free.stream(next) == stream && reach(next) < reach(at);
         next = pool.free.next(next)) {
      at = next;
    }
  }
  const uint32_t id = pool.free.block(at);
  const int64_t found = blocks[id].size;
  if (size < settings.max_split_size && found >= settings.max_split_size) return kNone;
  // The right side saturates: max_split_size may be "unlimited".
  if (size >= settings.max_split_size && found - size >= settings.max_non_split_rounding) return kNone;
  pool.free.erase(at);
  return id;
}

uint32_t CachingAllocator::State::new_segment(bool small, int32_t stream, int64_t size) {
  const int64_t bytes = segment_size(size);
  if (!has_room(bytes)) return kNone;
  const uint32_t id = make(next_address, bytes, stream, small, false);
  next_address += round_up(bytes, kRoundLarge) + kRoundLarge;
  grow_reserved(bytes);
  add(stats.segments, 1);
  note(Action::kSegmentAllocate, blocks[id].address, bytes, stream, 0);
  return id;
}

void CachingAllocator::State::release_segment(uint32_t id) {
  take(id);
  note(Action::kSegmentFree, blocks[id].address, blocks[id].size, blocks[id].stream, 0);
  shrink_reserved(blocks[id].size);
  add(stats.segments, -1);
  drop(id);
}

void CachingAllocator::State::release_cached() {
  finish_waiting();
  for (Pool* pool : {&pools[0], &pools[1]}) {
    std::vector<uint32_t> whole, expandable;
    for (auto at = pool->free.begin(); at != pool->free.end(); at = pool->free.next(at)) {
      const uint32_t id = pool->free.block(at);
      if (blocks[id].expandable) {
        expandable.push_back(id);
      } else if (!blocks[id].is_split()) {
        whole.push_back(id);
      }
    }
    for (const uint32_t id : whole) release_segment(id);
    for (const uint32_t id : expandable) unmap(id);
  }
}

bool CachingAllocator::State::release_oversize(bool small, int32_t stream, int64_t size) {
  if (settings.max_split_size == AllocatorSettings::kUnlimited) return false;
  Pool& pool = pools[small];
  const int64_t wanted = std::max(size, settings.max_split_size);
  FreeBlocks::Place at = pool.free.lower_bound(stream, wanted);
  if (at != pool.free.end() && pool.free.stream(at) == stream) {
    const uint32_t id = pool.free.block(at);
    if (blocks[id].is_split()) return false;
    release_segment(id);
    return true;
  }
  int64_t released = 0;
  while (released < wanted && at != pool.free.begin()) {
    const FreeBlocks::Place largest = pool.free.previous(at);
    const uint32_t id = pool.free.block(largest);
    if (pool.free.stream(largest) != stream || blocks[id].size < settings.max_split_size || blocks[id].is_split())
      break;
    released += blocks[id].size;
    release_segment(id);
    at = pool.free.lower_bound(stream, wanted);
  }
  return released >= wanted;
}

void CachingAllocator::State::collect_garbage() {
  const auto limit = static_cast<int64_t>(settings.garbage_collection_threshold * static_cast<double>(allowed()));
  if (reserved <= limit) return;
  const int64_t target = reserved - limit;
  int64_t reclaimed = 0;
  for (bool any = true; any && reclaimed < target;) {
    int64_t ages = 0;
    int64_t count = 0;
    std::vector<uint32_t> candidates;
    for (auto at = pools[0].free.begin(); at != pools[0].free.end(); at = pools[0].free.next(at)) {
      const uint32_t id = pools[0].free.block(at);
      if (blocks[id].is_split() || blocks[id].expandable) continue;
      candidates.push_back(id);
      ages += pools[0].searches - blocks[id].age_base;
      ++count;
    }
    any = false;
    for (const uint32_t id : candidates) {
      if ((pools[0].searches - blocks[id].age_base) * count < ages) continue;
      any = true;
      reclaimed += blocks[id].size;
      release_segment(id);
    }
  }
}

void CachingAllocator::State::out_of_memory(int64_t bytes) const {
  throw OutOfMemoryError(fmt::format(
      "out of memory: {} asked for, of {} that may be reserved {} are; {} of these are allocated, {} are free but in "
      "segments that something else holds{}",
      human_bytes(bytes), human_bytes(allowed()), human_bytes(reserved), human_bytes(stats.allocated.now),
      human_bytes(stats.reserved.now - stats.active.now),
      settings.expandable_segments || stats.reserved.now - stats.active.now < bytes
          ? ""
          : " (expandable_segments:True may avoid that)"));
}

}  // namespace shadowgraph
