#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "parallel/plan/layer_chain.h"
#include "parallel/plan/plan_space.h"
#include "shadowgraph/plan/training_plan.h"
#include "support/json.h"
#include "support/suggestion.h"

namespace shadowgraph {
namespace {

constexpr int64_t kMaxValue = int64_t{1} << 20;

// Rejects unknown keys. `written` is a plan as to_json() writes it.
void check_keys(const JsonPlace& given, const nlohmann::json& written, std::string_view whose) {
  std::vector<std::string> keys;
  for (const auto& entry : written.items()) keys.push_back(entry.key());
  shadowgraph::check_keys(given, whose, keys);
}

// Index of the unit at which a stage begins; the number of units for the stage after the last.
int64_t first_unit(const std::vector<JsonPlace>& stages, size_t stage, const std::vector<std::string>& units) {
  if (stage == stages.size()) return std::ssize(units);
  const JsonPlace begins = stages[stage]["begins"];
  const auto found = std::ranges::find(units, begins.text());
  if (found == units.end()) begins.fail("is not a unit of the model (a layer, or a module before or after the layers)");
  return found - units.begin();
}

std::vector<int64_t> sizes_of(const JsonPlace& plan, int64_t count, const std::vector<std::string>& units) {
  std::vector<int64_t> sizes;
  if (const auto found = plan.find("stages")) {
    const std::vector<JsonPlace> stages = found->elements();
    for (size_t s = 0; s < stages.size(); ++s) {
      if (stages[s].is_object() && !stages[s].find("units")) {
        sizes.push_back(first_unit(stages, s + 1, units) - first_unit(stages, s, units));
        if (sizes.back() < 1) stages[s].fail("begins at or after the next stage");
      } else {
        sizes.push_back((stages[s].is_object() ? stages[s]["units"] : stages[s]).integer(1, kMaxValue));
      }
    }
    if (std::ssize(sizes) != count) found->fail(fmt::format("has {} stages, not {}", sizes.size(), count));
    if (const int64_t all = std::reduce(sizes.begin(), sizes.end()); all != std::ssize(units)) {
      found->fail(fmt::format("has {} units, but the model has {} (layers, and modules before and after them)", all,
                              units.size()));
    }
    return sizes;
  }
  const int64_t each = std::ssize(units) / count, more = std::ssize(units) % count;
  if (each == 0) throw Error(fmt::format("{} stages for a model with only {} units", count, units.size()));
  for (int64_t s = 0; s < count; ++s) sizes.push_back(each + (s < more ? 1 : 0));
  return sizes;
}

struct LayerList {
  const char* key;
  std::vector<std::string> TrainingPlan::*layers;
  int64_t PlannedStage::*count;
};
constexpr LayerList kRecomputed{"recomputed", &TrainingPlan::recomputed, &PlannedStage::recomputed};
constexpr LayerList kSelective{"selective", &TrainingPlan::selective, &PlannedStage::selective};
constexpr LayerList kOffloaded{"offloaded", &TrainingPlan::offloaded, &PlannedStage::offloaded};

// Reads a list of recomputed or offloaded layers: names, "all", or a number per stage. Skips and extends `taken`.
void read_layers(const JsonPlace& document, const std::vector<std::string>& units, const LayerList& list,
                 std::set<std::string>& taken, TrainingPlan& plan) {
  const auto found = document.find(list.key);
  if (!found) return;
  const bool all = found->is_text();
  if (all && found->text() != "all") found->fail("must be \"all\" or a list");
  const std::vector<JsonPlace> given = all ? std::vector<JsonPlace>() : found->elements();
  const bool names = !given.empty() && given.front().is_text();
  if (!all && !names && !given.empty() && given.size() != plan.stages.size()) {
    found->fail(fmt::format("has {} stages, not {}", given.size(), plan.stages.size()));
  }
  std::set<std::string> named;
  for (const JsonPlace& name : names ? given : std::vector<JsonPlace>()) {
    if (taken.contains(name.text())) name.fail("is already recomputed: a layer may be in only one list");
    named.insert(name.text());
  }
  size_t unit = 0;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    PlannedStage& stage = plan.stages[s];
    const bool counted = !all && !names && !given.empty();
    const int64_t wanted = all ? stage.units : counted ? given[s].integer(0, kMaxValue) : 0;
    for (int64_t i = 0; i < stage.units; ++i, ++unit) {
      const std::string& name = units[unit];
      if (number_in_path(name).second == 0 || taken.contains(name)) continue;
      if (names ? named.erase(name) == 0 : stage.*list.count == wanted) continue;
      (plan.*list.layers).push_back(name);
      taken.insert(name);
      ++(stage.*list.count);
    }
    if (counted && stage.*list.count != wanted) {
      given[s].fail(fmt::format("exceeds the {} layers of the stage", stage.*list.count));
    }
  }
  if (!named.empty()) found->fail("names " + *named.begin() + ", which is not a layer of the model");
}

void read_parts(const JsonPlace& document, const std::vector<std::string>& units, std::set<std::string>& taken,
                TrainingPlan& plan) {
  const auto found = document.find("in_part");
  if (!found) return;
  for (const JsonPlace& given : found->elements()) {
    PartialRecompute part;
    for (const JsonPlace& keeps : given["keeps"].elements()) part.keeps.emplace_back(keeps.text());
    for (const JsonPlace& layer : given["layers"].elements()) {
      const auto unit = std::ranges::find(units, layer.text());
      if (unit == units.end() || number_in_path(*unit).second == 0) layer.fail("is not a layer of the model");
      if (!taken.insert(*unit).second) layer.fail("is already recomputed: a layer may be in only one list");
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

// Checks the redundant fields of stages, which differ if the plan was made for another model.
void check_stages(const JsonPlace& document, const TrainingPlan& plan) {
  const auto found = document.find("stages");
  for (size_t s = 0; found && s < plan.stages.size(); ++s) {
    const JsonPlace given = (*found)[s];
    if (!given.is_object()) continue;
    const std::string begins = given.text_or("begins", plan.stages[s].begins);
    if (begins != plan.stages[s].begins) {
      given.fail(fmt::format("begins at \"{}\", but the units before it end at \"{}\"", begins, plan.stages[s].begins));
    }
    for (const auto& [key, suffix, count] : kStageCounts) {
      const auto found = given.find(key);
      if (!found || found->integer() == plan.stages[s].*count) continue;
      found->fail(fmt::format("differs from the {} of the plan's \"{}\"", plan.stages[s].*count, key));
    }
  }
}

TrainingPlan options_of(const JsonPlace& place, const ClusterRequest& request) {
  static const nlohmann::json kWhole = to_json(TrainingPlan{.stages = {{}}, .in_part = {{}}});
  check_keys(place, kWhole, "a plan");
  const auto check_all = [&](const char* list, const char* whose) {
    const auto found = place.find(list);
    for (const JsonPlace& entry : found ? found->elements() : std::vector<JsonPlace>()) {
      if (entry.is_object()) check_keys(entry, kWhole[list][0], whose);
    }
  };
  check_all("stages", "a stage");
  check_all("in_part", "layers in part");
  TrainingPlan plan;
  for (const auto& row : TrainingPlan::table().rows()) {
    const auto given = place.find(row.name);
    try {
      if (given) row.read(plan, row.words(given->json()));
    } catch (const Error& error) {
      given->fail(fmt::format("is invalid: {}", error.what()));
    }
  }
  const auto overlap = place.find("overlap");
  if (!overlap) plan.overlap = overlap_of(request, plan.tensor);
  if (plan.tensor == 1 && plan.overlap != CollectiveOverlap::kNone) {
    overlap->fail("applies to tensor parallelism, which the plan does not use");
  }
  return plan;
}

void read_stages(const JsonPlace& place, const std::vector<std::string>& units, TrainingPlan& plan) {
  size_t unit = 0;
  for (const int64_t size : sizes_of(place, plan.pipeline * plan.stages_per_rank, units)) {
    plan.stages.push_back({.begins = units[unit], .units = size});
    unit += static_cast<size_t>(size);
  }
  std::set<std::string> taken;
  read_layers(place, units, kRecomputed, taken, plan);
  read_layers(place, units, kSelective, taken, plan);
  read_parts(place, units, taken, plan);
  std::set<std::string> on_host;
  read_layers(place, units, kOffloaded, on_host, plan);
  check_stages(place, plan);
}

constexpr std::string_view kHeading = "a plan";

}  // namespace

TrainingPlan parse_plan(std::string_view text, const StepSource& source, const ClusterRequest& request) {
  const nlohmann::json document = parse_json(text, "plan");
  const JsonPlace place(document, kHeading);
  TrainingPlan plan = options_of(place, request);
  if (!place.find("data")) {
    plan.data = std::max<int64_t>(1, request.devices / (plan.tensor * plan.context * plan.pipeline));
  }
  if (plan.devices() > request.devices) {
    throw Error(fmt::format("{} needs {} devices, but there are {}", to_string(plan), plan.devices(), request.devices));
  }
  if (plan.replicas() % plan.experts != 0) {
    throw Error(fmt::format("expert-parallel degree {} does not divide {} data ranks", plan.experts, plan.replicas()));
  }
  const int64_t samples = plan.data * plan.micro_batch;
  if (!place.find("microbatches")) plan.microbatches = (request.batch + samples - 1) / samples;
  read_stages(place,
              UnitNames::of(source.capture({.micro_batch = plan.micro_batch, .attention = plan.attention})).begins,
              plan);
  if (!plan.offloaded.empty() && !request.device.host) place["offloaded"].fail("needs host.link in the device spec");
  return plan;
}

TrainingPlan parse_plan(std::string_view text, const Graph& step) {
  const nlohmann::json document = parse_json(text, "plan");
  const JsonPlace place(document, kHeading);
  TrainingPlan plan = options_of(place, {});
  read_stages(place, UnitNames::of(step).begins, plan);
  return plan;
}

}  // namespace shadowgraph
