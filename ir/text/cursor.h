// Line-based cursor over a text, with errors that show the position. Used by ir/text/parser.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/graph/graph.h"
#include "shadowgraph/graph/target.h"

namespace shadowgraph {

class Cursor {
 public:
  // A position that was read, for error messages.
  struct Place {
    const char* at = nullptr;
    const char* line_begin = nullptr;
    int line = 0;
  };

  Cursor(std::string_view text, std::string_view name)
      : name_(name), next_line_(text.data()), text_end_(text.data() + text.size()) {}

  // Goes to the start of the next line that is neither blank nor a comment; false at the end of the text.
  bool next_line();

  Place place() const { return {at_, line_begin_, line_}; }
  // The position of the next token.
  Place next_place() {
    skip_spaces();
    return place();
  }
  bool at_end() {
    skip_spaces();
    return at_ == line_end_;
  }
  char peek() {
    skip_spaces();
    return at_ == line_end_ ? '\0' : *at_;
  }
  // Consumes `c` if it comes next.
  bool eat(char c) {
    if (peek() != c || at_ == line_end_) return false;
    ++at_;
    return true;
  }
  // Consumes `word` if it comes next as a whole word.
  bool eat_word(std::string_view word);
  // Calls take_element() for each element of a list separated by commas, and consumes `close`. take_list() also consumes
  // `open`, and accepts an empty list.
  template <class F>
  void take_elements(char close, F&& take_element) {
    do {
      take_element();
    } while (eat(','));
    expect(close);
  }
  template <class F>
  void take_list(char open, char close, F&& take_element) {
    expect(open);
    if (!eat(close)) take_elements(close, take_element);
  }
  void expect(char c);
  void expect_word(std::string_view word);
  void expect_end();

  // Consumes a run of [A-Za-z0-9_.:]; may be empty.
  std::string_view take_name();
  // Consumes a run of [A-Za-z0-9_]; may be empty.
  std::string_view take_identifier();
  // Consumes `name=` and returns the name; returns "" and consumes nothing if the next token has another form.
  std::string_view take_argument_name();
  // Consumes the characters of a number: digits, letters, '.', '-', '+', and nan(...).
  std::string_view take_number();
  int64_t take_int();
  // Consumes a letter and a number: `s12`. `what` describes the expected token in errors.
  uint32_t take_id(char letter, std::string_view what);
  // Returns whether the next token is `letter` followed by a digit.
  bool at_id(char letter) { return peek() == letter && at_ + 1 < line_end_ && at_[1] >= '0' && at_[1] <= '9'; }
  std::string take_quoted();
  // Consumes the rest of the line.
  std::string_view take_rest();

  [[noreturn]] void fail(std::string_view what, std::string_view expected = {}) const {
    fail_at(place(), what, expected);
  }
  [[noreturn]] void fail_at(Place place, std::string_view what, std::string_view expected = {}) const;

 private:
  void skip_spaces() {
    while (at_ != line_end_ && (*at_ == ' ' || *at_ == '\t')) ++at_;
  }
  // Describes the text at the cursor for messages: "'foo'" or "the end of the line".
  std::string found() const;

  std::string_view name_;
  const char* next_line_;
  const char* text_end_;
  const char* at_ = nullptr;
  const char* line_begin_ = nullptr;
  const char* line_end_ = nullptr;
  int line_ = 0;
};

// Reads the arguments of a call in the text form, `(self=%1, other=0.5, dims=[1, 2])`, for ir/text/parser.cpp and
// patterns (shadowgraph/graph/edit.h).
class ArgumentReader {
 public:
  // Reads `%4`; with `forward_references`, also values that are defined later or erased.
  using TakeValue = std::function<ValueId(bool forward_references)>;

  // Lists, strings and the like are stored in the pools of `graph`. All must outlive the reader.
  ArgumentReader(Cursor& cursor, Graph& graph, TakeValue take_value)
      : cursor_(cursor), graph_(graph), take_value_(std::move(take_value)) {}

  // Reads all arguments of a call of `target`, including parentheses; returns them by schema position, with defaults
  // filled in. Valid until the next call. Throws ParseError.
  std::span<const Argument> take_arguments(TargetId target, bool forward_references);
  // Reads one argument of schema type `type`.
  Argument take_argument(const FormalType& type, bool forward_references, int depth = 0);

 private:
  size_t position_of(TargetId target, std::string_view name, size_t next) const;
  Argument take_list(bool as_ints, const FormalType& type, bool forward_references, int depth);
  Argument take_ints();
  Argument take_word_argument(const FormalType& type, bool forward_references, int depth);

  Cursor& cursor_;
  Graph& graph_;
  TakeValue take_value_;
  // Scratch, reused to avoid allocations.
  std::vector<Argument> arguments_;
  std::vector<bool> stated_;
  std::vector<Argument> stack_;  // elements of the lists being read, innermost last
  std::vector<int64_t> ints_;
};

}  // namespace shadowgraph
