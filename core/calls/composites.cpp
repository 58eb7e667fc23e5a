#include "core/calls/composites.h"

#include "core/dispatch/operator_info.h"

namespace shadowgraph {

bool runs_as_others(const c10::OperatorHandle& op) { return OperatorInfo::of(op).route == Route::kComposite; }

}  // namespace shadowgraph
