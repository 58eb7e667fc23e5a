// Functions of the user's own that a graph may call (TargetKind::kFunction): fused kernels, opaque leaf modules.
//
// A graph names a function by its schema, as it names operators; what it does is registered here, for this process.
// The schema's alias annotations are its contract: effects, slices and passes believe them.
//
//     register_function("my::add_relu(Tensor a, Tensor b) -> Tensor",
//                       [](auto arguments) { return results(at::empty_like(arguments[0].toTensor())); },
//                       [](auto arguments) { return results((arguments[0].toTensor() + arguments[1].toTensor()).relu()); });
//
// Registering a name again replaces what was there. Thread-safe; a run that has begun keeps what it found.
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

// Takes one IValue per schema argument and gives one per schema return.
using FunctionKernel = std::function<std::vector<c10::IValue>(std::span<const c10::IValue> arguments)>;

template <class... Values>
std::vector<c10::IValue> results(Values&&... values) {
  return {c10::IValue(std::forward<Values>(values))...};
}

struct RegisteredFunction {
  std::string schema_text;  // as Target::schema_text() prints it
  // Run on fake or meta tensors: gives results of the right dtype, sizes, strides and aliasing; reads no data.
  FunctionKernel shape_rule;
  FunctionKernel kernel;  // run on real tensors; may be empty
};

// Throws ParseError if `schema_text` is not a schema, and Error if there is no shape rule.
void register_function(const std::string& schema_text, FunctionKernel shape_rule, FunctionKernel kernel = {});

// What is registered under the target's name and with its very schema, or nullptr.
std::shared_ptr<const RegisteredFunction> find_function(const Target& target);
// The same by name ("my::add_relu"), whatever its schema.
std::shared_ptr<const RegisteredFunction> find_function(const std::string& name);
// Names, sorted.
std::vector<std::string> registered_functions();

}  // namespace shadowgraph
