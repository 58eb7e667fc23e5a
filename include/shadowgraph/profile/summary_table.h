// The analyzer's table: what each module, composite call or operator costs, one row each, in program order.
//
//   Op type      module class, "composite" or "operator"; "x12" if the row stands for twelve equal, adjacent ones
//   Op           module path, or operator with the path of the module it ran in
//   Accumulate   bytes saved for backward so far: the running sum of Saved, which ends at saved_activation_bytes
//   Saved        bytes this row is the first to save (exact definitions of this and the next: GroupFigures)
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
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/profile/group_figures.h"

namespace SHADOWGRAPH_API shadowgraph {

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
