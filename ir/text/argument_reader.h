// Reads the arguments of a call in the text form: `(self=%1, other=0.5, dims=[1, 2])`. What ir/text/parser.cpp and
// patterns (shadowgraph/edit/pattern.h) share. docs/graph.md holds the grammar.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "ir/text/cursor.h"
#include "shadowgraph/graph.h"
#include "shadowgraph/graph/signature.h"

namespace shadowgraph {

class ArgumentReader {
 public:
  // Reads `%4`; with `forward_references`, also values that come later or are gone.
  using TakeValue = std::function<ValueId(bool forward_references)>;

  // Lists, strings and the like go into the pools of `graph`. All must outlive the reader.
  ArgumentReader(Cursor& cursor, Graph& graph, TakeValue take_value)
      : cursor_(cursor), graph_(graph), take_value_(std::move(take_value)) {}

  // All arguments of a call of `target`, parentheses included, by schema position, defaults filled in. Good until the
  // next call. Throws ParseError.
  std::span<const Argument> take_arguments(TargetId target, bool forward_references);
  // One, which the schema has as `type`.
  Argument take_argument(const FormalType& type, bool forward_references, int depth = 0);

 private:
  size_t position_of(TargetId target, std::string_view name, size_t next) const;
  Argument take_list(bool as_ints, const FormalType& type, bool forward_references, int depth);
  Argument take_ints();
  Argument take_word_argument(const FormalType& type, bool forward_references, int depth);

  Cursor& cursor_;
  Graph& graph_;
  TakeValue take_value_;
  // Scratch, kept to spare allocations.
  std::vector<Argument> arguments_;
  std::vector<bool> stated_;
  std::vector<Argument> stack_;  // elements of the lists being read, innermost last
  std::vector<int64_t> ints_;
};

}  // namespace shadowgraph
