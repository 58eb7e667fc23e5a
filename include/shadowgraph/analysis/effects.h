// Which versions of which storages every node reads and writes.
//
// A storage has version 0 when it is born; each write, through whichever alias, makes the next version for all of them.
// A node reads the storages of its tensor operands at the version current at that point (an operand gives geometry, the
// read gives content). Views, `empty_like` and the like look at geometry only. Their reads are listed too, since they
// need the storage to exist, and geometry_only() says that no write before them matters. Filling a fresh result is not
// a write: that is its version 0.
//
//     %1 = aten::t(self=%0)      : f32[3,2]{1,3} @s0        reads s0@0
//          aten::add_(self=%1)   ...                        reads s0@0, writes s0: 0 -> 1
//     %3 = aten::relu(self=%0)   : f32[2,3] @s1             reads s0@1
//
// Random generators are pseudo storages, one per device: StorageIds from graph.storage_count() on, listed by
// generators(). A random node reads and writes the one of its generator argument's device. Without such an argument it
// is that of a function's device argument, or else of the device of its first tensor result or operand. So random nodes
// are ordered like writes to one buffer.
//
// Collectives (c10d) read and write one more pseudo storage, collectives(): every process must run them in the same
// order.
//
// A target without facts (OperatorFacts::unknown) is assumed to read and write everything it is given. So is a node
// that is given an opaque object. unknown_targets() lists them, and no report should stay silent about that.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"

namespace SHADOWGRAPH_API shadowgraph {

struct StorageVersion {
  StorageId storage;
  uint32_t version = 0;
  friend bool operator==(const StorageVersion&, const StorageVersion&) = default;
};
struct StorageWrite {
  StorageId storage;
  uint32_t before = 0;
  uint32_t after = 0;
  friend bool operator==(const StorageWrite&, const StorageWrite&) = default;
};

class Effects {
 public:
  // Linear. Accepts any graph whose ids are in range, a broken one included.
  static Effects of(const Graph& graph);

  // In order of the operands, each storage once.
  std::span<const StorageVersion> reads(NodeId node) const {
    const Entry& e = entries_[node.index];
    return {reads_.data() + e.reads, e.read_count};
  }
  std::span<const StorageWrite> writes(NodeId node) const {
    const Entry& e = entries_[node.index];
    return {writes_.data() + e.writes, e.write_count};
  }
  // The node reads only sizes and strides of its operands.
  bool geometry_only(NodeId node) const { return entries_[node.index].geometry_only; }
  bool collective(NodeId node) const { return entries_[node.index].collective; }
  bool random(NodeId node) const { return entries_[node.index].random; }
  bool host_read(NodeId node) const { return entries_[node.index].host_read; }
  bool unknown(NodeId node) const { return entries_[node.index].unknown; }
  // The results come to be and nothing else happens: no write, no randomness, no collective, no host read, nothing
  // unknown. sg::output and sg::gradient, which are there for what they say, are not pure. Placeholders are.
  bool is_pure(NodeId node) const { return entries_[node.index].pure; }

  // Version at the end of the graph; generators included.
  uint32_t final_version(StorageId storage) const { return versions_[storage.index]; }

  struct Generator {
    StorageId storage;  // the pseudo storage
    c10::Device device;
  };
  std::span<const Generator> generators() const { return generators_; }
  // The pseudo storage of collectives; invalid if there are none.
  StorageId collectives() const { return collectives_; }
  // A pseudo storage: a generator's or that of collectives. Their ids follow those of the graph's storages.
  bool is_generator(StorageId storage) const { return storage.index >= storage_count_; }
  uint32_t pseudo_storage_count() const { return static_cast<uint32_t>(versions_.size()) - storage_count_; }
  std::span<const TargetId> unknown_targets() const { return unknown_targets_; }

 private:
  struct Entry {
    uint32_t reads = 0;
    uint32_t writes = 0;
    uint32_t read_count = 0;
    uint32_t write_count : 26 = 0;
    uint32_t geometry_only : 1 = 0;
    uint32_t collective : 1 = 0;
    uint32_t random : 1 = 0;
    uint32_t host_read : 1 = 0;
    uint32_t unknown : 1 = 0;
    uint32_t pure : 1 = 0;
  };
  class Walk;
  StorageId generator_for(c10::Device device);

  std::vector<Entry> entries_;  // by node index
  std::vector<StorageVersion> reads_;
  std::vector<StorageWrite> writes_;
  std::vector<uint32_t> versions_;
  std::vector<Generator> generators_;
  std::vector<TargetId> unknown_targets_;
  StorageId collectives_;
  uint32_t storage_count_ = 0;
};

}  // namespace shadowgraph
