#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>

#include "shadowgraph/plan/pipeline.h"
#include "shadowgraph/units.h"

namespace shadowgraph {
namespace {

std::string percent(double part, double whole) { return fmt::format("{:.1f} %", whole > 0 ? 100 * part / whole : 0); }

std::string peak_moment(const PipelineRank& rank) {
  return rank.peak_at.stage < 0 ? "the optimizer step" : to_string(rank.peak_at);
}

std::string stage_table(const PipelineStages& stages) {
  std::string text = fmt::format("{:>5}  {:<28} {:>9} {:>9} {:>9} {:>11} {:>11} {:>11}\n", "STAGE", "BEGINS AT", "F",
                                 "I", "W", "PARAMETERS", "CARRIED", "SENDS");
  for (int32_t s = 0; s < stages.count(); ++s) {
    const StageCosts& of = stages.of(s);
    std::string begins = of.begins.empty() ? "(outside modules)" : of.begins;
    if (begins.size() > 28) begins.replace(0, begins.size() - 26, "..");
    text += fmt::format("{:>5}  {:<28} {:>9} {:>9} {:>9} {:>11} {:>11} {:>11}\n", s, begins, human_seconds(of.forward),
                        human_seconds(of.input_gradient), human_seconds(of.weight_gradient), human_bytes(of.parameters),
                        human_bytes(of.carried), human_bytes(of.sends_forward));
  }
  return text;
}

std::string rank_table(const PipelineRun& run) {
  std::string text =
      fmt::format("{:>5}  {:<10} {:>9} {:>10} {:>10} {:>10} {:>10} {:>10} {:>11} {:>11} {:>11}\n", "RANK", "STAGES",
                  "COMPUTES", "BEGINS", "WAITS F", "WAITS B", "SUMS", "ENDS", "RESIDENT", "PEAK", "RESERVED");
  for (int32_t r = 0; r < run.ranks(); ++r) {
    const PipelineRank& rank = run.rank(r);
    text += fmt::format("{:>5}  {:<10} {:>9} {:>10} {:>10} {:>10} {:>10} {:>10} {:>11} {:>11} {:>11}\n", r,
                        fmt::format("{}", fmt::join(rank.stages, ",")), percent(rank.computing, run.seconds()),
                        human_seconds(rank.waits.before), human_seconds(rank.waits.forward),
                        human_seconds(rank.waits.backward), human_seconds(rank.waits.unshard + rank.waits.reduce),
                        human_seconds(rank.waits.after), human_bytes(rank.resident), human_bytes(rank.peak),
                        rank.reserved_peak > 0 ? human_bytes(rank.reserved_peak) : "-");
  }
  return text;
}

std::string peak_summary(const PipelineRun& run) {
  const int32_t r = run.worst_rank();
  const PipelineRank& worst = run.rank(r);
  int64_t gradients = 0;
  for (const int32_t s : worst.stages) gradients += run.stages().of(s).gradients;
  std::string text = fmt::format(
      "most memory: rank {}, {} live in {}: {} resident, {} of gradients, {} of activations ({} micro-batches in "
      "flight)\n",
      r, human_bytes(worst.peak), peak_moment(worst), human_bytes(worst.resident), human_bytes(gradients),
      human_bytes(worst.activations_peak), worst.microbatches_peak);
  int32_t slow = 0;
  for (int32_t i = 1; i < run.ranks(); ++i) {
    if (run.rank(i).computing > run.rank(slow).computing) slow = i;
  }
  text += fmt::format("most compute: rank {}, {} of {}\n", slow, human_seconds(run.rank(slow).computing),
                      human_seconds(run.seconds()));
  return text;
}

}  // namespace

std::string to_text(const PipelineRun& run) {
  const PipelineSchedule& schedule = run.schedule();
  std::string text = fmt::format(
      "{}: {} stages on {} ranks, {} micro-batches\na step takes {}; ranks wait {:.1f} % of it\n\n", schedule.name(),
      schedule.stages(), schedule.ranks(), schedule.microbatches(), human_seconds(run.seconds()), 100 * run.bubble());
  text += stage_table(run.stages()) + "\n" + rank_table(run) + "\n" + peak_summary(run);
  constexpr size_t kShown = 6;
  const auto& notes = run.stages().notes();
  for (size_t i = 0; i < std::min(kShown, notes.size()); ++i) text += "note: " + notes[i] + "\n";
  if (notes.size() > kShown) text += fmt::format("note: and {} more, in the JSON\n", notes.size() - kShown);
  return text;
}

nlohmann::json to_json(const PipelineRun& run) {
  nlohmann::json json{{"schedule", run.schedule().name()}, {"microbatches", run.schedule().microbatches()},
                      {"seconds", run.seconds()},          {"bubble", run.bubble()},
                      {"worst_rank", run.worst_rank()},    {"notes", run.stages().notes()},
                      {"stages", nlohmann::json::array()}, {"ranks", nlohmann::json::array()}};
  for (int32_t s = 0; s < run.stages().count(); ++s) {
    const StageCosts& of = run.stages().of(s);
    json["stages"].push_back({{"begins", of.begins},
                              {"forward_seconds", of.forward},
                              {"input_gradient_seconds", of.input_gradient},
                              {"weight_gradient_seconds", of.weight_gradient},
                              {"exposed_seconds", of.exposed.forward + of.exposed.backward},
                              {"unshard_seconds", of.unshard},
                              {"reduce_gradients_seconds", of.reduce_gradients},
                              {"optimizer_seconds", of.optimizer},
                              {"parameter_bytes", of.parameters},
                              {"optimizer_state_bytes", of.optimizer_state},
                              {"gradient_bytes", of.gradients},
                              {"carried_bytes", of.carried},
                              {"sends_forward_bytes", of.sends_forward},
                              {"sends_backward_bytes", of.sends_backward}});
  }
  for (int32_t r = 0; r < run.ranks(); ++r) {
    const PipelineRank& rank = run.rank(r);
    nlohmann::json entry{{"stages", rank.stages},
                         {"computing_seconds", rank.computing},
                         {"waits",
                          {{"before", rank.waits.before},
                           {"forward", rank.waits.forward},
                           {"backward", rank.waits.backward},
                           {"unshard", rank.waits.unshard},
                           {"reduce", rank.waits.reduce},
                           {"after", rank.waits.after}}},
                         {"resident_bytes", rank.resident},
                         {"peak_bytes", rank.peak},
                         {"peak_at", peak_moment(rank)},
                         {"activations_peak_bytes", rank.activations_peak},
                         {"host_peak_bytes", rank.host_peak},
                         {"microbatches_peak", rank.microbatches_peak}};
    if (rank.reserved_peak > 0) {
      entry["allocated_peak_bytes"] = rank.allocated_peak;
      entry["reserved_peak_bytes"] = rank.reserved_peak;
    }
    json["ranks"].push_back(std::move(entry));
  }
  return json;
}

}  // namespace shadowgraph
