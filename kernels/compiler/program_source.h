// Writes single expressions as C++. Internal to kernels/compiler.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/kernels/program.h"

namespace shadowgraph {

const char* cpp_type(c10::ScalarType type);     // what is computed with
const char* stored_type(c10::ScalarType type);  // what lies in memory

uint32_t arity(KernelOperation operation);
bool is_reduction(KernelOperation operation);
// Says whether storing a result is better than computing it again.
bool is_costly(KernelOperation operation);

// Writes an expression in terms of e0, e1 ...; `element` is the operand's element, for loads. It must not be a
// reduction.
std::string expression_text(const KernelProgram& program, const KernelExpression& expression,
                            const std::string& element);
// Writes what is stored. A value that is rounded to two bytes already is only cut.
std::string stored_text(const KernelProgram& program, const KernelStore& store);
// Says whether `dtype` (kBFloat16, kHalf) can hold an expression's value. That is so if it is read as `dtype` or
// rounded to it, or if negation or a choice makes it of such values.
bool is_rounded(const KernelProgram& program, uint32_t expression, c10::ScalarType dtype);

// Writes a kernel program as C++. Internal to kernels/compiler.

// Must change whenever the generated code does: it is part of every key.
constexpr int kGeneratorVersion = 4;
constexpr const char* kKernelSymbol = "shadowgraph_kernel";

// Returns one translation unit that includes nothing and defines kKernelSymbol (KernelFunction). Its length is linear
// in the program's, except that cheap expressions which several reductions need are computed again after each.
std::string program_source(const KernelProgram& program);

// Returns what it is compiled with: optimisation, processor, and how it computes.
const std::vector<std::string>& kernel_flags();

// Holds the C++ that stands before every generated kernel. Internal to kernels/compiler.

// These functions have no branches and no calls, so that the compiler makes vectors of loops that call them.
// docs/kernels.md lists their errors against the exact value, in units in the last place.
std::string_view vector_math_source();

}  // namespace shadowgraph
