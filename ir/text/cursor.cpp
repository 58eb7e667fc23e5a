// Reads tokens from lines. It points into the text and copies nothing but quoted strings, so that reading costs about 2
// us a node. Places are pointers, too; line and column are worked out when an error needs them.
#include "ir/text/cursor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "ir/text/words.h"

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
    // Windows' line ends are accepted and never written.
    if (line_end_ != line_begin_ && line_end_[-1] == '\r') --line_end_;
    if (peek() != '#' && at_ != line_end_) return true;
  }
  if (line_ == 0) line_ = 1;  // an empty text: errors are about its first line
  line_begin_ = line_end_ = at_ = text_end_;
  return false;
}

bool Cursor::eat_word(std::string_view word) {
  skip_spaces();
  const auto left = static_cast<size_t>(line_end_ - at_);
  if (left < word.size() || std::memcmp(at_, word.data(), word.size()) != 0) return false;
  // A word must end where it is matched: "of" is not the beginning of "offset".
  if (left > word.size() && is_identifier(at_[word.size()])) return false;
  at_ += word.size();
  return true;
}

// Each of these says what it found and what it expected, so that callers need no messages of their own.
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

// A name without '=' behind it is no argument's name; the cursor goes back.
std::string_view Cursor::take_argument_name() {
  skip_spaces();
  const char* begin = at_;
  const std::string_view name = take_while(at_, line_end_, is_identifier);
  if (!name.empty() && eat('=')) return name;
  at_ = begin;
  return {};
}

// Takes more than a number can have; parse_int and parse_float judge it.
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
  const auto value = parse_int(take_number());
  if (!value) fail_at(start, "a number that is no 64-bit integer", "an integer");
  return *value;
}

// Ids have no leading sign and no letters behind: %4x is an error, not %4.
uint32_t Cursor::take_id(char letter, std::string_view what) {
  if (!at_id(letter)) fail(found(), fmt::format("{} such as {}0", what, letter));
  const Place start = place();
  ++at_;
  uint64_t number = 0;
  while (at_ != line_end_ && is_digit(*at_)) {
    // Saturates instead of overflowing: a number that large is refused as unknown later.
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
  if (at_ == line_end_) fail_at(start, "a string without end", "a closing '\"' on the same line");
  const std::string_view between(begin, static_cast<size_t>(at_ - begin));
  ++at_;
  if (!escaped) return std::string(between);
  auto text = unquote(between);
  if (!text) fail_at(start, "a string with a broken escape", "\\\" \\\\ \\n \\t \\r or \\x and two hexadecimal digits");
  return std::move(*text);
}

std::string_view Cursor::take_rest() {
  skip_spaces();
  const std::string_view rest(at_, static_cast<size_t>(line_end_ - at_));
  at_ = line_end_;
  return rest;
}

// Says what stands at the cursor, in few characters, for messages.
std::string Cursor::found() const {
  if (at_ == line_end_) return line_begin_ == text_end_ ? "the end of the text" : "the end of the line";
  const char* end = at_;
  take_while(end, std::min(line_end_, at_ + 40), is_name);
  if (end == at_) ++end;
  std::string text;
  append_quoted(text, std::string_view(at_, static_cast<size_t>(end - at_)));
  return "found " + text;
}

// The message shows the line and a caret below the place, as compilers do. Bytes that are not printable ASCII are shown
// as spaces, so that the caret stays in its column and a terminal is left alone.
void Cursor::fail_at(Place place, std::string_view what, std::string_view expected) const {
  constexpr size_t kBefore = 100;
  constexpr size_t kAfter = 60;
  const auto offset = static_cast<size_t>(place.at - place.line_begin);
  const char* line_end = std::find(place.at, text_end_, '\n');
  // A line of a hostile text may be megabytes long: show what is around the place.
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

}  // namespace shadowgraph
