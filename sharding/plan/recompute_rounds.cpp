#include "sharding/plan/recompute_rounds.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shadowgraph/units.h"

namespace shadowgraph {

std::string text_of_rounds(std::span<const RecomputeRound> rounds, int64_t memory) {
  std::string text = "what was tried within " + human_bytes(memory) + " a device, * is taken:\n";
  text += fmt::format("  {:1} {:22} {:>10} {:>12} {:>12} {:>8} {:>10}\n", "", "ROUND", "A STEP", "COMMUNICATES", "PEAK",
                      "SEGMENTS", "FLOP AGAIN");
  for (const RecomputeRound& round : rounds) {
    const bool none = round.seconds == 0;
    text += fmt::format("  {:1} {:22} {:>10} {:>12} {:>12} {:>8} {:>10}{}\n", round.best ? "*" : "", round.what,
                        none ? "-" : human_seconds(round.seconds), none ? "-" : human_seconds(round.communication),
                        none ? "-" : human_bytes(round.peak), round.segments, human_count(round.flops),
                        none         ? "  no plan"
                        : round.fits ? ""
                                     : "  does not fit");
  }
  return text;
}

nlohmann::json json_of_rounds(std::span<const RecomputeRound> rounds, std::span<const CheckpointSegment> segments) {
  nlohmann::json json;
  json["rounds"] = nlohmann::json::array();
  for (const RecomputeRound& round : rounds) {
    nlohmann::json entry{{"what", round.what},
                         {"fits", round.fits},
                         {"seconds", round.seconds},
                         {"communication_seconds", round.communication},
                         {"peak", round.peak},
                         {"segments", round.segments},
                         {"recomputed_flops", round.flops},
                         {"taken", round.best}};
    if (!round.why_not.empty()) entry["why_not"] = round.why_not;
    json["rounds"].push_back(std::move(entry));
  }
  json["segments"] = nlohmann::json::array();
  for (const CheckpointSegment& segment : segments) json["segments"].push_back(segment.name);
  return json;
}

}  // namespace shadowgraph
