// What the two processes say to each other, in words of 64 bits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace far {

constexpr int64_t kLoad = 0;  // bytes of the path, the path; comes back: a handle, 0 if it cannot be loaded
constexpr int64_t kLaunch =
    1;  // handle, range, four lengths, operands, sizes, strides, scalars; 1 if an index is wrong
constexpr int64_t kLaunches = 2;  // nothing; how many there were
constexpr size_t kMostWords = 4096;

}  // namespace far
