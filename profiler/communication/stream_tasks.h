// Makes tasks of the nodes of a program: on which stream each runs, and what it waits for (shadowgraph/profile/
// overlapped_step.h says by which rules).
//
// A product and a collective with the note "pieces" (shadowgraph/sharding/overlap.h) are as many tasks as it says. A rank
// has its own piece, so one fewer is sent:
//
//     gathered           1 2 3           scattered            1 2 3
//     product          0 1 2 3           product            1 2 3 0
#pragma once

#include <functional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "profiler/communication/last_writes.h"
#include "profiler/time/stream_schedule.h"
#include "shadowgraph/graph.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/step_time.h"

namespace shadowgraph {

struct StreamTaskRules {
  uint32_t device = 0;  // that runs them
  // What a collective takes; none: what it costs.
  std::function<double(const Collective&)> seconds;
  // Collectives of one channel run one after another; none: those of a group.
  std::function<uint32_t(const Collective&)> channel;
  // Which of the schedule's meetings it is a part of; none: no device waits for others.
  std::function<uint32_t(const Collective&)> meeting;
  // The nodes are a part of a program: what came before is done.
  bool is_part = false;
  // Products and collectives go as wholes, whatever their notes say.
  bool whole = false;
};

class StreamTasks {
 public:
  StreamTasks(const Graph& graph, const Communication& communication, const StepTime& time, StreamSchedule& schedule,
              StreamTaskRules rules = {});
  void add(NodeId node);  // in program order

  // Calls f(node, task): that of a node which takes no time and waits for nothing is the last before it on its stream.
  template <class F>
  void for_each_node(F&& f) const {
    for (const auto& [node, task] : nodes_) f(node, task);
  }
  // Invalid for kNone, and for tasks of others.
  NodeId node_of(uint32_t task) const {
    return task >= first_ && task - first_ < node_of_.size() ? node_of_[task - first_] : NodeId();
  }

 private:
  struct Made {
    uint32_t task = StreamSchedule::kNone;
    uint32_t stream = 0;
  };
  // Streams of channels come behind those of the program.
  static constexpr uint32_t kFirstChannel = 1U << 30;
  // And those of copy engines, to the host and back.
  static constexpr uint32_t kFirstEngine = 1U << 31;

  static uint32_t& last_of(std::unordered_map<uint32_t, uint32_t>& tasks, uint32_t key) {
    return tasks.try_emplace(key, StreamSchedule::kNone).first->second;
  }
  uint32_t task(NodeId node, uint32_t stream, StreamSchedule::Task what);
  void wait_for(uint32_t event);
  void communicate(NodeId node, const Collective& collective, uint32_t stream);
  void communicate_in_pieces(NodeId node, uint32_t pieces, uint32_t stream, StreamSchedule::Task whole,
                             const std::vector<uint32_t>& made);
  void compute(NodeId node, uint32_t stream);
  void copy(NodeId node, uint32_t stream);
  uint32_t compute_in_pieces(NodeId node, uint32_t pieces, uint32_t stream, double seconds);
  uint32_t pieces_of(NodeId node) const;
  void wait_for_inputs(NodeId node, uint32_t stream);
  void wait_for_input(ValueId value, uint32_t stream);
  void makes(NodeId node, uint32_t made, uint32_t stream);

  const Graph& graph_;
  const Communication& communication_;
  const StepTime& time_;
  StreamSchedule& schedule_;
  const StreamTaskRules rules_;
  const uint32_t first_;         // of the schedule's tasks, that is this program's
  std::vector<NodeId> node_of_;  // by task
  std::vector<std::pair<NodeId, uint32_t>> nodes_;
  std::vector<uint32_t> after_;                                  // what the next task waits for
  std::unordered_map<uint32_t, uint32_t> last_on_;               // by stream
  std::unordered_map<uint32_t, uint32_t> last_of_channel_;       // by channel
  std::unordered_map<uint32_t, uint32_t> events_;                // the last task before each
  LastWrites<Made> written_;                                     // by the tasks
  std::unordered_map<StorageId, std::vector<uint32_t>> pieces_;  // tasks that make what is sent or was gathered so
  double host_call_ = 0;
  double host_ = 0;  // when the host has issued the calls so far
};

}  // namespace shadowgraph
