// C++ from a kernel program. Internal to kernels/compiler.
#pragma once

#include <string>
#include <vector>

#include "shadowgraph/kernels/program.h"

namespace shadowgraph {

// Changes with whatever changes the code that comes out: part of every key.
constexpr int kGeneratorVersion = 4;
constexpr const char* kKernelSymbol = "shadowgraph_kernel";

// One translation unit that includes nothing and defines kKernelSymbol (KernelFunction). Linear, but for reductions:
// cheap expressions that several of them need are computed again after each.
std::string program_source(const KernelProgram& program);

// What it is compiled with: optimisation, processor, and how it computes.
const std::vector<std::string>& kernel_flags();

}  // namespace shadowgraph
