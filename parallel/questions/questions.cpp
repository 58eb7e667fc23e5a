#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>

#include "parallel/plan/what_would_fit.h"
#include "parallel/questions/asker.h"
#include "shadowgraph/parallel/given_plan.h"

namespace shadowgraph {
namespace {

struct Topic {
  PlanTopic about;
  const char* name;
  PlanTable (*ask)(Asker& asker, const PlanQuestion& question);
};
constexpr std::array<Topic, 6> kTopics = {{{PlanTopic::kDevices, "devices", ask_devices},
                                           {PlanTopic::kNetwork, "network", ask_network},
                                           {PlanTopic::kMemory, "memory", ask_memory},
                                           {PlanTopic::kBatch, "batch", ask_batch},
                                           {PlanTopic::kSequence, "sequence", ask_sequence},
                                           {PlanTopic::kPrice, "price", ask_price}}};

}  // namespace

std::string to_string(PlanTopic topic) { return kTopics[static_cast<size_t>(topic)].name; }

std::optional<PlanTopic> plan_topic_named(std::string_view name) {
  for (const Topic& topic : kTopics) {
    if (name == topic.name) return topic.about;
  }
  return std::nullopt;
}

std::vector<std::string> plan_topic_names() {
  std::vector<std::string> names;
  for (const Topic& topic : kTopics) names.emplace_back(topic.name);
  return names;
}

struct PlanQuestions::Kept {
  Asker asker;
  int simulated;  // of a plan; a row of a table has one
};

PlanQuestions::PlanQuestions(StepSource source, ClusterRequest request) {
  const int simulated = request.simulated;
  kept_ = std::make_shared<Kept>(Kept{Asker(std::move(source), std::move(request)), simulated});
}

PlanAnswer PlanQuestions::plan() {
  ClusterRequest request = kept_->asker.request();
  request.simulated = kept_->simulated;
  PlanAnswer answer = try_plan(kept_->asker.source(), request, kept_->asker.kept(), true);
  if (answer.simulated.empty()) {
    throw NoTrainingPlanError(what_would_fit(kept_->asker.source(), request, kept_->asker.kept()));
  }
  return answer;
}

PlanTable PlanQuestions::ask(const PlanQuestion& question) {
  if (!(question.share > 0 && question.share <= 1)) {
    throw Error(fmt::format("a share of the peak is above 0 and at most 1, not {}", question.share));
  }
  return kTopics[static_cast<size_t>(question.about)].ask(kept_->asker, question);
}

SimulatedPlan PlanQuestions::simulate(std::string_view plan) {
  const StepSource& source = kept_->asker.source();
  const ClusterRequest& request = kept_->asker.request();
  return kept_->asker.kept().simulator.of(source, request, given_plan(plan, source, request));
}

}  // namespace shadowgraph
