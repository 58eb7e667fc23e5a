// Writes an answer as text and JSON.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shadowgraph/profile/what_if.h"
#include "shadowgraph/units.h"

namespace shadowgraph {

nlohmann::json to_json(const WhatIfAnswer& answer) {
  const auto kinds = [](const BytesByKind& bytes) {
    auto object = nlohmann::json::object();
    for (size_t kind = 0; kind < bytes.size(); ++kind) {
      object[std::string(to_string(static_cast<StorageKind>(kind)))] = bytes[kind];
    }
    return object;
  };
  nlohmann::json object{{"peak_bytes_before", answer.peak_before},
                        {"peak_bytes", answer.peak},
                        {"phase", answer.phase},
                        {"by_kind", kinds(answer.by_kind)},
                        {"held_before", kinds(answer.held_before)},
                        {"held", kinds(answer.held)},
                        {"flops_before", answer.flops_before},
                        {"flops", answer.flops},
                        {"changes", answer.changes},
                        {"ignored", answer.ignored}};
  if (answer.first_step_peak) object["first_step_peak_bytes"] = *answer.first_step_peak;
  if (answer.steady_peak) object["steady_peak_bytes"] = *answer.steady_peak;
  return object;
}

std::string to_text(const WhatIfAnswer& answer) {
  std::string text = fmt::format("{:<15}{:>12}  as recorded\n{:<15}{:>12}  as asked, in {}\n", "peak",
                                 human_bytes(answer.peak_before), "", human_bytes(answer.peak), answer.phase);
  for (size_t kind = 0; kind < answer.by_kind.size(); ++kind) {
    if (answer.by_kind[kind] == 0) continue;
    text +=
        fmt::format("  {:<17}{:>12}\n", to_string(static_cast<StorageKind>(kind)), human_bytes(answer.by_kind[kind]));
  }
  if (answer.steady_peak) {
    text += fmt::format("  {:<17}{:>12}\n  {:<17}{:>12}\n", "first step", human_bytes(*answer.first_step_peak),
                        "later steps", human_bytes(*answer.steady_peak));
  }
  text += fmt::format("{:<15}{:>12}  as recorded\n{:<15}{:>12}  as asked\n", "FLOPs", human_count(answer.flops_before),
                      "", human_count(answer.flops));
  for (const std::string& line : answer.changes) text += "changes: " + line + "\n";
  for (const std::string& line : answer.ignored) text += "not in it: " + line + "\n";
  return text;
}

}  // namespace shadowgraph
