#include "shadowgraph/parallel/given_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "parallel/plan/plan_space.h"
#include "parallel/plan/unit_names.h"
#include "support/json.h"
#include "support/json_place.h"

namespace shadowgraph {
namespace {

constexpr int64_t kMostOfAKnob = int64_t{1} << 20;

void check_keys(const JsonPlace& plan) {
  static const std::set<std::string> kKeys{
      "tensor",      "context",      "data",    "pipeline",  "stages_per_rank",   "experts",
      "micro_batch", "microbatches", "zero",    "schedule",  "data_outermost",    "stages",
      "recomputed",  "selective",    "overlap", "offloaded", "optimizer_on_host", "attention",
      "in_part",     "layout"};
  for (const auto& [key, place] : plan.members()) {
    if (!kKeys.contains(key)) place.fail(fmt::format("is no key of a plan; there are {}", fmt::join(kKeys, ", ")));
  }
}

int64_t number_or(const JsonPlace& plan, std::string_view key, int64_t otherwise) {
  const auto found = plan.find(key);
  return found ? found->integer(1, kMostOfAKnob) : otherwise;
}

// How many units each stage has.
std::vector<int64_t> sizes_of(const JsonPlace& plan, int64_t stages, int64_t units) {
  std::vector<int64_t> sizes;
  if (const auto found = plan.find("stages")) {
    for (const JsonPlace& stage : found->elements()) {
      sizes.push_back((stage.is_object() ? stage["units"] : stage).integer(1, kMostOfAKnob));
    }
    if (std::ssize(sizes) != stages) found->fail(fmt::format("has {} stages, not {}", sizes.size(), stages));
    if (const int64_t all = std::reduce(sizes.begin(), sizes.end()); all != units) {
      found->fail(
          fmt::format("has {} units, and the model {}: layers, and what comes before and behind them", all, units));
    }
    return sizes;
  }
  if (stages > units) throw Error(fmt::format("{} stages of a model with {} units", stages, units));
  for (int64_t s = 0; s < stages; ++s) sizes.push_back(units / stages + (s < units % stages ? 1 : 0));
  return sizes;
}

struct Again {
  const char* key;
  std::vector<std::string> TrainingPlan::*layers;
  int64_t PlannedStage::*count;
};
constexpr Again kWholeLayers{"recomputed", &TrainingPlan::recomputed, &PlannedStage::recomputed};
constexpr Again kPartsOfLayers{"selective", &TrainingPlan::selective, &PlannedStage::selective};
constexpr Again kLayersOnHost{"offloaded", &TrainingPlan::offloaded, &PlannedStage::offloaded};

// How many layers of each stage are computed again, or on the host: its first ones that are not `taken`, names that then
// are.
void read_layers(const JsonPlace& document, const std::vector<std::string>& units, const Again& again,
                 std::set<std::string>& taken, TrainingPlan& plan) {
  const auto found = document.find(again.key);
  if (!found) return;
  const bool all = found->is_text();
  if (all && found->text() != "all") found->fail("is \"all\", or a list");
  const std::vector<JsonPlace> given = all ? std::vector<JsonPlace>() : found->elements();
  const bool names = !given.empty() && given.front().is_text();
  if (!all && !names && !given.empty() && given.size() != plan.stages.size()) {
    found->fail(fmt::format("has {} stages, not {}", given.size(), plan.stages.size()));
  }
  std::set<std::string> named;
  for (const JsonPlace& name : names ? given : std::vector<JsonPlace>()) {
    if (taken.contains(name.text())) name.fail("is computed again whole: a layer is in one list");
    named.insert(name.text());
  }
  size_t unit = 0;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    PlannedStage& stage = plan.stages[s];
    const bool counted = !all && !names && !given.empty();
    const int64_t wanted = all ? stage.units : counted ? given[s].integer(0, kMostOfAKnob) : 0;
    for (int64_t i = 0; i < stage.units; ++i, ++unit) {
      const std::string& name = units[unit];
      if (number_in_path(name).second == 0 || taken.contains(name)) continue;
      if (names ? named.erase(name) == 0 : stage.*again.count == wanted) continue;
      (plan.*again.layers).push_back(name);
      taken.insert(name);
      ++(stage.*again.count);
    }
    if (counted && stage.*again.count != wanted) {
      given[s].fail(fmt::format("is more than the {} layers of the stage", stage.*again.count));
    }
  }
  if (!named.empty()) found->fail("names " + *named.begin() + ", which is no layer of the model");
}

// Layers of which parts are kept, by name.
void read_parts(const JsonPlace& document, const std::vector<std::string>& units, std::set<std::string>& taken,
                TrainingPlan& plan) {
  const auto found = document.find("in_part");
  if (!found) return;
  for (const JsonPlace& given : found->elements()) {
    PartlyKept part;
    for (const JsonPlace& keeps : given["keeps"].elements()) part.keeps.emplace_back(keeps.text());
    for (const JsonPlace& layer : given["layers"].elements()) {
      const auto unit = std::ranges::find(units, layer.text());
      if (unit == units.end() || number_in_path(*unit).second == 0) layer.fail("is no layer of the model");
      if (!taken.insert(*unit).second) layer.fail("is computed again already: a layer is in one list");
      part.layers.push_back(*unit);
      int64_t behind = unit - units.begin();
      for (PlannedStage& stage : plan.stages) {
        if (behind >= 0 && behind < stage.units) ++stage.in_part;
        behind -= stage.units;
      }
    }
    plan.in_part.push_back(std::move(part));
  }
}

// What stages of a plan.json say beside their sizes follows from the rest, unless they are another model's.
void check_stages(const JsonPlace& document, const TrainingPlan& plan) {
  const auto found = document.find("stages");
  for (size_t s = 0; found && s < plan.stages.size(); ++s) {
    const JsonPlace given = (*found)[s];
    if (!given.is_object()) continue;
    const std::string begins = given.text_or("begins", plan.stages[s].begins);
    if (begins != plan.stages[s].begins) {
      given.fail(
          fmt::format("begins at \"{}\", and behind the units before it comes \"{}\"", begins, plan.stages[s].begins));
    }
    for (const Again& again : {kWholeLayers, kPartsOfLayers, kLayersOnHost}) {
      const auto count = given.find(again.key);
      if (!count || count->integer() == plan.stages[s].*again.count) continue;
      count->fail(fmt::format("is not the {} that the plan's \"{}\" has", plan.stages[s].*again.count, again.key));
    }
  }
}

}  // namespace

