// An append-only array in fixed chunks: elements never move, growth copies nothing, and little slack is held.
//
// A recorder appends millions of small records; a std::vector would hold up to twice the bytes and copy them at every
// growth. Arena<T> hands out either one element (push) or a run of contiguous elements (push_run), both named by a
// 32-bit index.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "shadowgraph/export.h"

namespace SHADOWGRAPH_API shadowgraph {

// A run of elements in an arena: `size` elements from `offset` on.
struct Run {
  uint32_t offset = 0;
  uint32_t size = 0;
};

// Uninitialised memory for an arena, to be given to std::free; where it is large, in large pages if the system has
// them. Throws std::bad_alloc.
void* allocate_arena_block(size_t bytes);

template <class T>
class Arena {
  static_assert(std::is_trivially_copyable_v<T>, "an arena never runs destructors");
  static_assert(alignof(T) <= alignof(std::max_align_t));

 public:
  // Small, so that the dozen arenas of a graph of a hundred nodes are not mostly room.
  static constexpr uint32_t kChunkBits = 7;
  static constexpr uint32_t kChunk = 1U << kChunkBits;

  Arena() = default;
  Arena(Arena&&) noexcept = default;
  Arena& operator=(Arena&&) noexcept = default;
  // One block for all, so that runs longer than a chunk stay in one piece.
  Arena(const Arena& other) {
    add_block(static_cast<uint32_t>(other.chunks_.size()));
    for (uint32_t at = 0; at < other.size_; at += kChunk) {
      std::copy_n(other.chunks_[at >> kChunkBits], std::min(kChunk, other.size_ - at), chunks_[at >> kChunkBits]);
    }
    size_ = other.size_;
  }
  Arena& operator=(const Arena& other) {
    if (this != &other) *this = Arena(other);
    return *this;
  }

  T& operator[](uint32_t i) { return chunks_[i >> kChunkBits][i & (kChunk - 1)]; }
  const T& operator[](uint32_t i) const { return chunks_[i >> kChunkBits][i & (kChunk - 1)]; }
  uint32_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  uint32_t push(const T& element) {
    if (size_ == capacity()) add_chunks(1);
    (*this)[size_] = element;
    return size_++;
  }

  // Room for `count` contiguous elements, value-initialised.
  Run push_run(uint32_t count) {
    const Run run = push_room(count);
    std::ranges::fill(view(run), T{});
    return run;
  }
  Run push_run(std::span<const T> elements) {
    const Run run = push_room(static_cast<uint32_t>(elements.size()));
    if (run.size != 0) std::copy(elements.begin(), elements.end(), &(*this)[run.offset]);
    return run;
  }
  // Gives back the last run, for a caller that has pushed it and nothing after it.
  void pop_run(Run run) {
    if (run.size != 0 && run.offset + run.size == size_) size_ = run.offset;
  }

  std::span<T> view(Run run) { return run.size == 0 ? std::span<T>() : std::span<T>(&(*this)[run.offset], run.size); }
  std::span<const T> view(Run run) const {
    return run.size == 0 ? std::span<const T>() : std::span<const T>(&(*this)[run.offset], run.size);
  }
  size_t allocated_bytes() const { return size_t{capacity()} * sizeof(T) + chunks_.capacity() * sizeof(T*); }

 private:
  struct Free {
    void operator()(T* block) const { std::free(block); }
  };
  uint32_t capacity() const { return static_cast<uint32_t>(chunks_.size()) << kChunkBits; }

  Run push_room(uint32_t count) {
    if (count == 0) return {};
    if (count > capacity() - size_) {
      // What is left of the last block is given up.
      size_ = capacity();
      add_chunks((count + kChunk - 1) >> kChunkBits);
    }
    const uint32_t offset = size_;
    size_ += count;
    return {offset, count};
  }

  // Adds at least so many elements, in one block from which all later ones are taken. An arena of more than a hundred
  // thousand elements grows by an eighth. So many small blocks would be as many calls of malloc, and never in large
  // pages.
  void add_chunks(uint32_t count) {
    const auto held = static_cast<uint32_t>(chunks_.size());
    add_block(held < 1024 ? count : std::max(count, held / 8));
  }
  void add_block(uint32_t count) {
    if (count == 0) return;
    T* block = static_cast<T*>(allocate_arena_block((size_t{count} << kChunkBits) * sizeof(T)));
    blocks_.emplace_back(block);
    for (uint32_t i = 0; i < count; ++i) chunks_.push_back(block + (size_t{i} << kChunkBits));
  }

  std::vector<T*> chunks_;
  std::vector<std::unique_ptr<T, Free>> blocks_;
  uint32_t size_ = 0;
};

}  // namespace shadowgraph
