// The table of named pipeline schedules. PipelineSchedule::named(), the plan search, exports, generated scripts, --help
// and the table in docs/many-devices.md are derived from it.
#pragma once

#include <span>
#include <string_view>

#include "shadowgraph/plan/pipeline.h"

namespace shadowgraph {

struct KnownSchedule {
  std::string_view name;
  std::string_view about;                                    // one line for the docs
  PipelineSchedule::Rows (*rows)(const PipelineSize& size);  // throws Error for unsupported sizes
  int32_t stages_per_rank = 0;                               // 0: as requested; rank r has stages r, r+n, ...
  bool v_shaped = false;                                     // rank r has stages r and 2n-1-r
  bool splits_backward = false;                              // into I and W, at least for some micro-batches
  std::string_view torch_class = {};                         // empty: exported to torch as CSV
  bool in_megatron = false;

  // Used by the plan search.
  bool searched = false;            // by default
  int32_t min_stages_per_rank = 1;  // with fewer it equals another schedule
  bool in_rounds = false;           // needs full rounds of micro-batches
  int64_t steady_rounds = 5;        // rounds until it is periodic; measured

  // Name in torch and torchtitan: "1F1B".
  std::string_view torch_name() const { return torch_class.substr(torch_class.empty() ? 0 : 8); }
};
std::span<const KnownSchedule> known_schedules();
const KnownSchedule& known_schedule(std::string_view name);

}  // namespace shadowgraph
