// Writes the captured graphs of ranks as tasks of one schedule, a device each, which meet where they communicate.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "profiler/communication/stream_tasks.h"
#include "profiler/program_costs.h"
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

// Who comes where: the n-th communication of a rank in a channel meets the n-th of the others.
class RankMeetings {
 public:
  // Ranks that run, and which of several channels among the same.
  using Channel = std::pair<std::vector<uint32_t>, uint64_t>;

  explicit RankMeetings(StreamSchedule& schedule) : schedule_(schedule) {}
  uint32_t number_of(const Channel& channel);
  // The meeting that a rank now comes to. `match`: all who come say the same; `name`: in words. Throws Error.
  uint32_t come(uint32_t channel, uint32_t rank, uint32_t parts, uint64_t match, const std::string& name);

 private:
  struct Meeting {
    uint32_t number = 0;
    uint64_t match = 0;
    uint32_t first = 0;  // who came first, and what it does there
    std::string name;
  };
  struct Line {
    std::vector<Meeting> meetings;
    std::map<uint32_t, size_t> next;  // by rank
  };
  StreamSchedule& schedule_;
  std::map<Channel, uint32_t> numbers_;
  std::vector<Line> lines_;
};

// One rank's part of the schedule.
class RankTasks {
 public:
  // `rank`, `stand_ins`, `meetings` and the schedule outlive it.
  RankTasks(const RankGraph& rank, uint32_t index, const RankGraphsOptions& options, const StandIns& stand_ins,
            RankMeetings& meetings, StreamSchedule& schedule);

  double device_share() const { return communication_.device_share(); }
  bool has(uint32_t task) const { return tasks_->node_of(task).valid(); }
  // In words: "receive", "all_gather", or the module or phase that a kernel is of.
  std::string name_of(uint32_t task) const;
  // "receive from rank 3", "all_reduce of 8"
  std::string cause_of(uint32_t task) const;
  // A send or a receive has another end; below 0: none.
  int64_t other_end(uint32_t task) const;
  bool sends(uint32_t task) const;

 private:
  const Collective* collective(uint32_t task) const { return communication_.find(tasks_->node_of(task)); }
  std::string name_of(const Collective& collective) const;
  uint32_t channel_of(const Collective& collective);
  uint32_t meeting_of(const Collective& collective);
  int64_t peer_of(const Collective& collective) const;
  std::vector<uint32_t> members_of(const Collective& collective) const;

  const Graph& graph_;
  const uint32_t index_;
  const StandIns& stand_ins_;
  RankMeetings& meetings_;
  const ProgramCosts costs_;
  const DeviceSpec spec_;
  const StepTime time_;
  const Communication communication_;
  std::map<uint32_t, uint64_t> places_;  // of groups among those with the same members that run
  std::map<std::vector<uint32_t>, uint64_t> groups_of_;
  std::unique_ptr<StreamTasks> tasks_;
};

}  // namespace shadowgraph
