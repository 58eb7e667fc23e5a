// Generates the C++ expression of a node, and the helper functions of generated files.
#pragma once

#include <functional>
#include <set>
#include <string>

#include "codegen/code_layout.h"
#include "codegen/code_names.h"
#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/graph/target.h"

namespace shadowgraph {

struct SHADOWGRAPH_API CodegenOptions;

// Requirements of the generated calls, for the head of the file. Ordered, so that the output is deterministic.
struct CppNeeds {
  std::set<std::string> headers;    // "ATen/ops/add.h"
  std::set<std::string> helpers;    // "number", see cpp_helpers.h
  std::set<std::string> devices;    // "cuda:0"
  std::set<std::string> libraries;  // namespaces of operators called through the dispatcher
  std::set<uint32_t> constants;     // embedded constants, by ConstantId
};

class CppCalls {
 public:
  // Returns the name of a variable in the current function.
  using NameOf = std::function<std::string(uint32_t variable)>;

  CppCalls(const CodeLayout& plan, const CodegenOptions& options, CppNeeds& needs)
      : plan_(plan), graph_(*plan.graph), options_(options), needs_(needs) {}

  // Form of a call's results. kStack: a vector of IValues, as returned by calls through the dispatcher.
  enum class Returns : uint8_t { kNothing, kOne, kTuple, kStack };
  struct Call {
    std::string expression;
    Returns returns = Returns::kOne;
  };
  // Throws UnsupportedError for nodes that cannot be expressed.
  Call call(uint32_t step, const NameOf& name_of);

  // "kCuda0": the name of the file's constant for a device.
  std::string device(c10::Device device);
  static std::string constant_name(ConstantId id) { return "embedded_constant_" + std::to_string(id.index); }

 private:
  static Returns returns_of(const Signature& signature);
  Call function_call(uint32_t step, const Target& target);
  Call call_by_schema(const std::string& callee, const Target& target);
  Call operator_call(uint32_t step, const Target& target);
  Call boxed_call(const std::string& callee, const Target& target, uint32_t step);
  Call alias(uint32_t step);
  std::string argument(const Argument& argument, const FormalType& type, bool typed);
  std::string list(const Argument& argument, const FormalType& type, bool typed);
  std::string ivalue(const Argument& argument, const FormalType& type);
  std::string value(ValueId value, TypeClass wanted);
  std::string tensor_options(std::span<const Argument> four);
  std::string constant(ConstantId id);

  const CodeLayout& plan_;
  const Graph& graph_;
  const CodegenOptions& options_;
  CppNeeds& needs_;
  const NameOf* name_of_ = nullptr;
  uint32_t step_ = 0;
};

// Returns their text in a fixed order, with the helpers that they call. Adds their includes to `headers`.
std::string cpp_helpers(std::set<std::string> names, std::set<std::string>& headers);

}  // namespace shadowgraph