TrainingPlan given_plan(std::string_view text, const StepSource& source, const ClusterRequest& request) {
  const nlohmann::json document = parse_json(text, "plan");
  const JsonPlace place(document, "a plan");
  check_keys(place);
  TrainingPlan plan{.tensor = number_or(place, "tensor", 1),
                    .context = number_or(place, "context", 1),
                    .pipeline = number_or(place, "pipeline", 1),
                    .stages_per_rank = number_or(place, "stages_per_rank", 1),
                    .experts = number_or(place, "experts", 1),
                    .micro_batch = number_or(place, "micro_batch", 1),
                    .schedule = place.text_or("schedule", "1f1b")};
  if (const auto zero = place.find("zero")) plan.zero = static_cast<int>(zero->integer(0, 3));
  plan.overlap = overlap_of(request, plan.tensor);
  if (const auto overlap = place.find("overlap")) {
    plan.overlap = collective_overlap(overlap->text());
    if (plan.tensor == 1 && plan.overlap != CollectiveOverlap::kNone) {
      overlap->fail("is of collectives of tensor parallel, of which the plan has none");
    }
  }
  if (const auto layout = place.find("layout")) plan.layout = parse_tensor_layout(layout->text());
  if (const auto attention = place.find("attention")) plan.attention = parse_attention_kernel(attention->text());
  if (const auto outermost = place.find("data_outermost")) plan.data_outermost = outermost->boolean();
  plan.data =
      number_or(place, "data", std::max<int64_t>(1, request.devices / (plan.tensor * plan.context * plan.pipeline)));
  if (plan.devices() > request.devices) {
    throw Error(fmt::format("{} takes {} devices, and there are {}", to_string(plan), plan.devices(), request.devices));
  }
  if (plan.replicas() % plan.experts != 0) {
    throw Error(fmt::format("{} ranks that share experts do not divide {} data ranks", plan.experts, plan.replicas()));
  }
  const int64_t samples = plan.data * plan.micro_batch;
  plan.microbatches = number_or(place, "microbatches", (request.batch + samples - 1) / samples);
  const std::vector<std::string> units =
      UnitNames::of(source.capture({.micro_batch = plan.micro_batch, .attention = plan.attention})).begins;
  size_t unit = 0;
  for (const int64_t size : sizes_of(place, plan.pipeline * plan.stages_per_rank, std::ssize(units))) {
    plan.stages.push_back({.begins = units[unit], .units = size});
    unit += static_cast<size_t>(size);
  }
  std::set<std::string> taken;
  read_layers(place, units, kWholeLayers, taken, plan);
  read_layers(place, units, kPartsOfLayers, taken, plan);
  read_parts(place, units, taken, plan);
  std::set<std::string> on_host;
  read_layers(place, units, kLayersOnHost, on_host, plan);
  if (const auto optimizer = place.find("optimizer_on_host")) plan.optimizer_on_host = optimizer->boolean();
  if (!plan.offloaded.empty() && !request.device.host) {
    place["offloaded"].fail("takes unknown seconds: the device has no host.link");
  }
  check_stages(place, plan);
  return plan;
}

}  // namespace shadowgraph
