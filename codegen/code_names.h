// Identifiers for generated code that are valid in C++ and in Python.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>

#include "codegen/code_layout.h"

namespace shadowgraph {

// Returns an identifier of letters, digits and single underscores that starts with a letter: "transformer.h.0.ln_1"
// becomes transformer_h_0_ln_1, "" becomes "value". Avoids keywords of both languages and names used by generated code.
std::string identifier(std::string_view text);
// Like identifier(), but for a part of a name, where keywords are allowed.
std::string plain_identifier(std::string_view text);
// "shadowgraph::models::Gpt2BlockImpl" becomes gpt2_block; "Conv1D" becomes conv1d.
std::string function_identifier(std::string_view class_name);

// The names of one scope.
class Scope {
 public:
  // Returns `wanted` as an identifier, with suffix _2, _3, ... if it is taken.
  std::string take(std::string_view wanted);
  // Like take(), for a string that is an identifier already.
  std::string take_identifier(const std::string& wanted);

 private:
  std::unordered_map<std::string, int> taken_;
};

// Names of variables in one function: from the operator and the module path relative to the function's module, so that
// equal blocks have equal text and share a function.
class BlockNames {
 public:
  BlockNames(const CodeLayout& plan, const CodeBlock& block) : plan_(plan), block_(block) {}

  // Returns the variable's name, chosen on the first call.
  const std::string& of(uint32_t variable);
  void set(uint32_t variable, std::string name) { names_[variable] = std::move(name); }
  // Returns a new name for something else.
  std::string take(std::string_view wanted) { return scope_.take(wanted); }

 private:
  std::string wanted(uint32_t variable) const;
  std::string relative(std::string_view path) const;

  const CodeLayout& plan_;
  const CodeBlock& block_;
  Scope scope_;
  std::unordered_map<uint32_t, std::string> names_;
};

// "gpt2_block_backward"; "backward_part" for a part outside all modules.
std::string function_name(const CodeLayout& plan, const CodeBlock& block);
// "aten::_softmax.out" becomes softmax.
std::string short_operator_name(const std::string& target);

// By item of the block: the variables whose last use is there, except those that the block returns and those in `kept`.
std::vector<std::vector<uint32_t>> last_uses(const CodeLayout& plan, const CodeBlock& block,
                                             const std::vector<uint32_t>& kept);

}  // namespace shadowgraph
