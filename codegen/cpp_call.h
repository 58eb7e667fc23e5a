// Writes generated C++: nodes as expressions, functions and their statements, small constants and helpers.
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
  std::vector<Argument> arguments_with_device(NodeId node, const Signature& formals);

  const CodePlan& plan_;
  const Graph& graph_;
  const CodegenOptions& options_;
  CppNeeds& needs_;
  const NameOf* name_of_ = nullptr;
  uint32_t step_ = 0;
};

// Writes the functions of generated C++ but for `run` itself, and the statements in them.

class CppFunctions {
 public:
  CppFunctions(const CodePlan& plan, const CodegenOptions& options, CppNeeds& needs)
      : plan_(plan), graph_(*plan.graph), options_(options), needs_(needs), calls_(plan, options, needs) {}

  // One for every block but the last, which is the whole; blocks with the same text share one. Those called come first.
  // Throws UnsupportedError for what cannot be written.
  std::string write_all();
  // The statements of a block, after write_all. `kept`: variables to be there at the end besides the block's outputs.
  std::string body_of(const CodeBlock& block, BlockNames& names, const std::vector<uint32_t>& kept);

  int64_t written() const { return static_cast<int64_t>(written_.size()); }
  int64_t called() const { return static_cast<int64_t>(functions_.size()) - 1; }
  CppCalls& calls() { return calls_; }

 private:
  struct Function {
    std::string name;
    std::string result;  // the struct it gives; "" for none or one output
  };
  struct Written {
    Function function;
    std::string before;               // the struct of its results
    std::string text;                 // signature and body
    std::vector<std::string> places;  // module paths of the blocks that share it, for a comment above it
  };

  // C++ types, functions and what stands between them.
  std::string type_of(uint32_t variable) const;
  void write_function(uint32_t number);
  std::string place(const CodeBlock& block) const;
  void grad_mode(uint32_t step, std::optional<bool>& mode, std::string& text) const;
  std::string drops(const std::vector<std::string>& names);
  // Statements. Each ends the lives of what it is the last to read, by std::move into the call or a drop behind it.
  std::string block_call(uint32_t number, BlockNames& names, const std::vector<uint32_t>& last);
  std::string checkpoint_call(const CodeBlock& block, const Function& function, BlockNames& names,
                              const std::vector<std::string>& arguments, const std::vector<std::string>& results);
  std::string statement(uint32_t number, BlockNames& names, const std::vector<uint32_t>& last, bool at_end);
  std::string from_ivalue(const std::string& text, uint32_t variable) const;
  std::string list_elements(const CodeStep& step, const std::string& list, const Argument& result,
                            const std::vector<bool>& wanted, size_t& flat, BlockNames& names);
  std::string stack_results(uint32_t number, const CppCalls::Call& call, BlockNames& names,
                            const std::vector<bool>& wanted);
  std::string results_of(uint32_t number, const CppCalls::Call& call, BlockNames& names,
                         const std::vector<bool>& wanted, std::vector<std::string>& bound);
  std::string operand(uint32_t number, size_t position, BlockNames& names);

  const CodePlan& plan_;
  const Graph& graph_;
  const CodegenOptions& options_;
  CppNeeds& needs_;
  CppCalls calls_;
  std::vector<Function> functions_;                  // by block
  std::vector<Written> written_;                     // each text once, in the order of the file
  std::unordered_map<std::string, size_t> by_text_;  // types, results and body: place in written_
  Scope function_names_;
};

// Small constants as C++ text.

// The function that makes it, bit for bit, anew at each call. Throws UnsupportedError if its contents are not readable.
std::string embedded_constant(const Graph& graph, ConstantId id);

// The functions that generated C++ carries with it, each written only into files that call it.

// Their text in a fixed order, with what they need of one another. `headers` receives what they include.
std::string cpp_helpers(std::set<std::string> names, std::set<std::string>& headers);

}  // namespace shadowgraph
