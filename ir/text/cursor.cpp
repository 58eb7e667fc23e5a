// Points into the text and copies only quoted strings, so reading costs about 2 us per node.
#include "ir/text/cursor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "ir/operators/schema_changes.h"
#include "ir/text/words.h"
#include "support/text.h"

namespace shadowgraph {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_identifier(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_'; }
bool is_name(char c) { return is_identifier(c) || c == '.' || c == ':'; }
bool is_number(char c) { return is_identifier(c) || c == '.' || c == '-' || c == '+'; }

template <class P>
std::string_view take_while(const char*& at, const char* end, P&& is_in) {
  const char* begin = at;
  while (at != end && is_in(*at)) ++at;
  return {begin, static_cast<size_t>(at - begin)};
}

}  // namespace

bool Cursor::next_line() {
  while (next_line_ != text_end_) {
    line_begin_ = at_ = next_line_;
    ++line_;
    // memchr is the fastest way to the next line.
    const auto* newline =
        static_cast<const char*>(std::memchr(line_begin_, '\n', static_cast<size_t>(text_end_ - line_begin_)));
    line_end_ = newline != nullptr ? newline : text_end_;
    next_line_ = newline != nullptr ? newline + 1 : text_end_;
    // Windows line ends are accepted, but never written.
    if (line_end_ != line_begin_ && line_end_[-1] == '\r') --line_end_;
    if (peek() != '#' && at_ != line_end_) return true;
  }
  if (line_ == 0) line_ = 1;  // empty text: errors refer to its first line
  line_begin_ = line_end_ = at_ = text_end_;
  return false;
}

bool Cursor::eat_word(std::string_view word) {
  skip_spaces();
  const auto left = static_cast<size_t>(line_end_ - at_);
  if (left < word.size() || std::memcmp(at_, word.data(), word.size()) != 0) return false;
  // The word must end here: "of" is not a prefix of "offset".
  if (left > word.size() && is_identifier(at_[word.size()])) return false;
  at_ += word.size();
  return true;
}

// These report what was found and expected, so that callers need no messages.
void Cursor::expect(char c) {
  if (!eat(c)) fail(found(), fmt::format("'{}'", c));
}

void Cursor::expect_word(std::string_view word) {
  if (!eat_word(word)) fail(found(), fmt::format("'{}'", word));
}

void Cursor::expect_end() {
  if (!at_end()) fail(found(), "the end of the line");
}

std::string_view Cursor::take_name() {
  skip_spaces();
  return take_while(at_, line_end_, is_name);
}

std::string_view Cursor::take_identifier() {
  skip_spaces();
  return take_while(at_, line_end_, is_identifier);
}

std::string_view Cursor::take_argument_name() {
  skip_spaces();
  const char* begin = at_;
  const std::string_view name = take_while(at_, line_end_, is_identifier);
  if (!name.empty() && eat('=')) return name;
  at_ = begin;
  return {};
}

// Accepts a superset of numbers; parse_number and parse_float validate it.
std::string_view Cursor::take_number() {
  skip_spaces();
  const char* begin = at_;
  take_while(at_, line_end_, is_number);
  if (at_ - begin == 3 && std::string_view(begin, 3) == "nan" && at_ != line_end_ && *at_ == '(') {
    ++at_;
    take_while(at_, line_end_, is_identifier);
    if (at_ != line_end_ && *at_ == ')') ++at_;
  }
  return {begin, static_cast<size_t>(at_ - begin)};
}

int64_t Cursor::take_int() {
  const char c = peek();
  if (c != '-' && !is_digit(c)) fail(found(), "an integer");
  const Place start = place();
  const auto value = parse_number<int64_t>(take_number());
  if (!value) fail_at(start, "a number that does not fit a 64-bit integer", "an integer");
  return *value;
}

// Ids have no sign and no trailing letters: %4x is an error, not %4.
uint32_t Cursor::take_id(char letter, std::string_view what) {
  if (!at_id(letter)) fail(found(), fmt::format("{} such as {}0", what, letter));
  const Place start = place();
  ++at_;
  uint64_t number = 0;
  while (at_ != line_end_ && is_digit(*at_)) {
    // Saturates instead of overflowing: so large a number is rejected as unknown later.
    number = std::min<uint64_t>(number * 10 + static_cast<uint64_t>(*at_++ - '0'), UINT32_MAX);
  }
  if (at_ != line_end_ && is_identifier(*at_)) fail_at(start, "letters after the number", what);
  return static_cast<uint32_t>(number);
}

std::string Cursor::take_quoted() {
  if (peek() != '"') fail(found(), "a quoted string");
  const Place start = place();
  const char* begin = ++at_;
  bool escaped = false;
  while (at_ != line_end_ && *at_ != '"') {
    if (*at_ == '\\') {
      escaped = true;
      if (++at_ == line_end_) break;
    }
    ++at_;
  }
  if (at_ == line_end_) fail_at(start, "an unterminated string", "a closing '\"' on the same line");
  const std::string_view between(begin, static_cast<size_t>(at_ - begin));
  ++at_;
  if (!escaped) return std::string(between);
  auto text = unquote(between);
  if (!text)
    fail_at(start, "a string with an invalid escape", "\\\" \\\\ \\n \\t \\r or \\x and two hexadecimal digits");
  return std::move(*text);
}

std::string_view Cursor::take_rest() {
  skip_spaces();
  const std::string_view rest(at_, static_cast<size_t>(line_end_ - at_));
  at_ = line_end_;
  return rest;
}

std::string Cursor::found() const {
  if (at_ == line_end_) return line_begin_ == text_end_ ? "the end of the text" : "the end of the line";
  const char* end = at_;
  take_while(end, std::min(line_end_, at_ + 40), is_name);
  if (end == at_) ++end;
  std::string text;
  append_quoted(text, std::string_view(at_, static_cast<size_t>(end - at_)));
  return "found " + text;
}

// The message shows the line with a caret below the position, as compilers do. Non-printable bytes are shown as spaces,
// which keeps the caret in its column and cannot affect a terminal.
void Cursor::fail_at(Place place, std::string_view what, std::string_view expected) const {
  constexpr size_t kBefore = 100;
  constexpr size_t kAfter = 60;
  const auto offset = static_cast<size_t>(place.at - place.line_begin);
  const char* line_end = std::find(place.at, text_end_, '\n');
  // A line may be megabytes long: show only the surroundings of the position.
  const size_t skipped = offset > kBefore ? offset - kBefore : 0;
  std::string shown(
      place.line_begin + skipped,
      std::min<size_t>(kAfter + offset - skipped, static_cast<size_t>(line_end - place.line_begin) - skipped));
  for (char& c : shown) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) c = ' ';
  }
  std::string message = fmt::format("{}:{}:{}: {}", name_, place.line, offset + 1, what);
  if (!expected.empty()) message += fmt::format(", expected {}", expected);
  const std::string_view dots = skipped != 0 ? "..." : "";
  message += fmt::format("\n  {}{}\n  {:>{}}", dots, shown, '^', dots.size() + offset - skipped + 1);
  throw ParseError(message, place.line, static_cast<int>(offset + 1));
}

