// Writes one node as a C++ expression, and the helpers that generated files carry with them.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "codegen/code_names.h"
#include "codegen/code_plan.h"
#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/graph/target.h"

namespace shadowgraph {

struct SHADOWGRAPH_API CodegenOptions;

// What calls needed besides the operators: for the head of the file. Ordered, so that the same graph gives the same
// text.
struct CppNeeds {
  std::set<std::string> headers;    // "ATen/ops/add.h"
  std::set<std::string> helpers;    // "number", see cpp_helpers.h
  std::set<std::string> devices;    // "cuda:0"
  std::set<std::string> libraries;  // namespaces of operators called through the dispatcher
  std::set<uint32_t> constants;     // embedded ones, by ConstantId
};

class CppCalls {
 public:
  // Gives the name of a variable in the function being written.
  using NameOf = std::function<std::string(uint32_t variable)>;

  CppCalls(const CodePlan& plan, const CodegenOptions& options, CppNeeds& needs)
      : plan_(plan), graph_(*plan.graph), options_(options), needs_(needs) {}

  // What the call gives: how its results are to be taken from the expression. kStack: a vector of IValues, as calls
  // through the dispatcher give.
  enum class Returns : uint8_t { kNothing, kOne, kTuple, kStack };
  struct Call {
    std::string expression;
    Returns returns = Returns::kOne;
  };
  // Throws UnsupportedError for what cannot be written.
  Call call(uint32_t step, const NameOf& name_of);

  // "kCuda0": a constant of the file for a device of the graph.
  std::string device(c10::Device device);
  static std::string constant_name(ConstantId id) { return "embedded_constant_" + std::to_string(id.index); }

 private:
  static Returns returns_of(const Signature& signature);
  // Forms of a call.
  Call function_call(uint32_t step, const Target& target);
  Call call_by_schema(const std::string& callee, const Target& target);
  Call operator_call(uint32_t step, const Target& target);
  Call boxed_call(const std::string& callee, const Target& target, uint32_t step);
  Call alias(uint32_t step);
  // Arguments, by the type that the schema asks for (cpp_arguments.cpp).
  std::string argument(const Argument& argument, const FormalType& type, bool typed);
  std::string list(const Argument& argument, const FormalType& type, bool typed);
  std::string ivalue(const Argument& argument, const FormalType& type);
  std::string value(ValueId value, TypeClass wanted);
  std::string tensor_options(std::span<const Argument> four);
  std::string constant(ConstantId id);

  const CodePlan& plan_;
  const Graph& graph_;
  const CodegenOptions& options_;
  CppNeeds& needs_;
  const NameOf* name_of_ = nullptr;
  uint32_t step_ = 0;
};

// The functions that generated C++ carries with it, each written only into files that call it.

// Their text in a fixed order, with what they need of one another. `headers` receives what they include.
std::string cpp_helpers(std::set<std::string> names, std::set<std::string>& headers);

}  // namespace shadowgraph
