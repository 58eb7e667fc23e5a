// Expandable segments: one address range a stream and pool, backed page by page.
#include "profiler/memory/caching_allocator_state.h"

namespace shadowgraph {

uint32_t CachingAllocator::State::expandable_candidate(bool small, int32_t stream, int64_t size) {
  Pool& pool = pools[small];
  for (auto at = pool.unmapped.lower_bound({stream, 0, 0}); at != pool.unmapped.end() && std::get<0>(*at) == stream;
       ++at) {
    uint32_t id = std::get<2>(*at);
    if (is_room(blocks[id].previous)) id = blocks[id].previous;
    int64_t room = 0;
    for (uint32_t b = id; room < size && is_room(b); b = blocks[b].next) room += blocks[b].size;
    if (room >= size) return id;
  }
  // Takes addresses for all of the device and an eighth more, as PyTorch does; 1 TiB where no size is known.
  const int64_t device = capacity == AllocatorSettings::kUnlimited ? int64_t{1} << 40 : std::min(capacity, kMostBytes);
  const int64_t range = round_up(device + device / 8, page(small));
  if (range < size) return kNone;
  const uint32_t id = make(next_address, range, stream, small, true);
  next_address += range + kRoundLarge;
  blocks[id].mapped = false;
  put_unmapped(id);
  return id;
}

bool CachingAllocator::State::map(uint32_t id, int64_t size) {
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

uint32_t CachingAllocator::State::grow_segment(bool small, int32_t stream, int64_t size) {
  uint32_t id = expandable_candidate(small, stream, size);
  if (id == kNone) return kNone;
  if (!blocks[id].mapped && !map(id, std::min(blocks[id].size, size))) return kNone;
  while (blocks[id].size < size) {
    const uint32_t next = blocks[id].next;
    if (!map(next, std::min(size - blocks[id].size, blocks[next].size))) return kNone;
    id = next;  // the next block has taken in what was before it
  }
  take(id);
  return id;
}

void CachingAllocator::State::unmap(uint32_t id) {
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
    drop(id);  // the address range goes with its last page
  }
}

}  // namespace shadowgraph
