// Walks over the instructions of a pickle and checks the sizes in them, which libtorch's reader allocates as stated.
// Internal to core/capture.
#pragma once

#include <string_view>

namespace shadowgraph {

// Throws Error for a length beyond the bytes that are left, and for a memo's number beyond all bytes. What is no
// instruction of protocols 2 to 4 is refused, too. Linear, and runs nothing.
void check_pickle_sizes(std::string_view pickle);

}  // namespace shadowgraph
