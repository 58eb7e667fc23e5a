// The free blocks of an allocator, ordered by stream, size and address. Many blocks share a size, so sizes are a sorted
// array with a list of addresses each, of which the lowest is used first. Faster than a tree, without node allocations.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

namespace shadowgraph {

struct FreeBlock {
  int32_t stream = 0;
  int64_t size = 0, address = 0;
  uint32_t block = 0;  // not part of the order: addresses are unique
};

class FreeBlocks {
 public:
  // An iterator; invalidated by insert and erase.
  struct Place {
    uint32_t stream = 0, size = 0, at = 0;
    friend bool operator==(const Place&, const Place&) = default;
  };

  Place begin() const { return within({}); }
  Place end() const { return {count(streams_), 0, 0}; }
  int32_t stream(Place place) const { return streams_[place.stream].stream; }
  uint32_t block(Place place) const {
    const std::vector<Address>& list = addresses(streams_[place.stream], place.size);
    return list[list.size() - 1 - place.at].block;
  }
  Place next(Place place) const { return within({place.stream, place.size, place.at + 1}); }
  // `place` must not be begin().
  Place previous(Place place) const {
    if (place.at > 0) return {place.stream, place.size, place.at - 1};
    while (place.size == 0) place.size = count(streams_[--place.stream].sizes);
    --place.size;
    return {place.stream, place.size, count(addresses(streams_[place.stream], place.size)) - 1};
  }
  // Returns the first block of the stream with at least `size` bytes; without one, the position after the stream.
  Place lower_bound(int32_t stream, int64_t size) const {
    const uint32_t of = stream_at(stream);
    if (!has(of, stream)) return within({of, 0, 0});
    const uint32_t at = size_at(streams_[of], size);
    return at < streams_[of].sizes.size() ? Place{of, at, 0} : within({of + 1, 0, 0});
  }

  void insert(const FreeBlock& block) {
    const uint32_t at = stream_at(block.stream);
    if (!has(at, block.stream)) streams_.insert(streams_.begin() + at, Stream{block.stream, {}, {}});
    Stream& of = streams_[at];
    const uint32_t size = size_at(of, block.size);
    if (size == of.sizes.size() || of.sizes[size] != block.size) {
      of.sizes.insert(of.sizes.begin() + size, block.size);
      of.lists.insert(of.lists.begin() + size, new_list());
    }
    std::vector<Address>& list = lists_[of.lists[size]];
    list.insert(found(list, block.address), {block.address, block.block});
  }
  void erase(Place place) {
    Stream& of = streams_[place.stream];
    std::vector<Address>& list = lists_[of.lists[place.size]];
    list.erase(list.end() - 1 - place.at);
    if (list.empty()) drop_size(of, place.size);
  }
  // The block must be present.
  void erase(const FreeBlock& block) {
    Stream& of = streams_[stream_at(block.stream)];
    const uint32_t size = size_at(of, block.size);
    std::vector<Address>& list = lists_[of.lists[size]];
    list.erase(found(list, block.address));
    if (list.empty()) drop_size(of, size);
  }

 private:
  struct Address {
    int64_t address;
    uint32_t block;
  };
  struct Stream {
    int32_t stream;
    std::vector<int64_t> sizes;
    std::vector<uint32_t> lists;  // of each size, in `lists_`; none is empty
  };

  template <typename T>
  static uint32_t count(const std::vector<T>& of) {
    return static_cast<uint32_t>(of.size());
  }
  bool has(uint32_t at, int32_t stream) const { return at < streams_.size() && streams_[at].stream == stream; }
  const std::vector<Address>& addresses(const Stream& of, size_t size) const { return lists_[of.lists[size]]; }
  // Normalizes a place past the end of a list, or of a stream's sizes, to the next element.
  Place within(Place place) const {
    if (place.stream < streams_.size() && place.size < streams_[place.stream].sizes.size() &&
        place.at == addresses(streams_[place.stream], place.size).size()) {
      ++place.size;
      place.at = 0;
    }
    while (place.stream < streams_.size() && place.size == streams_[place.stream].sizes.size()) {
      ++place.stream;
      place.size = 0;
    }
    return place;
  }
  uint32_t stream_at(int32_t stream) const {
    uint32_t at = 0;
    while (at < streams_.size() && streams_[at].stream < stream) ++at;
    return at;
  }
  // Branch-free: a branch would be mispredicted half of the time.
  static uint32_t size_at(const Stream& of, int64_t size) {
    const int64_t* first = of.sizes.data();
    size_t count = of.sizes.size();
    if (count == 0) return 0;
    while (count > 1) {
      const size_t half = count / 2;
      first += first[half - 1] < size ? half : 0;
      count -= half;
    }
    return static_cast<uint32_t>(first - of.sizes.data()) + (*first < size ? 1 : 0);
  }
  static std::vector<Address>::iterator found(std::vector<Address>& list, int64_t address) {
    return std::ranges::lower_bound(list, address, std::ranges::greater(), &Address::address);
  }
  void drop_size(Stream& of, uint32_t size) {
    unused_.push_back(of.lists[size]);
    of.sizes.erase(of.sizes.begin() + size);
    of.lists.erase(of.lists.begin() + size);
  }
  uint32_t new_list() {
    if (unused_.empty()) {
      lists_.emplace_back();
      return count(lists_) - 1;
    }
    const uint32_t list = unused_.back();
    unused_.pop_back();
    return list;
  }

  std::vector<Stream> streams_;
  std::vector<std::vector<Address>> lists_;  // highest address first
  std::vector<uint32_t> unused_;             // of lists_
};

}  // namespace shadowgraph
