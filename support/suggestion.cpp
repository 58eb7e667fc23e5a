#include "support/suggestion.h"

#include <algorithm>
#include <cctype>

#include "support/embedded_file.h"
#include "support/json.h"
#include "support/text.h"

namespace shadowgraph {

std::span<const EmbeddedFile> profile_schema();  // docs/profile.schema.json

namespace {

std::string letters_and_digits(std::string_view text) {
  std::string plain;
  for (const unsigned char c : text) {
    if (std::isalnum(c)) plain += static_cast<char>(std::tolower(c));
  }
  return plain;
}

}  // namespace

std::string closest(std::string_view name, std::span<const std::string> candidates) {
  const std::string plain = letters_and_digits(name.substr(0, 64));
  std::string best;
  size_t best_distance = plain.size() / 3 + 1;  // at most a third of the letters may differ
  for (const std::string& candidate : candidates) {
    const size_t distance = edit_distance(plain, letters_and_digits(candidate));
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  if (!best.empty() || plain.size() < 4) return best;
  const auto longer = std::ranges::find_if(
      candidates, [&](const std::string& candidate) { return letters_and_digits(candidate).starts_with(plain); });
  return longer == candidates.end() ? best : *longer;
}

void check_keys(const JsonPlace& object, std::string_view whose, std::span<const std::string> keys) {
  for (const auto& [name, place] : object.members()) {
    if (std::ranges::find(keys, name) != keys.end()) continue;
    std::string why = "is not a key of " + std::string(whose);
    const std::string near = closest(name, keys);
    if (!near.empty()) why += " (did you mean " + near + "?)";
    why += "; expected one of ";
    for (const std::string& key : keys) why += (&key == keys.data() ? "" : ", ") + key;
    place.fail(why);
  }
}

namespace {

void refuse_keys(const JsonPlace& place, const nlohmann::json* schema, const nlohmann::json& root) {
  const auto part = [&](const char* key) {
    const auto found = schema->find(key);
    return found == schema->end() ? nullptr : &*found;
  };
  while (part("$ref") != nullptr || part("anyOf") != nullptr) {
    const nlohmann::json* reference = part("$ref");  // "#/$defs/profile"
    schema = reference == nullptr
                 ? &part("anyOf")->back()
                 : &root.at(nlohmann::json::json_pointer(reference->get_ref<const std::string&>().substr(1)));
  }
  if (const nlohmann::json* items = part("items"); items != nullptr && place.is_list()) {
    for (const JsonPlace& element : place.elements()) refuse_keys(element, items, root);
  }
  if (!place.is_object()) return;
  const nlohmann::json* properties = part("properties");
  const nlohmann::json* others = part("additionalProperties");
  if (properties != nullptr && others != nullptr && *others == false) {
    std::vector<std::string> keys;
    for (const auto& [key, value] : properties->items()) keys.push_back(key);
    check_keys(place, "a profile", keys);
  }
  for (const auto& [key, member] : place.members()) {
    if (properties != nullptr && properties->contains(key)) {
      refuse_keys(member, &properties->at(key), root);
    } else if (others != nullptr && others->is_object()) {
      refuse_keys(member, others, root);
    }
  }
}

}  // namespace

void refuse_keys_outside_schema(const JsonPlace& profile) {
  static const nlohmann::json kSchema = nlohmann::json::parse(profile_schema().front().text);
  refuse_keys(profile, &kSchema.at("$defs").at("profile"), kSchema);
}

}  // namespace shadowgraph
