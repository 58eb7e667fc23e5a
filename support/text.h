// Text utilities. Names from programs and files may contain any bytes; these functions convert them to valid UTF-8
// without control characters, line breaks and bidirectional formatting characters.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace shadowgraph {

// The first character of a text.
struct Character {
  std::string_view bytes;
  uint32_t point = 0;
  bool valid = false;  // if false, `bytes` is one byte of invalid UTF-8, and `point` is 0

  // Returns false for control characters, line separators, bidirectional formatting and characters not allowed in XML.
  bool printable() const;
};
// Removes and returns the first character. `text` must not be empty.
Character pop_character(std::string_view& text);

// Replaces invalid UTF-8 by '?'.
std::string utf8_text(std::string_view text);
// Converts to a single line, for comments in code: also replaces non-printable characters and line breaks by blanks.
std::string plain_text(std::string_view text);
// Escapes for HTML, SVG and HTML-like labels of Graphviz: elements and double-quoted attributes. Replaces invalid UTF-8
// by '?' and non-printable characters by blanks.
std::string xml_text(std::string_view text);
// Escapes for terminals and logs: preserves \n and \t and escapes other non-printable characters, and what begins a
// command of continuous integration ("::error" at the beginning of a line, "##["). Within JSON strings, "\u001b" is
// equivalent to the character.
std::string terminal_text(std::string_view text);

// Parses the whole text as a number in the format of std::from_chars: without leading blanks or '+'. A double may be
// "inf" or "nan".
template <class T>
std::optional<T> parse_number(std::string_view text) {
  T value{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end ? std::optional(value) : std::nullopt;
}

// Parses numbers separated by `separator`, optionally with a trailing one. Returns std::nullopt for invalid text.
template <class T>
std::optional<std::vector<T>> parse_numbers(std::string_view text, char separator) {
  std::vector<T> numbers;
  while (!text.empty()) {
    const size_t end = std::min(text.find(separator), text.size());
    const auto number = parse_number<T>(text.substr(0, end));
    if (!number) return std::nullopt;
    numbers.push_back(*number);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return numbers;
}

// Returns the Levenshtein distance, for suggestions ("did you mean").

inline size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t above = row[j + 1];
      row[j + 1] = std::min({above + 1, row[j] + 1, diagonal + (a[i] == b[j] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row.back();
}

}  // namespace shadowgraph
