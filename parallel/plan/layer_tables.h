// Figures of layers under each way to cut a micro-batch, from captures of a few layers.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "parallel/plan/candidate.h"
#include "parallel/plan/plan_simulator.h"
#include "parallel/plan/plan_space.h"
#include "shadowgraph/parallel/training_plan.h"
#include "shadowgraph/sharding/expert_ranks.h"

namespace shadowgraph {

struct LayoutTables {
  ExpertLayers experts;
  std::map<int64_t, std::vector<RecomputeLevel>> chains;  // by ranks that share experts
};

// Figures of layers, and whole steps, of one source on one device and its links, with one training state and one length
// of sequences. How many devices there are, their memory, the batch, and what is tried do not change them.
struct KeptTables {
  std::vector<std::string> units;  // where they begin, in the model that tables are made from
  bool layers_differ = false;
  // By sizes, experts on one rank, and whether layers may be on the host, and kept by the curve. nullptr: a step is not
  // cut so.
  std::map<std::tuple<LayoutSizes, bool, bool>, std::unique_ptr<LayoutTables>> layouts;
  double flops = 0;  // of a sample
  std::vector<std::string> notes;
  PlanSchedules schedules;
  PlanSimulator simulator;
};

class LayerTables {
 public:
  // All three outlive it.
  LayerTables(const StepSource& source, const ClusterRequest& request, KeptTables& kept)
      : source_(source), request_(request), kept_(kept) {}

  // The ways of the request that a step can be cut, each with its tables; experts are on one rank.
  const std::vector<LayoutSizes>& layouts();
  // nullptr: the step cannot be cut so.
  const LayoutTables* of(const LayoutSizes& sizes);
  // Data ranks that may share them.
  std::vector<int64_t> expert_ranks(const ExpertLayers& layers) const;

 private:
  struct LayersDiffer {};
  struct StepLevel {
    Recompute what;
    bool on_host;
    Graph step;
    std::vector<std::string> keeps = {};
  };

  int64_t layers_captured() const;  // 0: all
  int64_t more_layers() const;
  std::vector<std::string> layers() const;
  bool by_curve() const;
  std::vector<StepLevel> levels_of(const Graph& kept) const;
  LayerChain chain(const Graph& step, const ExpertRanks& experts) const;
  ExpertLayers experts_of(const Graph& step, int64_t tensor);
  void count_flops(const Graph& step, int64_t tensor, int64_t micro_batch);
  std::vector<int64_t> contexts();
  const LayoutTables* tables_of(const LayoutSizes& sizes);
  std::vector<LayoutSizes> all_layouts();

  const StepSource& source_;
  const ClusterRequest& request_;
  KeptTables& kept_;
  std::optional<std::vector<LayoutSizes>> layouts_;
};

}  // namespace shadowgraph
