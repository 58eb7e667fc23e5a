// Names for generated code: of values, functions and members, good in C++ and in Python alike.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>

#include "codegen/code_plan.h"

namespace shadowgraph {

// Letters, digits and single underscores, beginning with a letter: "transformer.h.0.ln_1" gives transformer_h_0_ln_1.
// "" gives "value". No keyword of either language, and none of the names that generated code uses itself.
std::string identifier(std::string_view text);
// The same where keywords do not matter: as part of a name.
std::string plain_identifier(std::string_view text);
// "shadowgraph::models::Gpt2BlockImpl" gives gpt2_block; "Conv1D" gives conv1d.
std::string function_identifier(std::string_view class_name);

// The names of one scope.
class Scope {
 public:
  // `wanted` as an identifier; with _2, _3, ... if it is taken.
  std::string take(std::string_view wanted);
  // The same for what is an identifier.
  std::string take_identifier(const std::string& wanted);

 private:
  std::unordered_map<std::string, int> taken_;
};

// What variables and functions of generated code are called.

// The names of variables in one function: from the module path, as seen from the function's own module, and the
// operator. So blocks that are alike have the same text, and become one function.
class BlockNames {
 public:
  BlockNames(const CodePlan& plan, const CodeBlock& block) : plan_(plan), block_(block) {}

  // Gives the name, and takes one at the first call for a variable.
  const std::string& of(uint32_t variable);
  bool has(uint32_t variable) const { return names_.contains(variable); }
  void set(uint32_t variable, std::string name) { names_[variable] = std::move(name); }
  // A name for something else.
  std::string take(std::string_view wanted) { return scope_.take(wanted); }

 private:
  std::string wanted(uint32_t variable) const;
  std::string relative(std::string_view path) const;

  const CodePlan& plan_;
  const CodeBlock& block_;
  Scope scope_;
  std::unordered_map<uint32_t, std::string> names_;
};

// "gpt2_block_backward"; "backward_part" for a part of what is in no module.
std::string function_name(const CodePlan& plan, const CodeBlock& block);
// "aten::_softmax.out" gives softmax.
std::string short_operator_name(const std::string& target);

// By item of the block: which variables are read there for the last time. Those that the block gives back, or that are
// in `kept`, are not among them.
std::vector<std::vector<uint32_t>> last_uses(const CodePlan& plan, const CodeBlock& block,
                                             const std::vector<uint32_t>& kept);

}  // namespace shadowgraph
