// One node as a Python expression over torch.ops.
#pragma once

#include <functional>
#include <set>
#include <string>

#include "ir/formals.h"
#include "passes/codegen/code_plan.h"

namespace shadowgraph {

struct CodegenOptions;

class PythonCalls {
 public:
  using NameOf = std::function<std::string(uint32_t variable)>;

  PythonCalls(const CodePlan& plan, const CodegenOptions& options)
      : plan_(plan), graph_(*plan.graph), options_(options) {}

  // Throws CodegenError for what cannot be written.
  std::string call(uint32_t step, const NameOf& name_of);

  std::string device(c10::Device device) const;
  static std::string dtype(c10::ScalarType dtype);
  static std::string ints(std::span<const int64_t> list);  // [2, 3]
  static std::string quoted(std::string_view text);
  static std::string number(double value);
  // The expression that makes it; throws CodegenError if its contents are not readable.
  std::string constant(ConstantId id) const;
  [[noreturn]] void fail(NodeId node, const std::string& what) const;

  const std::set<std::string>& helpers() const { return helpers_; }
  const std::set<std::string>& libraries() const { return libraries_; }

 private:
  std::string argument(const Argument& argument, const FormalType& type);
  std::string operator_text(const c10::FunctionSchema& schema);

  const CodePlan& plan_;
  const Graph& graph_;
  const CodegenOptions& options_;
  Formals formals_;
  std::set<std::string> helpers_;
  std::set<std::string> libraries_;
  const NameOf* name_of_ = nullptr;
  uint32_t step_ = 0;
};

}  // namespace shadowgraph
