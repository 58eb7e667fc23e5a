// Writes one node as a Python expression over torch.ops, and collects what the expressions of a file need besides.
#pragma once

#include <functional>
#include <set>
#include <string>

#include "passes/codegen/code_plan.h"
#include "shadowgraph/export.h"
#include "shadowgraph/graph/signature.h"

namespace shadowgraph {

struct SHADOWGRAPH_API CodegenOptions;

class PythonCalls {
 public:
  using NameOf = std::function<std::string(uint32_t variable)>;

  PythonCalls(const CodePlan& plan, const CodegenOptions& options)
      : plan_(plan), graph_(*plan.graph), options_(options) {}

  // Throws CodegenError for what cannot be written.
  std::string call(uint32_t step, const NameOf& name_of);

  std::string device(c10::Device device) const;
  // The expression that makes it; throws CodegenError if its contents are not readable.
  std::string constant(ConstantId id) const;

  const std::set<std::string>& helpers() const { return helpers_; }
  const std::set<std::string>& libraries() const { return libraries_; }
  const std::set<std::string>& modules() const { return modules_; }  // of functions that the options name

 private:
  std::string argument(const Argument& argument, const FormalType& type);
  // Arguments as a call passes them.
  struct Arguments {
    std::vector<std::string> positional;
    std::vector<std::string> keywords;
  };
  Arguments arguments_of(NodeId node, bool all_by_position);
  std::string alias(NodeId node);
  std::string function_call(NodeId node, const Target& target);
  std::string operator_text(const Signature& signature);

  const CodePlan& plan_;
  const Graph& graph_;
  const CodegenOptions& options_;
  std::set<std::string> helpers_;    // "alias_of": functions at the head of the file
  std::set<std::string> libraries_;  // namespaces of operators that PyTorch does not bring
  std::set<std::string> modules_;
  // These are of the call that is being written.
  const NameOf* name_of_ = nullptr;
  uint32_t step_ = 0;
};

}  // namespace shadowgraph
