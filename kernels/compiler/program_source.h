// Generates C++ from kernel programs. Internal to kernels/compiler.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/kernels/program.h"

namespace shadowgraph {

const char* cpp_type(c10::ScalarType type);     // type of computation
const char* stored_type(c10::ScalarType type);  // type in memory

uint32_t arity(KernelOperation operation);
bool is_reduction(KernelOperation operation);
// Returns whether storing a result is cheaper than recomputing it.
bool is_costly(KernelOperation operation);

// Returns an expression in terms of e0, e1 ...; `element` is the operand's element, for loads. Must not be a reduction.
std::string expression_text(const KernelProgram& program, const KernelExpression& expression,
                            const std::string& element);
// Returns the stored value. A value that is already rounded to two bytes is only truncated.
std::string stored_text(const KernelProgram& program, const KernelStore& store);
// Returns whether the value of an expression is exactly representable in `dtype` (kBFloat16, kHalf): it is loaded as or
// rounded to `dtype`, or a negation or selection of such values.
bool is_rounded(const KernelProgram& program, uint32_t expression, c10::ScalarType dtype);

// Part of every cache key: must change whenever the generated code does.
constexpr int kGeneratorVersion = 4;
constexpr const char* kKernelSymbol = "shadowgraph_kernel";

// Returns a translation unit without includes that defines kKernelSymbol (KernelFunction). Linear in the program,
// except that cheap expressions used by several reductions are recomputed after each.
std::string program_source(const KernelProgram& program);

// Returns the compiler flags: optimization, target processor and floating-point mode.
const std::vector<std::string>& kernel_flags();

// C++ source prepended to every generated kernel. Internal to kernels/compiler.

// These functions have no branches and no calls, so that loops that call them are vectorized. docs/kernels.md lists
// their errors in units in the last place.
std::string_view vector_math_source();

}  // namespace shadowgraph
