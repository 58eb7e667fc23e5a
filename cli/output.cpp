#include "cli/output.h"

#include <nlohmann/json.hpp>

#include <cstdio>

namespace shadowgraph::cli {

void print_text(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (!text.ends_with('\n')) std::fputc('\n', stdout);
}

std::string json_text(const nlohmann::json& json) {
  return json.dump(2, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace shadowgraph::cli
