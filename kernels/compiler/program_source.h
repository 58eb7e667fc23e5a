// Writes a kernel program as C++. Internal to kernels/compiler.
#pragma once

#include <string>
#include <vector>

#include "shadowgraph/kernels/program.h"

namespace shadowgraph {

// Must change whenever the generated code does: it is part of every key.
constexpr int kGeneratorVersion = 4;
constexpr const char* kKernelSymbol = "shadowgraph_kernel";

// Returns one translation unit that includes nothing and defines kKernelSymbol (KernelFunction). Its length is linear
// in the program's, except that cheap expressions which several reductions need are computed again after each.
std::string program_source(const KernelProgram& program);

// Returns what it is compiled with: optimisation, processor, and how it computes.
const std::vector<std::string>& kernel_flags();

}  // namespace shadowgraph
