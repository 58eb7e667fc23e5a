// What kernel a node stands for, where it is not the operator's own: time models read it.
#pragma once

#include <string_view>

namespace shadowgraph {

inline constexpr std::string_view kKernelNote = "kernel";
// One that a compiler makes: it moves what it must, at the pace of the memory.
inline constexpr std::string_view kCompiledKernel = "compiled";
// None: a copy between device and host by an engine of its own, beside kernels.
inline constexpr std::string_view kCopyEngine = "copy engine";

}  // namespace shadowgraph
