#include <c10/core/AllocatorConfig.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "profiler/memory/free_blocks.h"
#include "shadowgraph/profile/memory.h"
#include "shadowgraph/units.h"

namespace shadowgraph {

// Simulates PyTorch's CUDA caching allocator without CUDA. Follows c10/cuda/CUDACachingAllocator.cpp of 2.13, and
// c10/core/AllocatorConfig.h for sizes.
struct CachingAllocator::State {
  static constexpr auto kMinBlock = static_cast<int64_t>(c10::CachingAllocator::kMinBlockSize);
  static constexpr auto kSmallRequest = static_cast<int64_t>(c10::CachingAllocator::kSmallSize);
  static constexpr auto kSmallSegment = static_cast<int64_t>(c10::CachingAllocator::kSmallBuffer);
  static constexpr auto kMinLargeRequest = static_cast<int64_t>(c10::CachingAllocator::kMinLargeAlloc);
  static constexpr auto kRoundLarge = static_cast<int64_t>(c10::CachingAllocator::kRoundLarge);
  static constexpr uint32_t kNone = 0xFFFFFFFFU;
  // Address of the first segment: arbitrary, but below 2^53, so that viewers that parse doubles keep it exact.
  static constexpr int64_t kFirstAddress = int64_t{1} << 40;
  // Upper bound on reserved bytes, 1 PiB: prevents overflow for any sizes read from a file.
  static constexpr int64_t kMostBytes = int64_t{1} << 50;

  static constexpr int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }
  static void add(Stat& figure, int64_t amount) {
    figure.current += amount;
    figure.peak = std::max(figure.peak, figure.current);
  }

  struct Block {
    int64_t address = 0, size = 0, requested = 0;
    uint32_t previous = kNone, next = kNone;  // neighbors in the segment
    uint32_t tag = 0;
    int32_t stream = 0;
    bool small = false, expandable = false, mapped = true, allocated = false;
    bool elsewhere = false;  // also used on other streams
    int64_t age_base = 0;    // the pool's age when it was freed
    bool is_split() const { return previous != kNone || next != kNone; }
  };
  // Unmapped blocks of expandable segments, by stream and address.
  using Unmapped = std::set<std::tuple<int32_t, int64_t, uint32_t>>;
  struct Pool {
    FreeBlocks free;
    Unmapped unmapped;
    int64_t searches = 0;  // clock of the garbage collection
  };

  AllocatorSettings settings;
  int64_t capacity;
  std::vector<Block> blocks;
  std::vector<uint32_t> unused;   // free indices of `blocks`
  Pool pools[2];                  // large, small
  std::vector<uint32_t> waiting;  // freed, but still in use on other streams
  int64_t next_address = kFirstAddress;
  int64_t reserved = 0;  // PyTorch's total_allocated_memory
  Stats stats;
  bool recording = false;
  std::vector<Event> events;

  bool collects() const {
    return settings.per_process_memory_fraction > 0 && settings.garbage_collection_threshold > 0;
  }
  int64_t allowed() const {
    const int64_t most = std::min(capacity, kMostBytes);
    if (settings.per_process_memory_fraction <= 0 || capacity == AllocatorSettings::kUnlimited) return most;
    return static_cast<int64_t>(settings.per_process_memory_fraction * static_cast<double>(most));
  }
  Pool& pool_of(const Block& block) { return pools[block.small]; }

  void note(Action action, int64_t address, int64_t bytes, int32_t stream, uint32_t tag) {
    if (recording) events.push_back({action, address, bytes, stream, tag});
  }

