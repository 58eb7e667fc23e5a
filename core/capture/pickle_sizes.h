// Walks over the instructions of a pickle and checks the sizes in them, which libtorch's reader allocates as stated.
// Internal to core/capture.
#pragma once

#include <string_view>

namespace shadowgraph {

// Throws Error for a length that is more than the bytes that are left, a number of a memo that is more than all bytes,
// and for what is no instruction of protocol 2 to 4. Linear, and runs nothing.
void check_pickle_sizes(std::string_view pickle);

}  // namespace shadowgraph
