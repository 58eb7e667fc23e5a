// Messages between the two processes, in 64-bit words.
#pragma once

#include <cstddef>
#include <cstdint>

namespace far {

constexpr int64_t kLoad = 0;  // length of the path, path; replies with a handle, or 0 if it cannot be loaded
constexpr int64_t kLaunch =
    1;  // handle, range, four lengths, operands, sizes, strides, scalars; replies 1 if an index is out of range
constexpr int64_t kLaunches = 2;  // no arguments; replies with their number
constexpr size_t kMostWords = 4096;

}  // namespace far
