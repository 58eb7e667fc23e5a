// The same results by fewer nodes: the classic passes. Each is described at the head of its file in passes/simplify/.
#pragma once

#include <cstdint>

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"
#include "shadowgraph/passes/pass.h"

namespace SHADOWGRAPH_API shadowgraph {

// ---------------------------------------------------------------------------------------------------------------------
// One way of writing for what can be written in many: no-op views and copies, view chains, arguments. Changes no bit of
// any result.

struct CanonicalizeResult {
  int64_t same_views = 0;    // views that an earlier view stands for now
  int64_t view_chains = 0;   // views of views that became one
  int64_t exact_copies = 0;  // copies, and x * 1, x - 0, that what they copy stands for now
  int64_t arguments = 0;     // nodes whose arguments are written another way
  int64_t dead_views = 0;    // views that nobody used
  PassResult summary() const;
};
CanonicalizeResult canonicalize(Graph& graph);

// ---------------------------------------------------------------------------------------------------------------------
// Keeps one of all nodes that compute the same thing.

struct CseOptions {
  // kMerge: backward may keep what forward computed.
  enum class Phases : uint8_t { kWithin, kMerge };
  Phases phases = Phases::kWithin;

  static OptionTable<CseOptions> table() {
    return OptionTable<CseOptions>().choice("phases", &CseOptions::phases, {"within", "merge"},
                                            "within, or merge: backward may keep what forward computed");
  }
};
struct CseResult {
  int64_t merged = 0;
  PassResult summary() const;
};
CseResult cse(Graph& graph, const CseOptions& options = {});

// ---------------------------------------------------------------------------------------------------------------------
// Computes now, on the CPU, what only depends on constants.

struct ConstFoldOptions {
  int64_t max_bytes = 4096;

  static OptionTable<ConstFoldOptions> table() {
    return OptionTable<ConstFoldOptions>().whole_number("max_bytes", &ConstFoldOptions::max_bytes, 0,
                                                        "largest constant to make");
  }
};
struct ConstFoldResult {
  int64_t folded = 0;     // nodes
  int64_t constants = 0;  // made in their place
  int64_t refused = 0;    // operators that threw, or gave another geometry than was recorded
  PassResult summary() const;
};
ConstFoldResult const_fold(Graph& graph, const ConstFoldOptions& options = {});

// ---------------------------------------------------------------------------------------------------------------------
// Erases nodes that nobody can notice; never an effect.

struct DceOptions {
  // kDrop: random nodes without use go too, so that later ones may draw other numbers.
  enum class Random : uint8_t { kKeep, kDrop };
  Random random = Random::kKeep;

  static OptionTable<DceOptions> table() {
    return OptionTable<DceOptions>().choice("random", &DceOptions::random, {"keep", "drop"},
                                            "keep, or drop: later random numbers may differ");
  }
};
struct DceResult {
  int64_t erased = 0;
  PassResult summary() const;
};
DceResult dce(Graph& graph, const DceOptions& options = {});

// ---------------------------------------------------------------------------------------------------------------------
// Drops writes that nobody sees; allocations that are filled at once become the filling.

struct DeadStorageResult {
  int64_t overwritten = 0;  // writes that another covers before anybody reads
  int64_t self_copies = 0;  // copies of a tensor to itself
  int64_t unfilled = 0;     // zeros, ones and the like that are overwritten at once: empty now
  int64_t filled = 0;       // empty, then filled: zeros or full now
  int64_t cloned = 0;       // empty, then copied to: clone now
  PassResult summary() const;
};
DeadStorageResult dead_storage(Graph& graph);

// ---------------------------------------------------------------------------------------------------------------------
// Keeps one of all constants with the same contents.

struct MergeConstantsResult {
  int64_t merged = 0;
  int64_t bytes = 0;  // of those that went
  PassResult summary() const;
};
MergeConstantsResult merge_constants(Graph& graph);

}  // namespace shadowgraph