// Returns the position of an argument in the schema of `target`; past the last if there is none of this name.
size_t ArgumentReader::position_of(TargetId target, std::string_view name, size_t next) const {
  const auto& formals = graph_.target(target).signature().arguments;
  const auto search = [&](size_t from, std::string_view wanted) {
    while (from < formals.size() && formals[from].name != wanted) ++from;
    return from;
  };
  // Nearly always the next one or a few further, when those in between have their defaults.
  size_t position = search(next, name);
  if (position == formals.size()) position = search(0, name);
  if (position == formals.size()) position = search(0, argument_in_this_libtorch(graph_.target(target), name));
  return position;
}

std::span<const Argument> ArgumentReader::take_arguments(TargetId target, bool forward_references) {
  const Signature& formals = graph_.target(target).signature();
  arguments_.assign(formals.arguments.size(), Argument());
  stated_.assign(formals.arguments.size(), false);
  size_t next = 0;
  cursor_.take_list('(', ')', [&] {
    const Cursor::Place place = cursor_.next_place();
    const std::string_view name = cursor_.take_argument_name();
    if (!name.empty()) {
      const size_t position = position_of(target, name, next);
      if (position == formals.arguments.size()) {
        std::string what = "unknown argument ";
        append_quoted(what, name);
        cursor_.fail_at(place, what, "one of " + graph_.target(target).schema_text());
      }
      // Otherwise the later one would silently win.
      if (stated_[position]) cursor_.fail_at(place, "a repeated argument", "each argument once");
      stated_[position] = true;
      arguments_[position] = take_argument(formals.arguments[position].type, forward_references, 0);
      next = position + 1;
    } else if (formals.variadic_arguments) {
      arguments_.push_back(take_argument(FormalType(), forward_references, 0));
    } else {
      cursor_.fail_at(place, "an argument without a name", "name=value");
    }
  });
  for (size_t i = 0; i < formals.arguments.size(); ++i) {
    if (stated_[i]) continue;
    if (!formals.arguments[i].default_value) {
      cursor_.fail(fmt::format("argument '{}' is missing and has no default", formals.arguments[i].name),
                   fmt::format("{}=...", formals.arguments[i].name));
    }
    arguments_[i] = formals.arguments[i].default_value->make(graph_);
  }
  return arguments_;
}

