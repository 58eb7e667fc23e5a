#include "cli/output.h"

#include <nlohmann/json.hpp>
#include <sys/ioctl.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <unistd.h>

#include "support/text.h"

namespace shadowgraph::cli {
namespace {

// Breaks a line at blanks, between columns if possible, and indents what follows.
std::string folded(std::string_view line, size_t width) {
  const size_t indent = std::min(line.find_first_not_of(' '), line.size()) + 4;
  if (line.find_first_not_of('-') == line.npos) return std::string(line.substr(0, width));  // a rule
  std::string out;
  while (line.size() > width) {
    size_t at = line.substr(0, width).rfind("  ");
    if (at == line.npos || at < width / 2) at = line.substr(0, width).rfind(' ');
    const size_t next = line.find_first_not_of(' ', at);
    if (at == line.npos || next == line.npos || line.find_first_not_of(' ') >= at || indent >= width / 2) break;
    out.append(line.substr(0, line.find_last_not_of(' ', at) + 1)) += '\n';
    const std::string rest = std::string(indent, ' ').append(line.substr(next));
    return out + folded(rest, width);
  }
  return out.append(line);
}

// Returns the escape sequence of a line's color: errors and verdicts, titles of columns. "" for others.
std::string_view color_of(std::string_view line, std::string_view next) {
  constexpr std::string_view kRed = "\033[31m", kGreen = "\033[32m", kBold = "\033[1m";
  const std::string_view text = line.substr(std::min(line.find_first_not_of(' '), line.size()));
  if (text.starts_with("shadowgraph: ") || text.starts_with("does not fit")) return kRed;
  if (text.starts_with("fits")) return kGreen;
  const bool titles = text.find("  ") != text.npos &&
                      std::ranges::none_of(text, [](char c) { return c >= 'a' && c <= 'z'; }) &&
                      std::ranges::any_of(text, [](char c) { return c >= 'A' && c <= 'Z'; }) && text[0] > '9';
  return titles || next.starts_with("---") ? kBold : std::string_view();
}

// Folds and colors text for a terminal. JSON, graphs, DOT and scripts stay as they are, to be copied.
std::string for_terminal(std::string_view text, size_t width) {
  for (const std::string_view data : {"{", "[", "#", "digraph ", "shadowgraph 1 "}) {
    if (text.starts_with(data)) return std::string(text);
  }
  const bool colors = std::getenv("NO_COLOR") == nullptr;
  std::string out;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text = end == text.npos ? std::string_view() : text.substr(end + 1);
    const std::string_view color = colors ? color_of(line, text) : std::string_view();
    out.append(color).append(folded(line, width)).append(color.empty() ? "" : "\033[0m");
    if (end != text.npos) out += '\n';
  }
  return out;
}

}  // namespace

size_t columns(std::FILE* file) {
  winsize size{};
  if (::isatty(::fileno(file)) == 0) return 0;
  return ::ioctl(::fileno(file), TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col : 80;
}

std::string printable(std::string_view text) { return terminal_text(text); }

void print_to(std::FILE* file, std::string_view text) {
  std::string shown = terminal_text(text);
  if (const size_t width = columns(file)) shown = for_terminal(shown, width);
  std::fwrite(shown.data(), 1, shown.size(), file);
}

void print_text(std::string_view text) {
  print_to(stdout, text);
  if (!text.ends_with('\n')) std::fputc('\n', stdout);
}

std::string json_text(const nlohmann::json& json) {
  return json.dump(2, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace shadowgraph::cli
