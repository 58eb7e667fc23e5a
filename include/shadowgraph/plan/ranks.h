// Captured graphs of many ranks, run against each other: what they wait for, and how long the step takes.
//
//     const std::vector<RankGraph> ranks = {{.graph = &first, .ranks = {0, 1}}, {.graph = &last, .ranks = {2, 3}}};
//     const RankGraphsRun run = RankGraphsRun::of(ranks, {.spec = &h100, .interconnect = &links});
//     run.seconds(); run.rank(1).waits;
//
// Each graph is that of ranks[0], which runs for all that do the same (RankGraph::ranks). What it sends to another rank
// goes to the one that runs for that, and in a group those meet who run. A rank's kernels and collectives lie on the
// streams on which its program issued them (shadowgraph/profile/step_time.h). A collective begins when all who take
// part have come. Sends to a rank run one after another, as do receives from it.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/device_spec.h"

namespace SHADOWGRAPH_API shadowgraph {

struct RankGraph {
  const Graph* graph = nullptr;  // outlives the run
  std::vector<int64_t> ranks;    // of the whole program: the one it was captured as, then those that do the same
};

struct RankGraphsOptions {
  const DeviceSpec* spec = nullptr;            // none: what fits the graphs' device
  const Interconnect* interconnect = nullptr;  // none: communicating takes no time
};

struct RankFigures {
  int64_t rank = 0;
  double computing = 0;  // seconds
  double end = 0;        // of its computing
  // Seconds by cause: "receive from rank 3", "all_reduce of 8", "the host", "the end of the step".
  std::map<std::string, double> waits;
  double waiting() const;
};

class RankGraphsRun {
 public:
  // Throws Error for a rank that several graphs run for, and for one that is sent to and that none runs for. Throws it,
  // too, for ranks that wait for ever or do not meet in what they communicate.
  static RankGraphsRun of(std::span<const RankGraph> ranks, const RankGraphsOptions& options = {});

  double seconds() const { return seconds_; }       // of a step
  size_t ranks() const { return figures_.size(); }  // that run
  const RankFigures& rank(size_t index) const { return figures_[index]; }
  // What a rank did when: name, begin, end; communications too.
  struct Event {
    std::string name;
    bool computes = false;
    double begin = 0;
    double end = 0;
    int64_t other = -1;  // rank of a send or receive
    uint64_t pair = 0;   // number of a transfer, the same at both ends; 0: none
    bool sends = false;
  };
  std::span<const Event> events(size_t index) const { return events_[index]; }

 private:
  double seconds_ = 0;
  std::vector<RankFigures> figures_;
  std::vector<std::vector<Event>> events_;
};

std::string to_text(const RankGraphsRun& run);
nlohmann::json to_json(const RankGraphsRun& run);
// A process a rank, lanes for computing and communicating, arrows from sends to receives.
std::string to_chrome_trace(const RankGraphsRun& run);

}  // namespace shadowgraph
