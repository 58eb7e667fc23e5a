// Names come from programs and files, and may be any bytes. These functions make them fit for outputs: whole UTF-8,
// without characters that steer a terminal, end a line or turn the order of what follows.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

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

}  // namespace shadowgraph
