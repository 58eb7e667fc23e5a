// Whether operators came or went in this process: what is found by searching them is good until then.
#pragma once

#include <cstdint>

namespace shadowgraph {

// Changes whenever an operator is registered with the dispatcher or leaves it. Read it before the search whose answer
// is to be kept. Thread-safe.
uint64_t operator_generation();

}  // namespace shadowgraph
