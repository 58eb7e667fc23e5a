// Keeps free blocks of an allocator in order: by stream, then size, then address. Many blocks have one size: the sizes
// are a sorted array, and each has its addresses. That is quicker than a tree, and allocates no nodes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace shadowgraph {

struct FreeBlock {
  int32_t stream = 0;
  int64_t size = 0;
  int64_t address = 0;
  uint32_t block = 0;  // not part of the order, as no two blocks have one address
};

class FreeBlocks {
 public:
  // Where a block is, until anything is inserted or erased.
  struct Place {
    size_t stream = 0, size = 0, at = 0;
    friend bool operator==(const Place&, const Place&) = default;
  };

  Place begin() const { return within({}); }
  Place end() const { return {streams_.size(), 0, 0}; }
  FreeBlock operator[](Place place) const {
    const Stream& of = streams_[place.stream];
    const Address& at = addresses(of, place.size)[place.at];
    return {of.stream, of.sizes[place.size], at.address, at.block};
  }
  Place next(Place place) const { return within({place.stream, place.size, place.at + 1}); }
  // `place` is not begin().
  Place previous(Place place) const {
    if (place.at > 0) return {place.stream, place.size, place.at - 1};
    while (place.size == 0) place.size = streams_[--place.stream].sizes.size();
    --place.size;
    return {place.stream, place.size, addresses(streams_[place.stream], place.size).size() - 1};
  }
  // The first of a stream that has `size` bytes or more; where there is none, what comes behind the stream.
  Place lower_bound(int32_t stream, int64_t size) const {
    const size_t of = stream_at(stream);
    if (of == streams_.size() || streams_[of].stream != stream) return within({of, 0, 0});
    return within({of, size_at(streams_[of], size), 0});
  }

  void insert(const FreeBlock& block) {
    const size_t at = stream_at(block.stream);
    if (at == streams_.size() || streams_[at].stream != block.stream) {
      streams_.insert(position(streams_, at), Stream{block.stream, {}, {}});
    }
    Stream& of = streams_[at];
    const size_t size = size_at(of, block.size);
    if (size == of.sizes.size() || of.sizes[size] != block.size) {
      of.sizes.insert(position(of.sizes, size), block.size);
      of.lists.insert(position(of.lists, size), new_list());
    }
    std::vector<Address>& list = lists_[of.lists[size]];
    list.insert(position(list, address_at(list, block.address)), {block.address, block.block});
  }
  void erase(Place place) {
    Stream& of = streams_[place.stream];
    std::vector<Address>& list = lists_[of.lists[place.size]];
    list.erase(position(list, place.at));
    if (!list.empty()) return;
    unused_.push_back(of.lists[place.size]);
    of.sizes.erase(position(of.sizes, place.size));
    of.lists.erase(position(of.lists, place.size));
  }
  // The block is there.
  void erase(const FreeBlock& block) {
    const size_t stream = stream_at(block.stream), size = size_at(streams_[stream], block.size);
    erase(Place{stream, size, address_at(addresses(streams_[stream], size), block.address)});
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

  const std::vector<Address>& addresses(const Stream& of, size_t size) const { return lists_[of.lists[size]]; }
  // A place behind the last of a list, or of a stream's sizes, is the first of the next.
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
  size_t stream_at(int32_t stream) const {
    size_t at = 0;
    while (at < streams_.size() && streams_[at].stream < stream) ++at;
    return at;
  }
  // Without branches, half of which would be guessed wrong.
  static size_t size_at(const Stream& of, int64_t size) {
    const int64_t* first = of.sizes.data();
    size_t count = of.sizes.size();
    if (count == 0) return 0;
    while (count > 1) {
      const size_t half = count / 2;
      first += first[half - 1] < size ? half : 0;
      count -= half;
    }
    return static_cast<size_t>(first - of.sizes.data()) + (*first < size ? 1 : 0);
  }
  static size_t address_at(const std::vector<Address>& list, int64_t address) {
    const auto found = std::ranges::lower_bound(list, address, {}, &Address::address);
    return static_cast<size_t>(found - list.begin());
  }
  uint32_t new_list() {
    if (unused_.empty()) {
      lists_.emplace_back();
      return static_cast<uint32_t>(lists_.size() - 1);
    }
    const uint32_t list = unused_.back();
    unused_.pop_back();
    return list;
  }
  template <typename T>
  static typename std::vector<T>::iterator position(std::vector<T>& of, size_t at) {
    return of.begin() + static_cast<std::ptrdiff_t>(at);
  }

  std::vector<Stream> streams_;
  std::vector<std::vector<Address>> lists_;
  std::vector<uint32_t> unused_;  // of lists_
};

}  // namespace shadowgraph
