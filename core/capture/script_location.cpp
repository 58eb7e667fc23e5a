#include "core/capture/script_location.h"

#include <torch/csrc/jit/runtime/interpreter.h>

#include <optional>
#include <string_view>

namespace shadowgraph {
namespace {

bool is_pytorchs_own(std::string_view file) {
  return file.find("/torch/nn/") != std::string_view::npos || file.find("/torch/_") != std::string_view::npos ||
         file.find("/torch/jit/") != std::string_view::npos ||
         file.find("/torch/functional.py") != std::string_view::npos;
}

// One line of the call stack that tracing writes: "/path/net.py(12): forward".
void add_traced_frame(std::string_view line, UsersFrame& location) {
  const size_t close = line.rfind("): ");
  const size_t open = close == std::string_view::npos ? close : line.rfind('(', close);
  if (open == std::string_view::npos || open == 0) return;
  location.add(line.substr(0, open), line.substr(open + 1, close - open - 1));
}

void add_range(const torch::jit::SourceRange& range, UsersFrame& location) {
  if (!range.source()) return;
  if (const auto place = range.file_line_col()) {
    location.add(std::get<0>(*place), std::to_string(std::get<1>(*place)));
    return;
  }
  const std::string frames = range.source()->text_str().str();
  for (std::string_view rest = frames; !rest.empty() && !location.found();) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    add_traced_frame(rest.substr(0, end), location);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
}

}  // namespace

void UsersFrame::add(std::string_view file, std::string_view line) {
  if (file.empty() || !users_.empty()) return;
  std::string& place = is_pytorchs_own(file) ? innermost_ : users_;
  if (place.empty()) place.assign(file).append(":").append(line);
}

std::string script_location() {
  UsersFrame location;
  for (const torch::jit::StackEntry& frame : torch::jit::currentCallstack()) {
    // The range is of the code in the file; that was generated from the Python that is wanted.
    if (const auto python = frame.range.findSourceRangeThatGenerated()) add_range(*python, location);
    if (location.found()) break;
  }
  return std::move(location).text();
}

}  // namespace shadowgraph
