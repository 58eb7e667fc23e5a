// What CachingAllocator holds: segments cut into blocks, and pools of those that are free.
#pragma once

#include <c10/core/AllocatorConfig.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <tuple>
#include <vector>

#include "profiler/memory/free_blocks.h"
#include "shadowgraph/profile/allocator_settings.h"
#include "shadowgraph/profile/caching_allocator.h"

namespace shadowgraph {
struct CachingAllocator::State {
  static constexpr auto kMinBlock = static_cast<int64_t>(c10::CachingAllocator::kMinBlockSize);
  static constexpr auto kSmallRequest = static_cast<int64_t>(c10::CachingAllocator::kSmallSize);
  static constexpr auto kSmallSegment = static_cast<int64_t>(c10::CachingAllocator::kSmallBuffer);
  static constexpr auto kMinLargeRequest = static_cast<int64_t>(c10::CachingAllocator::kMinLargeAlloc);
  static constexpr auto kRoundLarge = static_cast<int64_t>(c10::CachingAllocator::kRoundLarge);
  static constexpr uint32_t kNone = 0xFFFFFFFFU;
  // Segments begin here. Any number will do, and below 2^53 it stays exact as a double, which viewers read.
  static constexpr int64_t kFirstAddress = int64_t{1} << 40;
  // The most that is ever reserved, 1 PiB: sums of it do not overflow, whatever sizes a file states.
  static constexpr int64_t kMostBytes = int64_t{1} << 50;

  static constexpr int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }
  static void add(Figure& figure, int64_t amount) {
    figure.now += amount;
    figure.peak = std::max(figure.peak, figure.now);
  }

  struct Block {
    int64_t address = 0;
    int64_t size = 0;
    int64_t requested = 0;
    uint32_t previous = kNone;  // neighbours in the segment
    uint32_t next = kNone;
    uint32_t tag = 0;
    int32_t stream = 0;
    bool small = false;
    bool expandable = false;
    bool mapped = true;
    bool allocated = false;
    bool elsewhere = false;  // used on other streams, too
    int64_t age_base = 0;    // of its pool when it went in
    bool is_split() const { return previous != kNone || next != kNone; }
  };
  // What is left of expandable segments, by stream and address.
  using Unmapped = std::set<std::tuple<int32_t, int64_t, uint32_t>>;
  struct Pool {
    FreeBlocks free;
    Unmapped unmapped;
    int64_t searches = 0;  // the clock of garbage collection
  };

  AllocatorSettings settings;
  int64_t capacity;
  std::vector<Block> blocks;
  std::vector<uint32_t> unused;   // places in `blocks`
  Pool pools[2];                  // large, small
  std::vector<uint32_t> waiting;  // freed, used on other streams
  int64_t next_address = kFirstAddress;
  int64_t reserved = 0;  // what PyTorch calls total_allocated_memory
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

  // ---- Blocks by number; those that are free lie in the pool of their size.
  uint32_t make(int64_t address, int64_t size, int32_t stream, bool small, bool expandable);
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

  // Puts `id` between two neighbours, either of which may be none.
  void link(uint32_t before, uint32_t id, uint32_t after) {
    blocks[id].previous = before;
    blocks[id].next = after;
    if (before != kNone) blocks[before].next = id;
    if (after != kNone) blocks[after].previous = id;
  }

  int64_t rounded(int64_t bytes) const;
  int64_t segment_size(int64_t size) const;
  bool should_split(const Block& block, int64_t size) const;
  // Takes the best fit out of the pool.
  uint32_t find_free(bool small, int32_t stream, int64_t size);

  bool has_room(int64_t bytes) const { return bytes <= allowed() - reserved; }
  uint32_t new_segment(bool small, int32_t stream, int64_t size);
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

  // ---- Expandable segments: one address range a stream and pool, backed page by page.
  int64_t page(bool small) const { return small ? kSmallSegment : settings.large_segment_size; }
  bool is_room(uint32_t id) const { return id != kNone && !blocks[id].allocated && !blocks[id].elsewhere; }
  // kNone: no range of the device's size holds as much.
  uint32_t expandable_candidate(bool small, int32_t stream, int64_t size);
  // Backs the front of an unmapped block, which joins its mapped neighbours and becomes free.
  bool map(uint32_t id, int64_t size);
  uint32_t grow_segment(bool small, int32_t stream, int64_t size);
  // Gives back the whole pages of a free block.
  void unmap(uint32_t id);

  // Takes a free neighbour in and returns the bytes that it had.
  int64_t merge(uint32_t id, uint32_t other);

  void release_segment(uint32_t id);
  void release_cached();
  // Releases just enough of the blocks that may not be split, if there are such.
  bool release_oversize(bool small, int32_t stream, int64_t size);
  // Releases segments that were free for longer than the average, until the reserved bytes are below the threshold.
  void collect_garbage();

  uint32_t from_device(bool small, int32_t stream, int64_t size) {
    return settings.expandable_segments ? grow_segment(small, stream, size) : new_segment(small, stream, size);
  }
  Handle allocate(int64_t bytes, int32_t stream, uint32_t tag);
  void free(uint32_t id);
  void finish_free(uint32_t id);
  void finish_waiting();
  [[noreturn]] void out_of_memory(int64_t bytes) const;
};

}  // namespace shadowgraph
