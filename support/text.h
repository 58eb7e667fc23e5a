// Names come from programs and files, and may be any bytes. These functions make them fit for outputs: whole UTF-8,
// without characters that steer a terminal, end a line or turn the order of what follows.
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

// One character at the front of a text.
struct Character {
  std::string_view bytes;
  uint32_t point = 0;
  bool valid = false;  // otherwise `bytes` is one byte that begins no UTF-8 character, and `point` 0

  // False for controls, line ends other than \n, marks of writing direction, and what XML cannot hold.
  bool printable() const;
};
// Takes it off. `text` must not be empty.
Character take_character(std::string_view& text);

// Bytes that are no UTF-8 become '?'.
std::string utf8_text(std::string_view text);
// On one line, as a comment in code has it: what cannot be printed, line ends among it, becomes a blank.
std::string plain_text(std::string_view text);
// For HTML, SVG and labels of Graphviz that are like HTML: elements and attributes in double quotes. Bytes that are no
// UTF-8 become '?', what cannot be printed a blank.
std::string xml_text(std::string_view text);
// For a terminal: \n and \t stay, and what else cannot be printed becomes an escape. Within strings of JSON, "\u001b"
// says the same as the character.
std::string terminal_text(std::string_view text);

// The number that the whole text is, as std::from_chars reads it: no blank before it, no '+'. A double may be "inf" or
// "nan".
template <class T>
std::optional<T> parse_number(std::string_view text) {
  T value{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end ? std::optional(value) : std::nullopt;
}

// Numbers with one `separator` between two, and perhaps one behind the last. std::nullopt for other text.
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

// How many letters must be put in, left out or replaced to make one word of another (Levenshtein): for "did you mean".

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
