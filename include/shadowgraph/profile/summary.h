// How large a model is, what its parts cost, and the table of those.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"
#include "shadowgraph/profile/flops.h"
#include "shadowgraph/profile/timeline.h"

namespace SHADOWGRAPH_API shadowgraph {

// ---------------------------------------------------------------------------------------------------------------------
// How large the model is: elements and bytes of its parameters and buffers, shared ones once.
//
// Two placeholders are the same tensor if they have the same storage, offset and sizes (tied weights). Parameters that
// are different parts of one storage (flattened recurrent weights) count each. Bytes are those of the tensors, not of
// the storages, which may be padded.

struct ParameterCount {
  int64_t parameters = 0;  // elements
  int64_t parameter_bytes = 0;
  int64_t parameter_tensors = 0;
  int64_t buffers = 0;  // elements
  int64_t buffer_bytes = 0;
  int64_t buffer_tensors = 0;

  static ParameterCount of(const Graph& graph);
  friend bool operator==(const ParameterCount&, const ParameterCount&) = default;
};

// ---------------------------------------------------------------------------------------------------------------------
// What a group of nodes costs: the figures behind the module tree and the summary table.
//
// A group is any set of nodes: a module, a composite call, an operator. Bytes are those of whole storages, each counted
// once in a group, so that views are free and shared tensors are not counted twice.
//   incremental      storages saved for backward (activations: not what existed before), charged to the group of the
//   first
//                    forward node that saves them; the sum over all groups is saved_activation_bytes
//   output           storages allocated by the group's forward nodes that autograd saves somewhere
//   temporary        storages allocated by the group's forward nodes that nobody saves
//   parameters       parameters that the group's forward nodes read; shared ones count once in each group
//   backward         storages allocated by the group's backward nodes
//   forward_flops,   NodeFlops of the group's nodes of that phase
//   backward_flops

struct GroupFigures {
  int64_t forward_nodes = 0;
  int64_t backward_nodes = 0;
  int64_t incremental = 0;  // bytes, as all below
  int64_t output = 0;
  int64_t temporary = 0;
  int64_t parameters = 0;
  int64_t backward = 0;
  NodeFlops forward_flops;
  NodeFlops backward_flops;

  // Adds everything but `parameters`, which a sum would count twice where groups share them.
  void add_disjoint(const GroupFigures& other);
  friend bool operator==(const GroupFigures&, const GroupFigures&) = default;
};

constexpr uint32_t kNoGroup = 0xFFFFFFFFU;

// `group_of` gives each node's group, or kNoGroup. Counts only nodes of phases forward and backward that are no
// placeholders, outputs or gradient markers. `parents`, if given, is a tree over the groups (parents before children,
// kNoGroup for a root). `parameters` then counts each group's subtree, each storage once; all else is the group's own.
std::vector<GroupFigures> group_figures(const Graph& graph, const IdMap<StorageId, StorageKind>& kinds,
                                        const Flops& flops, const IdMap<NodeId, uint32_t>& group_of,
                                        uint32_t group_count, std::span<const uint32_t> parents = {});

// ---------------------------------------------------------------------------------------------------------------------
// The analyzer's table: what each module, composite call or operator costs, one row each, in program order.
//
//   Op type      module class, "composite" or "operator"; "x12" if the row stands for twelve equal, adjacent ones
//   Op           module path, or operator with the path of the module it ran in
//   Accumulate   bytes saved for backward so far: the running sum of Incremental, which ends at saved_activation_bytes
//   Incremental  bytes this row is the first to save (exact definitions of this and the next: GroupFigures)
//   Output       bytes its forward allocates that autograd keeps
//   Temp         bytes its forward allocates that nobody keeps for backward
//   Param        bytes of parameters its forward reads
//   Backward     bytes its backward allocates
//   Fwd FLOPs,   matrix products, convolutions, attention: 2 per MAC
//   Bwd FLOPs
//   Fwd elem.,   elementwise operations
//   Bwd elem.
//
// All bytes are those of whole storages counted once. ColossalAI's analyzer, whose columns these are, sums the logical
// bytes of tensors keyed by data pointer. So here
//
//   - a view is free, and Output and Temp never overlap;
//   - a tensor that is saved by the operator that made it is Output rather than dropped as an alias;
//   - Backward is what backward really allocates rather than the size of the inputs.
//
// Its FLOPs are MACs: half of ours.

enum class SummaryGrouping : uint8_t {
  kModule,     // one row a module, down to `depth`
  kComposite,  // one row a call: the outermost composite operator, or the operator itself outside any
  kOperator,   // one row an operator name, composite ones first taken as in kComposite
};

struct SummaryOptions {
  SummaryGrouping grouping = SummaryGrouping::kModule;
  int depth = 0;             // kModule: levels of the module tree; 0: the deepest that fits into max_rows
  size_t max_rows = 40;      // what is beyond is summed in a last row; 0: no limit
  bool fold_repeats = true;  // kModule: numbered siblings that do the same, as in a picture, become one row
};

struct SummaryRow {
  std::string op_type;
  std::string op;
  int64_t repeats = 1;
  int64_t accumulate = 0;
  GroupFigures figures;  // of all repeats together
};

struct SummaryTable {
  std::vector<SummaryRow> rows;
  size_t left_out = 0;  // rows beyond max_rows, summed in the last one
  int depth = 0;        // kModule: the depth shown
};

// Aligned columns, human units, lines ending in '\n'.
std::string to_text(const SummaryTable& table);

}  // namespace shadowgraph
