// What all questions ask: the best plan of a changed request, as a row.
#pragma once

#include <map>
#include <string>

#include "parallel/plan/planner.h"
#include "shadowgraph/parallel/plan_questions.h"

namespace shadowgraph {

class Asker {
 public:
  Asker(StepSource source, ClusterRequest request);

  const StepSource& source() const { return source_; }
  const ClusterRequest& request() const { return request_; }
  // Tables of the request's own device, links and sequence.
  KeptTables& kept() { return kept_["own"]; }
  // Tables of something else, by what that is called.
  KeptTables& kept(const std::string& other) { return kept_[other]; }
  // The same model on sequences of so many tokens. Throws Error for sources that have one length.
  const StepSource& source_of(int64_t sequence);

  PlanRow row(std::string value, double number, const StepSource& source, const ClusterRequest& request,
              KeptTables& kept);
  PlanRow row(std::string value, double number, const ClusterRequest& request) {
    return row(std::move(value), number, source_, request, kept());
  }
  // Whether something fits by the figures of layers, where simulated plans need as much more as they did so far.
  bool fits(const StepSource& source, const ClusterRequest& request, KeptTables& kept);

 private:
  StepSource source_;
  ClusterRequest request_;
  std::map<std::string, KeptTables> kept_;
  std::map<int64_t, StepSource> sequences_;
  double excess_ = 1;  // most of simulated bytes over estimated ones
};

// Captures with few layers are made once.
StepSource remembered(const StepSource& source);

PlanTable ask_devices(Asker& asker, const PlanQuestion& question);
PlanTable ask_network(Asker& asker, const PlanQuestion& question);
PlanTable ask_memory(Asker& asker, const PlanQuestion& question);
PlanTable ask_batch(Asker& asker, const PlanQuestion& question);
PlanTable ask_sequence(Asker& asker, const PlanQuestion& question);
PlanTable ask_price(Asker& asker, const PlanQuestion& question);

// The question's values, or `usual` ones. Throws Error for values that are not above 0.
std::vector<double> values_of(const PlanQuestion& question, std::vector<double> usual);
// Processes that the innermost links join, if they divide the devices; otherwise 1.
int64_t machine_of(const ClusterRequest& request);

}  // namespace shadowgraph
