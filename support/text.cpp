#include "support/text.h"

namespace shadowgraph {
namespace {

void append_hex(std::string& out, uint32_t value, int digits) {
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) out += "0123456789abcdef"[value >> shift & 0xfU];
}

}  // namespace

bool Character::printable() const {
  const auto in = [&](uint32_t first, uint32_t last) { return point >= first && point <= last; };
  return valid && point >= 0x20 && !in(0x7f, 0x9f) && !in(0x2028, 0x202e) && !in(0x2066, 0x2069) && point != 0xfeff &&
         (point & 0xfffeU) != 0xfffeU;
}

Character pop_character(std::string_view& text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const size_t length = lead < 0x80 ? 1 : (lead >> 5) == 6 ? 2 : (lead >> 4) == 14 ? 3 : (lead >> 3) == 30 ? 4 : 0;
  Character taken{.bytes = text.substr(0, 1)};
  if (length != 0 && length <= text.size()) {
    taken.valid = true;
    taken.point = length == 1 ? lead : lead & (0x7fU >> length);
    for (size_t k = 1; k < length; ++k) {
      const auto next = static_cast<unsigned char>(text[k]);
      taken.valid = taken.valid && (next & 0xc0U) == 0x80U;
      taken.point = taken.point << 6 | (next & 0x3fU);
    }
    // Overlong encodings and surrogates are invalid.
    static constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
    taken.valid = taken.valid && taken.point >= kLeast[length] && taken.point <= 0x10ffff &&
                  (taken.point < 0xd800 || taken.point >= 0xe000);
    if (taken.valid) {
      taken.bytes = text.substr(0, length);
    } else {
      taken.point = 0;
    }
  }
  text.remove_prefix(taken.bytes.size());
  return taken;
}

std::string utf8_text(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const Character c = pop_character(text);
    out += c.valid ? c.bytes : "?";
  }
  return out;
}

std::string plain_text(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const Character c = pop_character(text);
    out += !c.valid ? "?" : !c.printable() ? " " : c.bytes;
  }
  return out;
}

std::string xml_text(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const Character c = pop_character(text);
    out += !c.valid          ? "?"
           : !c.printable()  ? " "
           : c.point == '&'  ? "&amp;"
           : c.point == '<'  ? "&lt;"
           : c.point == '>'  ? "&gt;"
           : c.point == '"'  ? "&quot;"
           : c.point == '\'' ? "&#39;"
                             : c.bytes;
  }
  return out;
}

std::string terminal_text(std::string_view text) {
  const auto plain = [](char c) { return ((c >= 0x20 && c < 0x7f) || c == '\t') && c != ':' && c != '#'; };
  std::string out;
  bool at_start = true;  // of a line, after blanks
  while (!text.empty()) {
    const auto end = std::find_if_not(text.begin(), text.end(), plain);
    at_start = at_start && std::string_view(text.begin(), end).find_first_not_of(" \t") == std::string_view::npos;
    out.append(text.begin(), end);
    text.remove_prefix(static_cast<size_t>(end - text.begin()));
    if (text.empty()) break;
    // Services of continuous integration execute "::error ..." and "##vso[...]" in their logs.
    const bool command = (at_start && text.starts_with("::")) || text.starts_with("##[") || text.starts_with("##vso[");
    const Character c = pop_character(text);
    at_start = c.point == '\n';
    if (command) {
      out += "\\u";
      append_hex(out, c.point, 4);
    } else if (c.printable() || c.point == '\n') {
      out += c.bytes;
    } else if (!c.valid) {
      out += "\\x";
      append_hex(out, static_cast<unsigned char>(c.bytes[0]), 2);
    } else if (c.point <= 0xffff) {
      out += "\\u";
      append_hex(out, c.point, 4);
    } else {
      out += '?';
    }
  }
  return out;
}

}  // namespace shadowgraph
