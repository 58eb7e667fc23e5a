#include "support/json.h"

namespace shadowgraph {

nlohmann::json parse_json(std::string_view text) { return nlohmann::json::parse(text); }

std::optional<nlohmann::json> try_parse_json(std::string_view text) {
  nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return std::nullopt;
  return json;
}

std::string json_text(const nlohmann::json& json, int indent) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace);
}

}  // namespace shadowgraph
