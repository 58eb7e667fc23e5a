// User-defined functions that a graph may call (TargetKind::kFunction): fused kernels, opaque leaf modules.
//
// A graph refers to a function by its schema, as for operators; its implementation is registered here, per process. The
// alias annotations of the schema are trusted by analyses and passes.
//
//     register_function("my::add_relu(Tensor a, Tensor b) -> Tensor",
//                       [](auto arguments) { return results(at::empty_like(arguments[0].toTensor())); },
//                       [](auto arguments) {
//                         return results((arguments[0].toTensor() + arguments[1].toTensor()).relu());
//                       });
//
// Registering a name again replaces the function. Thread-safe; runs in progress keep using the old one.
#pragma once

#include <ATen/core/ivalue.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/target.h"

namespace SHADOWGRAPH_API shadowgraph {

// Takes one IValue per schema argument and returns one per schema return.
using FunctionKernel = std::function<std::vector<c10::IValue>(std::span<const c10::IValue> arguments)>;

template <class... Values>
std::vector<c10::IValue> results(Values&&... values) {
  return {c10::IValue(std::forward<Values>(values))...};
}

struct RegisteredFunction {
  std::string schema_text;  // as printed by Target::schema_text()
  // Runs on fake or meta tensors: returns results with the right geometry and aliasing, without reading data.
  FunctionKernel shape_rule;
  FunctionKernel kernel;  // run on real tensors; may be empty
};

// Throws ParseError if `schema_text` is not a schema, and Error if there is no shape rule.
void register_function(const std::string& schema_text, FunctionKernel shape_rule, FunctionKernel kernel = {});

// Returns the function registered with the target's name and schema, or nullptr.
std::shared_ptr<const RegisteredFunction> find_function(const Target& target);
// Returns the function by name ("my::add_relu"), regardless of its schema.
std::shared_ptr<const RegisteredFunction> find_function(const std::string& name);

}  // namespace shadowgraph
