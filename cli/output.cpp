#include "cli/output.h"

#include <nlohmann/json.hpp>

#include "support/text.h"

namespace shadowgraph::cli {

std::string printable(std::string_view text) { return terminal_text(text); }

void print_to(std::FILE* file, std::string_view text) {
  const std::string shown = terminal_text(text);
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
