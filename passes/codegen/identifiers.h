// Names for generated code: of values, functions and members, good in C++ and in Python alike.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>

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

}  // namespace shadowgraph