  // ---- Blocks by index; free ones are in the pool of their size.
  uint32_t make(int64_t address, int64_t size, int32_t stream, bool small, bool expandable) {
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

  void drop(uint32_t id) { unused.push_back(id); }
  void put(uint32_t id) {
    Block& block = blocks[id];
    block.age_base = pool_of(block).searches;
    pool_of(block).free.insert({block.stream, block.size, block.address, id});
  }
  void take(uint32_t id) {
    const Block& block = blocks[id];
    pool_of(block).free.erase(FreeBlock{block.stream, block.size, block.address, id});
  }
  void put_unmapped(uint32_t id) {
    const Block& block = blocks[id];
    pool_of(block).unmapped.emplace(block.stream, block.address, id);
  }
  void take_unmapped(uint32_t id) {
    const Block& block = blocks[id];
    pool_of(block).unmapped.erase({block.stream, block.address, id});
  }

  // Links `id` between two neighbors; either may be kNone.
  void link(uint32_t before, uint32_t id, uint32_t after) {
    blocks[id].previous = before;
    blocks[id].next = after;
    if (before != kNone) blocks[before].next = id;
    if (after != kNone) blocks[after].previous = id;
  }

  int64_t rounded(int64_t bytes) const {
    if (bytes < kMinBlock) return kMinBlock;
    const int log = std::bit_width(static_cast<uint64_t>(bytes)) - 1;
    const int64_t divisions = settings.roundup_power2_divisions[static_cast<size_t>(std::clamp(log - 20, 0, 15))];
    if (divisions > 1 && bytes > kMinBlock * divisions) {
      const int64_t step = (int64_t{1} << log) / divisions;
      return step == 0 ? int64_t{1} << (log + 1) : round_up(bytes, step);
    }
    return round_up(bytes, kMinBlock);
  }

  int64_t segment_size(int64_t size) const {
    if (size <= kSmallRequest) return kSmallSegment;
    if (size < kMinLargeRequest) return std::max(settings.large_segment_size, size);
    return round_up(size, kRoundLarge);
  }

  bool should_split(const Block& block, int64_t size) const {
    const int64_t rest = block.size - size;
    if (block.small || settings.expandable_segments) return rest >= kMinBlock;
    return size < settings.max_split_size && rest > kSmallRequest;
  }

  // Removes and returns the best fit from the pool.
  uint32_t find_free(bool small, int32_t stream, int64_t size) {
    Pool& pool = pools[small];
    if (collects()) ++pool.searches;
    FreeBlocks::Place at = pool.free.lower_bound(stream, size);
    if (at == pool.free.end() || pool.free.stream(at) != stream) return kNone;
    if (blocks[pool.free.block(at)].expandable) {
      // An expandable block counts with the size it can grow to.
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
    // Saturating subtraction: max_split_size may be "unlimited".
    if (size >= settings.max_split_size && found - size >= settings.max_non_split_rounding) return kNone;
    pool.free.erase(at);
    return id;
  }

  bool has_room(int64_t bytes) const { return bytes <= allowed() - reserved; }
  uint32_t new_segment(bool small, int32_t stream, int64_t size) {
    const int64_t bytes = segment_size(size);
    if (!has_room(bytes)) return kNone;
    const uint32_t id = make(next_address, bytes, stream, small, false);
    next_address += round_up(bytes, kRoundLarge) + kRoundLarge;
    grow_reserved(bytes);
    add(stats.segments, 1);
    note(Action::kSegmentAllocate, blocks[id].address, bytes, stream, 0);
    return id;
  }

  void grow_reserved(int64_t bytes) {
    reserved += bytes;
    add(stats.reserved, bytes);
    ++stats.device_allocations;
  }
  void shrink_reserved(int64_t bytes) {
    reserved -= bytes;
    add(stats.reserved, -bytes);
    ++stats.device_frees;
  }

  // ---- Expandable segments: one address range per stream and pool, mapped page by page.
  int64_t page(bool small) const { return small ? kSmallSegment : settings.large_segment_size; }
  bool is_room(uint32_t id) const { return id != kNone && !blocks[id].allocated && !blocks[id].elsewhere; }
  // Returns kNone if no address range of the device's size can hold the block.
  uint32_t expandable_candidate(bool small, int32_t stream, int64_t size) {
    Pool& pool = pools[small];
    for (auto at = pool.unmapped.lower_bound({stream, 0, 0}); at != pool.unmapped.end() && std::get<0>(*at) == stream;
         ++at) {
      uint32_t id = std::get<2>(*at);
      if (is_room(blocks[id].previous)) id = blocks[id].previous;
      int64_t room = 0;
      for (uint32_t b = id; room < size && is_room(b); b = blocks[b].next) room += blocks[b].size;
      if (room >= size) return id;
    }
    // Reserves addresses for 9/8 of the device memory, as PyTorch does; 1 TiB if the size is unknown.
    const int64_t device =
        capacity == AllocatorSettings::kUnlimited ? int64_t{1} << 40 : std::min(capacity, kMostBytes);
    const int64_t range = round_up(device + device / 8, page(small));
    if (range < size) return kNone;
    const uint32_t id = make(next_address, range, stream, small, true);
    next_address += range + kRoundLarge;
    blocks[id].mapped = false;
    put_unmapped(id);
    return id;
  }

  // Maps the front of an unmapped block, which merges with mapped neighbors and becomes free.
  bool map(uint32_t id, int64_t size) {
    const int64_t bytes = std::min(round_up(size, page(blocks[id].small)), blocks[id].size);
    if (!has_room(bytes)) return false;
    take_unmapped(id);
    blocks[id].mapped = true;
    if (bytes < blocks[id].size) {
      const Block& block = blocks[id];
      const uint32_t rest = make(block.address + bytes, block.size - bytes, block.stream, block.small, true);
      blocks[rest].mapped = false;
      link(id, rest, blocks[id].next);
      put_unmapped(rest);
      blocks[id].size = bytes;
    }
    note(Action::kSegmentAllocate, blocks[id].address, bytes, blocks[id].stream, 0);
    merge(id, blocks[id].previous);
    merge(id, blocks[id].next);
    put(id);
    grow_reserved(bytes);
    return true;
  }

  uint32_t grow_segment(bool small, int32_t stream, int64_t size) {
    uint32_t id = expandable_candidate(small, stream, size);
    if (id == kNone) return kNone;
    if (!blocks[id].mapped && !map(id, std::min(blocks[id].size, size))) return kNone;
    while (blocks[id].size < size) {
      const uint32_t next = blocks[id].next;
      if (!map(next, std::min(size - blocks[id].size, blocks[next].size))) return kNone;
      id = next;  // the next block absorbed the previous one
    }
    take(id);
    return id;
  }

  // Unmaps the whole pages of a free block.
  void unmap(uint32_t id) {
    const int64_t page_bytes = page(blocks[id].small);
    uint32_t first = id;
    while (blocks[first].previous != kNone) first = blocks[first].previous;
    const int64_t origin = blocks[first].address;
    const int64_t begin = origin + round_up(blocks[id].address - origin, page_bytes);
    const int64_t end = origin + (blocks[id].address + blocks[id].size - origin) / page_bytes * page_bytes;
    if (end <= begin) return;
    take(id);
    const auto leave = [&](int64_t address, int64_t bytes, bool before) {
      const uint32_t part = make(address, bytes, blocks[id].stream, blocks[id].small, true);
      before ? link(blocks[id].previous, part, id) : link(id, part, blocks[id].next);
      put(part);
    };
    const int64_t block_end = blocks[id].address + blocks[id].size;
    if (begin > blocks[id].address) leave(blocks[id].address, begin - blocks[id].address, true);
    if (end < block_end) leave(end, block_end - end, false);
    blocks[id].address = begin;
    blocks[id].size = end - begin;
    blocks[id].mapped = false;
    note(Action::kSegmentFree, begin, end - begin, blocks[id].stream, 0);
    shrink_reserved(end - begin);
    merge(id, blocks[id].previous);
    merge(id, blocks[id].next);
    if (blocks[id].is_split()) {
      put_unmapped(id);
    } else {
      drop(id);  // the address range is released with its last page
    }
  }

  // Merges a free neighbor into `id` and returns the neighbor's bytes.
  int64_t merge(uint32_t id, uint32_t other) {
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

  void release_segment(uint32_t id) {
    take(id);
    note(Action::kSegmentFree, blocks[id].address, blocks[id].size, blocks[id].stream, 0);
    shrink_reserved(blocks[id].size);
    add(stats.segments, -1);
    drop(id);
  }

  void release_cached() {
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

  // Releases just enough oversize blocks (those above max_split_size), if there are any.
  bool release_oversize(bool small, int32_t stream, int64_t size) {
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

  // Releases segments that have been free for longer than average, until reserved bytes drop below the threshold.
  void collect_garbage() {
    const auto limit = static_cast<int64_t>(settings.garbage_collection_threshold * static_cast<double>(allowed()));
    if (reserved <= limit) return;
    const int64_t target = reserved - limit;
    int64_t reclaimed = 0;
    for (bool any = true; any && reclaimed < target;) {
      int64_t ages = 0, count = 0;
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

  uint32_t from_device(bool small, int32_t stream, int64_t size) {
    return settings.expandable_segments ? grow_segment(small, stream, size) : new_segment(small, stream, size);
  }
  Handle allocate(int64_t bytes, int32_t stream, uint32_t tag) {
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
    const bool counts = !blocks[id].expandable;  // PyTorch excludes expandable segments from inactive_split
    if (should_split(blocks[id], size)) {
      // The front keeps the index of the whole block; the rest stays free.
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

  void free(uint32_t id) {
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

  void finish_free(uint32_t id) {
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

  void finish_waiting() {
    for (const uint32_t id : std::exchange(waiting, {})) {
      blocks[id].elsewhere = false;
      finish_free(id);
    }
  }

  [[noreturn]] void out_of_memory(int64_t bytes) const {
    throw OutOfMemoryError(fmt::format(
        "out of memory: tried to allocate {}. Of a limit of {}, {} are reserved: {} allocated, and {} free in segments "
        "that also hold live blocks{}",
        human_bytes(bytes), human_bytes(allowed()), human_bytes(reserved), human_bytes(stats.allocated.current),
        human_bytes(stats.reserved.current - stats.active.current),
        settings.expandable_segments || stats.reserved.current - stats.active.current < bytes
            ? ""
            : " (try expandable_segments:True)"));
  }
};

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
  for (Stat* figure :
       {&stats.requested, &stats.allocated, &stats.active, &stats.reserved, &stats.inactive_split, &stats.segments}) {
    figure->peak = figure->current;
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
