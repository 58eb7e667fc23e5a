// Writes single expressions as C++. Internal to kernels/compiler.
#pragma once

#include <string>

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

}  // namespace shadowgraph