// The first character determines most kinds; the schema's type only distinguishes words.
Argument ArgumentReader::take_argument(const FormalType& type, bool forward_references, int depth) {
  const char c = cursor_.peek();
  if (c == '%') return Argument::of_value(take_value_(forward_references));
  if (c == '"') return graph_.string_argument(cursor_.take_quoted());
  if (c == '[') return take_list(type.is_int_list(), type, forward_references, depth);
  if ((c >= '0' && c <= '9') || c == '-' || c == '+') {
    const Cursor::Place place = cursor_.place();
    const std::string_view token = cursor_.take_number();
    if (const auto value = parse_number<int64_t>(token)) return Argument::of_int(*value);
    // Digits only are an integer and are never rounded to a float: 9007199254740993 must round-trip.
    if (token.find_first_not_of("0123456789", 1) != std::string_view::npos) {
      if (const auto value = parse_float(token)) return Argument::of_float(*value);
    }
    cursor_.fail_at(place, "not a number, or out of range", "a 64-bit integer or a float");
  }
  return take_word_argument(type, forward_references, depth);
}

// Words are dtypes, layouts or memory formats only where the schema has such a type, since "i8" may be a string
// elsewhere.
Argument ArgumentReader::take_word_argument(const FormalType& type, bool forward_references, int depth) {
  const Cursor::Place place = cursor_.place();
  if (cursor_.eat_word("nan")) {
    // The default NaN needs no bits; others state theirs.
    if (cursor_.peek() != '(') return Argument::of_float(*parse_float("nan"));
    cursor_.expect('(');
    const auto value = parse_float(fmt::format("nan({})", cursor_.take_identifier()));
    if (!value) cursor_.fail_at(place, "not a NaN", "nan(7ff8000000000001): 16 hexadecimal digits");
    cursor_.expect(')');
    return Argument::of_float(*value);
  }
  const std::string_view word = cursor_.take_name();
  if (word == "None") return {};
  if (word == "true") return Argument::of_bool(true);
  if (word == "false") return Argument::of_bool(false);
  if (word == "inf") return Argument::of_float(*parse_float("inf"));
  if (type.type == TypeClass::kDtype) {
    if (const auto dtype = parse_dtype(word)) return Argument::of_int(static_cast<int64_t>(*dtype));
  } else if (type.type == TypeClass::kLayout) {
    if (const auto layout = parse_layout(word)) return Argument::of_int(static_cast<int64_t>(*layout));
  } else if (type.type == TypeClass::kMemoryFormat) {
    if (const auto format = parse_memory_format(word)) return Argument::of_int(static_cast<int64_t>(*format));
  }
  if (word == "ints") return take_ints();
  if (word == "list") return take_list(false, type, forward_references, depth);
  if (word == "complex") {
    double parts[2];
    for (const int i : {0, 1}) {
      cursor_.expect(i == 0 ? '(' : ',');
      const Cursor::Place number_place = cursor_.next_place();
      const auto value = parse_float(cursor_.take_number());
      if (!value) cursor_.fail_at(number_place, "not a float", "a number such as 1.0");
      parts[i] = *value;
    }
    cursor_.expect(')');
    return graph_.complex_argument(parts[0], parts[1]);
  }
  if (word == "generator") {
    cursor_.expect('(');
    const auto device = parse_device(cursor_.take_name());
    if (!device) cursor_.fail_at(place, "not a generator", "a generator such as generator(cuda:0)");
    cursor_.expect(')');
    return Argument::of_device(*device, ArgumentKind::kGenerator);
  }
  if (word == "opaque") {
    cursor_.expect('(');
    Argument argument = graph_.string_argument(cursor_.take_quoted());
    argument.kind = ArgumentKind::kOpaque;
    cursor_.expect(')');
    return argument;
  }
  // c0, c1, ... are constants; no device has such a name.
  if (word.size() > 1 && word[0] == 'c' && word[1] >= '0' && word[1] <= '9') {
    const auto number = parse_number<int64_t>(word.substr(1));
    if (!number || *number >= graph_.constant_count()) {
      cursor_.fail_at(place, "an undeclared constant", "a constant declared on an earlier line");
    }
    return Argument::of_constant(ConstantId(static_cast<uint32_t>(*number)));
  }
  if (const auto device = parse_device(word)) return Argument::of_device(*device);
  // The message includes what the schema expects, since the word alone may be valid elsewhere.
  std::string what = word.empty() ? "not a value" : "not a value: ";
  if (!word.empty()) append_quoted(what, word);
  const std::string_view expected = type.type == TypeClass::kDtype          ? "a dtype such as f32"
                                    : type.type == TypeClass::kLayout       ? "a layout such as strided"
                                    : type.type == TypeClass::kMemoryFormat ? "a memory format such as channels_last"
                                                                            : "an argument";
  cursor_.fail_at(place, what, expected);
}

// Also reads `ints[...]`, an int list where the schema has another type.
Argument ArgumentReader::take_ints() {
  ints_.clear();
  cursor_.take_list('[', ']', [&] { ints_.push_back(cursor_.take_int()); });
  return graph_.int_list(ints_);
}

// An int list where the schema has one is read as numbers, not arguments, since most lists are sizes.
Argument ArgumentReader::take_list(bool as_ints, const FormalType& type, bool forward_references, int depth) {
  if (as_ints) return take_ints();
  if (depth >= kMaxListDepth) {
    cursor_.fail("lists nested too deeply", fmt::format("at most {} levels", kMaxListDepth));
  }
  FormalType element;
  element.type = type.type == TypeClass::kList ? type.element : TypeClass::kAny;
  // Nested lists share one stack instead of allocating a vector each.
  const size_t base = stack_.size();
  cursor_.take_list('[', ']', [&] {
    const Argument taken = take_argument(element, forward_references, depth + 1);
    stack_.push_back(taken);
  });
  const Argument list = graph_.make_list(std::span<const Argument>(stack_).subspan(base));
  stack_.resize(base);
  return list;
}

}  // namespace shadowgraph
