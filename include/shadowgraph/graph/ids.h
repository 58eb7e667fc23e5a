// Typed 32-bit ids and maps keyed by them.
//
// A graph's nodes, values, storages and regions are stored in arenas and identified by index. Ids are cheap to copy and
// remain valid across edits; pointers into an arena are valid only as long as its graph. Ids of different kinds are
// different types. Keep side data (costs, lifetimes, colors) in an IdMap rather than in the node.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "shadowgraph/export.h"

namespace SHADOWGRAPH_API shadowgraph {

template <class Tag>
struct Id {
  static constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

  uint32_t index = kNone;

  constexpr Id() = default;
  constexpr explicit Id(uint32_t i) : index(i) {}
  constexpr bool valid() const { return index != kNone; }
  constexpr explicit operator bool() const { return valid(); }
  friend constexpr auto operator<=>(const Id&, const Id&) = default;
};

using NodeId = Id<struct NodeTag>;
using ValueId = Id<struct ValueTag>;
using StorageId = Id<struct StorageTag>;
using RegionId = Id<struct RegionTag>;
using TargetId = Id<struct TargetTag>;
using StringId = Id<struct StringTag>;
using ConstantId = Id<struct ConstantTag>;
using PhaseId = Id<struct PhaseTag>;

// A dense map from ids to T. Grows on write; reading an id that was never written returns `missing`.
template <class I, class T>
class IdMap {
 public:
  explicit IdMap(T missing = T{}) : missing_(std::move(missing)) {}

  T& operator[](I id) {
    if (id.index >= data_.size()) data_.resize(size_t{id.index} + 1, missing_);
    return data_[id.index];
  }
  const T& operator[](I id) const { return id.index < data_.size() ? data_[id.index] : missing_; }
  size_t size() const { return data_.size(); }
  void reserve(size_t count) { data_.reserve(count); }

 private:
  std::vector<T> data_;
  T missing_;
};

}  // namespace shadowgraph

template <class Tag>
struct std::hash<shadowgraph::Id<Tag>> {
  size_t operator()(shadowgraph::Id<Tag> id) const noexcept { return id.index; }
};
