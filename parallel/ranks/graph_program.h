// Writes a captured graph as a rank's program.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shadowgraph/parallel/rank_graphs.h"
#include "shadowgraph/profile/communication.h"

namespace shadowgraph {

// Which of the ranks that run stands for each rank of the program.
class StandIns {
 public:
  explicit StandIns(std::span<const RankGraph> ranks);  // throws Error
  // Index of the graph that runs for a rank. Throws Error.
  uint32_t of(int64_t rank) const;
  int64_t captured(uint32_t index) const { return captured_[index]; }

 private:
  std::map<int64_t, uint32_t> by_rank_;
  std::vector<int64_t> captured_;
};

// The groups in which ranks that run meet, by those ranks and by how many groups of the same a rank had before.
class MeetingGroups {
 public:
  uint32_t number_of(const std::vector<uint32_t>& members, uint32_t place);
  const std::vector<std::vector<uint32_t>>& all() const { return groups_; }

 private:
  std::map<std::pair<std::vector<uint32_t>, uint32_t>, uint32_t> numbers_;
  std::vector<std::vector<uint32_t>> groups_;
};

struct GraphProgram {
  struct Step {
    std::string name;   // in words
    std::string cause;  // of waiting for it
    bool computes = false;
    int64_t other = -1;
    bool sends = false;
  };
  RankProgram program;
  std::vector<Step> steps;  // by RankStep::what
};

GraphProgram graph_program(const RankGraph& rank, uint32_t index, const RankGraphsOptions& options,
                           const StandIns& stand_ins, MeetingGroups& groups);

}  // namespace shadowgraph
