// Single expressions as C++. Internal to kernels/compiler.
#pragma once

#include <string>

#include "shadowgraph/kernels/program.h"

namespace shadowgraph {

const char* cpp_type(c10::ScalarType type);     // what is computed with
const char* stored_type(c10::ScalarType type);  // what lies in memory

uint32_t arity(KernelOperation operation);
bool is_reduction(KernelOperation operation);
// Worth storing rather than computing again.
bool is_costly(KernelOperation operation);

// Of e0, e1 ...; `element`: the operand's element, for loads. No reductions.
std::string expression_text(const KernelProgram& program, const KernelExpression& expression,
                            const std::string& element);
// What is stored; a value that is rounded to two bytes already is only cut.
std::string stored_text(const KernelProgram& program, const KernelStore& store);
// An expression whose value `dtype` (kBFloat16, kHalf) can hold: what is read as it or rounded to it, and what negation or
// a choice makes of such.
bool is_rounded(const KernelProgram& program, uint32_t expression, c10::ScalarType dtype);

}  // namespace shadowgraph
