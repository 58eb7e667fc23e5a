#include "viz/saved_profile.h"

#include <optional>
#include <utility>
#include <vector>

#include "support/json.h"
#include "support/suggestion.h"

namespace shadowgraph {
namespace {

void check_amounts(const std::optional<JsonPlace>& table) {
  if (!table) return;
  for (const auto& [name, amount] : table->members()) amount.amount();
}

// Validates the members of a saved profile that the page sums up (viz/page/src/differences.ts).
void check_saved_profile(const JsonPlace& profile) {
  if (profile.find("batches")) {
    profile["batches"].fail(
        "is of a profile of several batch sizes; save the profile of one ('shadowgraph profile -o')");
  }
  profile["nodes"].amount();
  profile["peak"]["bytes"].amount();
  check_amounts(profile["peak"]["by_kind"]);
  check_amounts(profile["operators"]);
  for (const char* key : {"flops", "elementwise_flops", "transcendental"}) check_amounts(profile.find(key));
  for (const char* key : {"parameters", "saved_bytes"}) profile.amount_or(key, 0);
  for (const auto& [key, figure] : {std::pair{"device_memory", "reserved_peak_bytes"},
                                    std::pair{"memory_layout", "bytes"}, std::pair{"time", "seconds"}}) {
    if (const auto inside = profile.find(key)) inside->amount_or(figure, 0);
  }
  std::vector<JsonPlace> modules;
  if (const auto root = profile.find("modules")) modules.push_back(*root);
  while (!modules.empty()) {
    const JsonPlace module = std::move(modules.back());
    modules.pop_back();
    module.text_or("path", "");
    for (const char* key :
         {"saved_activation_bytes", "parameter_bytes", "temporary_bytes", "backward_bytes", "peak_bytes"}) {
      module.amount_or(key, 0);
    }
    check_amounts(module.find("flops"));
    if (const auto children = module.find("children")) {
      for (JsonPlace& child : children->elements()) modules.push_back(std::move(child));
    }
  }
}

}  // namespace

std::string saved_profile(const std::string& text, const std::string& title) {
  const std::string name = title.empty() ? "the profile to compare with" : title;
  nlohmann::json profile = parse_json(text, name);
  const std::string heading = name + ": not a profile.json as saved by 'shadowgraph profile -o'";
  const JsonPlace place(profile, heading);
  check_saved_profile(place);
  refuse_keys_outside_schema(place);
  const std::string model = place.text_or("model", "a saved profile");
  for (const char* unused : {"timeline", "outputs", "findings", "top_at_peak"}) profile.erase(unused);
  profile["title"] = title.empty() ? model : title;
  return json_text(profile);
}

}  // namespace shadowgraph
