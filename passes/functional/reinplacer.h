// Decides which functional operators run in place (reinplace.cpp), and builds the graph in which they do
// (reinplace_build.cpp). Internal to the pass `reinplace`.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ir/analysis/tensor_geometry.h"
#include "ir/operators/operator_facts.h"
#include "shadowgraph/passes/functional.h"

namespace shadowgraph {

// An operator that gives its first operand with a part replaced, and the view that is that part.
struct Scatter {
  const char* name;
  const char* view;
};
// Null for other operators.
const Scatter* scatter_of(const Target& target);

class Reinplacer {
 public:
  explicit Reinplacer(const Graph& graph);

  // Whether there is anything to do.
  bool decide();
  Graph build();
  ReinplaceResult result;

 private:
  enum class Kind : uint8_t {
    kCopy,     // the node as it is
    kInPlace,  // its in-place form
    kView,     // a scatter: the view that it scatters to, and a copy to that
    kGone,     // nothing: its first operand holds its result already
  };
  struct Decision {
    Kind kind = Kind::kCopy;
    const Target* target = nullptr;  // kInPlace
  };
  // A written operand, and the result that stands for it.
  struct Write {
    ValueId operand, made;
  };
  struct StorageFacts {
    uint32_t last_read = 0;         // ordinal
    uint32_t read_before = 0;       // the reader before that
    uint32_t write_back = 0;        // ordinal of the copy that overwrites it as a whole; 0: none
    bool given = false;             // a placeholder's
    bool written = false;           // by the program as it is, write-backs aside
    bool saved = false;             // autograd keeps it
    bool read_in_backward = false;  // what is saved has been of use
    bool returned = false;          // by sg::output or sg::gradient
  };

  class Build;

  // Finds StorageFacts in one walk: who reads contents last, who overwrites what the caller gave.
  void look();
  // A result that took its operand's memory lives in the operand's storage, which may itself have been merged.
  StorageId merged(StorageId storage) {
    while (into_[storage.index].valid()) storage = into_[storage.index];
    return storage;
  }
  // Whether memory may be taken: nobody reads it any more, and the result fits into it.
  bool is_dead_after(ValueId value, uint32_t ordinal, NodeId except = NodeId());
  bool may_take(ValueId operand, ValueId result, uint32_t ordinal, NodeId except = NodeId());
  void merge(ValueId operand, ValueId result);
  std::vector<Write> writes_of(NodeId n, const OperatorFacts& facts) const;
  bool reads_what_it_writes(NodeId n, const OperatorFacts& facts, std::span<const Write> writes);
  bool goes_with_scatter(NodeId n, uint32_t ordinal, const Target& target, const Write& write, NodeId scatter);
  // Each decides for one node, in program order, and merges storages if it says yes.
  bool decide_operator(NodeId n, uint32_t ordinal);
  bool decide_scatter(NodeId n, uint32_t ordinal);
  bool decide_write_back(NodeId n);
  // Where a scatter writes, as a view of its first operand; nothing for dimensions that are not there.
  std::optional<TensorGeometry> region(NodeId scatter) const;
  NodeId only_scatter(ValueId value) const;
  const Target* in_place(NodeId n);

  const Graph& read_;
  const IdMap<ValueId, uint8_t> bits_;
  std::vector<StorageFacts> storages_;
  std::vector<StorageId> into_;  // by storage: the one it was merged into
  std::vector<uint32_t> limit_;  // by storage: its write-back, handed down by merges; 0: none
  IdMap<NodeId, uint32_t> ordinal_;
  IdMap<NodeId, Decision> decisions_;
  std::vector<std::unique_ptr<const Target>> originals_;  // behind functional calls
  IdMap<TargetId, const Target*> original_of_;
  std::vector<bool> looked_for_original_;
};

}  // namespace shadowgraph
