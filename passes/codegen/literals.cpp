// Has the spelling that C++ and Python share. Decimals are the shortest that read back to the same double; in quoted
// strings each language gives its own escapes.
#include "passes/codegen/literals.h"

#include <fmt/format.h>

namespace shadowgraph {

std::string decimal(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string quoted(std::string_view text, std::string_view escaped,
                   c10::function_ref<std::string(unsigned char)> escape) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte >= 0x20 && byte < 0x7f && escaped.find(c) == std::string_view::npos) {
      out += c;
    } else {
      out += escape(byte);
    }
  }
  return out + '"';
}

}  // namespace shadowgraph
