// Says in which way fake tensors run an operator, for people: pages, `shadowgraph operator`, the test of coverage.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>

#include "ir/operators/operator_forms.h"

namespace shadowgraph {

struct WayToRun {
  enum class Kind : uint8_t {
    kRule,           // a shape rule of its own
    kDecomposition,  // its parts are run, each by its own way
    kOutForm,        // as `form`, the results resized to what that gives
    kMeta,           // libtorch's Meta kernel
    kDataDependent,  // DataDependentError, or a size given by the user
    kNone,           // NoRuleError
  };
  Kind kind = Kind::kNone;
  bool takes_sizes = false;         // kDataDependent: it has a rule that asks for a size
  const FreshForm* form = nullptr;  // of an out= operator without a way of its own: what it is run as, if that can be
};

WayToRun way_to_run(const c10::OperatorHandle& op);

}  // namespace shadowgraph
