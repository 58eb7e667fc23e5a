// Writes lines of comma-separated values as RFC 4180 has them: fields with a comma, a quote or a line break are quoted.
// What cannot be printed is escaped, as on a terminal.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "support/printable.h"

namespace shadowgraph {

class Csv {
 public:
  explicit Csv(const std::vector<std::string>& names) {
    for (const std::string& name : names) text(name);
    end();
  }
  void text(std::string_view field) {
    if (!start_) out_ += ',';
    start_ = false;
    const std::string shown = terminal_text(field);
    if (shown.find_first_of(",\"\n") == shown.npos) {
      out_ += shown;
      return;
    }
    out_ += '"';
    for (const char c : shown) {
      if (c == '"') out_ += '"';
      out_ += c;
    }
    out_ += '"';
  }
  void number(int64_t value) { text(std::to_string(value)); }
  void real(double value) { text(fmt::format("{:.6g}", value)); }
  void node(std::optional<uint32_t> place) { text(place ? std::to_string(*place) : std::string()); }
  void end() {
    out_ += '\n';
    start_ = true;
  }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
  bool start_ = true;
};

}  // namespace shadowgraph
