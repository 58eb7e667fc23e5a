// The schedules that have names: one row each. All else that knows schedules reads it here: PipelineSchedule::named(),
// the search of plans, exports, emitted scripts, --help, and the table of docs/many-devices.md.
#pragma once

#include <span>
#include <string_view>

#include "shadowgraph/plan/pipeline.h"

namespace shadowgraph {

struct KnownSchedule {
  std::string_view name;
  std::string_view about;                                    // a line of the docs
  PipelineSchedule::Rows (*rows)(const PipelineSize& size);  // throws Error for sizes that it is not made for
  int32_t stages_per_rank = 0;                               // 0: as many as asked for, r, r+n, ..
  bool v_shaped = false;                                     // stages of rank r: r and 2n-1-r
  bool splits_backward = false;                              // into I and W, for some micro-batches at least
  std::string_view torch_class = {};                         // empty: torch reads its rows
  bool in_megatron = false;

  // The search of plans.
  bool searched = false;              // unless schedules are given
  int32_t least_stages_per_rank = 1;  // with fewer it is another schedule
  bool in_rounds = false;             // takes as many micro-batches as fill the last round
  int64_t steady_rounds = 5;          // after which a round takes as long as any; measured

  // torch's and torchtitan's name of it: "1F1B".
  std::string_view torch_name() const { return torch_class.substr(torch_class.empty() ? 0 : 8); }
};
std::span<const KnownSchedule> known_schedules();
// Throws Error.
const KnownSchedule& known_schedule(std::string_view name);

}  // namespace shadowgraph
