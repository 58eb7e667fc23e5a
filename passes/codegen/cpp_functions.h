// Writes the functions of generated C++ but for `run` itself, and the statements in them.
#pragma once

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "passes/codegen/code_names.h"
#include "passes/codegen/cpp_call.h"

namespace shadowgraph {

class CppFunctions {
 public:
  CppFunctions(const CodePlan& plan, const CodegenOptions& options, CppNeeds& needs)
      : plan_(plan), graph_(*plan.graph), options_(options), needs_(needs), calls_(plan, options, needs) {}

  // One for every block but the last, which is the whole; blocks with the same text share one. Those called come first.
  // Throws CodegenError for what cannot be written.
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

}  // namespace shadowgraph
