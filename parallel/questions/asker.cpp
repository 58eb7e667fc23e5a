#include "parallel/questions/asker.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "shadowgraph/edit/copy.h"
#include "shadowgraph/units.h"

namespace shadowgraph {
namespace {

// A rank's seconds of collectives that its computing does not hide, and of those that it waits for.
double exposed_of(const PipelineRun& run, int32_t rank) {
  double seconds = run.rank(rank).waits.unshard + run.rank(rank).waits.reduce;
  for (const PipelineActionTime& at : run.actions(rank)) {
    if (!computes(at.action)) continue;
    const PieceSeconds& exposed = run.stages().of(at.action.stage).exposed_unsharded;
    switch (at.action.work) {
      case PipelineWork::kForward:
        seconds += exposed.forward;
        break;
      case PipelineWork::kBackward:
        seconds += exposed.backward;
        break;
      case PipelineWork::kInputGradient:
        seconds += exposed.input_gradient;
        break;
      case PipelineWork::kWeightGradient:
        seconds += exposed.weight_gradient;
        break;
      default:
        break;
    }
  }
  return seconds;
}

}  // namespace

Asker::Asker(StepSource source, ClusterRequest request) : source_(remembered(source)), request_(std::move(request)) {
  request_.simulated = 1;
}

const StepSource& Asker::source_of(int64_t sequence) {
  if (sequence == request_.sequence) return source_;
  if (!source_.with_sequence) {
    throw Error(source_.name + " has sequences of one length: its source makes no others");
  }
  const auto known = sequences_.find(sequence);
  if (known != sequences_.end()) return known->second;
  return sequences_.emplace(sequence, remembered(source_.with_sequence(sequence))).first->second;
}

PlanRow Asker::row(std::string value, double number, const StepSource& source, const ClusterRequest& request,
                   KeptTables& kept) {
  PlanRow row{.value = std::move(value), .number = number, .devices = request.devices};
  try {
    const PlanAnswer answer = try_plan(source, request, kept, false);
    if (answer.simulated.empty()) {
      row.why_not = fmt::format("nothing fits into {}", human_bytes(answer.memory));
      return row;
    }
    const SimulatedPlan& best = answer.best();
    row.plan = best.plan;
    row.seconds = best.run.seconds();
    row.bytes = best.bytes();
    row.tokens_per_second = answer.tokens_per_second();
    row.share = answer.model_flops_share();
    row.waiting = best.run.bubble();
    for (int32_t rank = 0; rank < best.run.ranks(); ++rank) row.exposed += exposed_of(best.run, rank);
    row.exposed /= best.run.ranks();
    excess_ = std::max(excess_, static_cast<double>(row.bytes) / static_cast<double>(best.estimated_bytes));
  } catch (const NoTrainingPlanError& error) {  // not even a program
    row.why_not = error.what();
  }
  return row;
}

bool Asker::fits(const StepSource& source, const ClusterRequest& request, KeptTables& kept) {
  try {
    const auto memory = static_cast<double>(memory_of(request));
    return first_that_fits(source, request, kept, static_cast<int64_t>(memory / excess_)).has_value();
  } catch (const NoTrainingPlanError&) {
    return false;
  }
}

StepSource remembered(const StepSource& source) {
  StepSource made = source;
  const auto known = std::make_shared<std::map<std::pair<int64_t, int64_t>, Graph>>();
  made.capture = [capture = source.capture, layers = source.layers, known](const StepSize& size) {
    if (layers > 0 && size.layers == 0) return capture(size);  // whole, and seldom the same again
    const std::pair key{size.micro_batch, size.layers};
    const auto found = known->find(key);
    return clone(found != known->end() ? found->second : known->emplace(key, capture(size)).first->second);
  };
  return made;
}

std::vector<double> values_of(const PlanQuestion& question, std::vector<double> usual) {
  std::vector<double> values = question.values.empty() ? std::move(usual) : question.values;
  for (const double value : values) {
    if (!(value > 0) || !std::isfinite(value)) {
      throw Error(fmt::format("values of --what {} are above 0, not {}", to_string(question.about), value));
    }
  }
  std::ranges::sort(values);
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

int64_t machine_of(const ClusterRequest& request) {
  const int64_t machine = request.links.levels.empty() ? 1 : request.links.levels.front().size;
  return machine > 0 && request.devices % machine == 0 ? machine : 1;
}

}  // namespace shadowgraph
