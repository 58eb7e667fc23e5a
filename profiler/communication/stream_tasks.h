// When the tasks of several streams run on one device, or on several that meet.
//
// A task begins when the host has issued it, what its stream was given before is done, and so is all that it waits for.
// Kernels take turns: the device computes one at a time, first what was first ready. Collectives run beside kernels, and
// each of them takes its share of the device, so that kernels go on at (1 - share) of their speed. Copies of engines run
// beside both, and take nothing. A task of no seconds is a mark that others wait for.
//
// A task may be one device's part of a meeting: a collective, or a send with its receive. The parts begin together, when
// all of them could, and last as long as the longest.
//
// While no kernel runs, the device waits, and for what is known. It is the chain of collectives that held up what comes
// next, or the host, its copies included.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ir/text/tensor_bytes.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/step_time.h"

namespace shadowgraph {

// Calls f(value) for its results and for operands that it writes, such as `out=` of an operator that returns nothing.
template <class F>
void for_each_made(const Graph& graph, NodeId node, F&& f) {
  graph.for_each_output(node, f);
  const auto arguments = graph.arguments(node);
  for (const uint16_t at : graph.facts(node).written) {
    if (at < arguments.size()) graph.for_each_value(arguments.subspan(at, 1), f);
  }
}

class StreamSchedule {
 public:
  static constexpr uint32_t kNone = 0xFFFFFFFFU;

  struct Task {
    double issued = 0;  // by the host; seconds from the beginning, as all here
    double seconds = 0;
    bool is_collective = false;
    bool is_copy = false;  // of an engine
    uint32_t device = 0;
    uint32_t meeting = kNone;  // of add_meeting()
  };
  // The device waits for a collective, until `waiter` can begin; kNone: until all its tasks are done.
  struct Wait {
    uint32_t collective;
    uint32_t waiter;
    double seconds;
    uint32_t device = 0;
  };

  // Tasks come in the order in which they are issued. `after` are earlier tasks, kNone is nobody; among them is the one
  // before on the stream.
  uint32_t add(const Task& task, std::span<const uint32_t> after);
  uint32_t add_meeting(uint32_t parts);
  const Task& task(uint32_t number) const { return tasks_[number]; }
  uint32_t tasks() const { return static_cast<uint32_t>(tasks_.size()); }
  // `share`: of the device, that a collective takes; 0 <= share < 1.
  void run(double share);

  double seconds() const { return seconds_; }
  // Tasks that never ran: they, or what they wait for, are parts of meetings to which not all come.
  std::vector<uint32_t> stuck() const;
  double start(uint32_t task) const { return start_[task]; }
  double end(uint32_t task) const { return end_[task]; }
  const std::vector<Wait>& waits() const { return waits_; }
  struct DeviceSum {
    double computing = 0;  // kernels, as slow as they were
    double slowed = 0;     // how much longer kernels took beside collectives
    double waits_for_host = 0;
    double end = 0;  // of its last task
  };
  const DeviceSum& device(uint32_t device) const { return devices_[device]; }
  double waits_for_host() const { return devices_.empty() ? 0 : devices_[0].waits_for_host; }
  double slowed() const { return devices_.empty() ? 0 : devices_[0].slowed; }

 private:
  class Run;
  std::vector<Task> tasks_;
  std::vector<uint32_t> after_;
  std::vector<size_t> after_begin_{0};
  std::vector<double> start_, end_;
  std::vector<uint32_t> parts_of_meeting_;
  std::vector<char> has_run_;
  std::vector<Wait> waits_;
  std::vector<DeviceSum> devices_;
  double seconds_ = 0;
};

// Who wrote which bytes of one storage last: intervals by their first byte, each with the writes that reach it. A write
// or read costs no more than the parts that it meets, even where a storage is written in thousands.
template <class Writer>
class WrittenParts {
 public:
  // A write replaces those within it. What it meets in part stays, as a tensor need not reach all bytes from its first to
  // its last.
  void note(int64_t begin, int64_t end, const Writer& writer) {
    if (begin >= end) return;
    split(begin);
    split(end);
    auto at = intervals_.lower_bound(begin);
    for (int64_t from = begin; from < end;) {
      if (at == intervals_.end() || at->first > from) {
        const int64_t until = at == intervals_.end() ? end : std::min(end, at->first);
        at = intervals_.emplace_hint(at, from, Interval{until, {}});
      }
      std::vector<Write>& writes = at->second.writes;
      std::erase_if(writes, [&](const Write& old) { return begin <= old.begin && old.end <= end; });
      writes.push_back({begin, end, writer});
      from = at->second.end;
      at = std::next(at->first > begin ? join(at) : at);
    }
  }

  // Calls f(writer) once for each write that reaches any of these bytes.
  template <class F>
  void for_each(int64_t begin, int64_t end, F&& f) const {
    auto at = intervals_.upper_bound(begin);
    if (at != intervals_.begin() && std::prev(at)->second.end > begin) --at;
    for (; at != intervals_.end() && at->first < end; ++at) {
      for (const Write& write : at->second.writes) {
        if (at->first <= std::max(write.begin, begin)) f(write.writer);  // the first interval of the write that is read
      }
    }
  }

 private:
  struct Write {
    int64_t begin, end;
    Writer writer;
  };
  struct Interval {
    int64_t end;
    std::vector<Write> writes;  // each reaches all of it
  };
  using Intervals = std::map<int64_t, Interval>;

  void split(int64_t at) {
    auto next = intervals_.upper_bound(at);
    if (next == intervals_.begin()) return;
    auto of = std::prev(next);
    if (of->first >= at || of->second.end <= at) return;
    intervals_.emplace_hint(next, at, of->second);
    of->second.end = at;
  }
  // Takes an interval into the one before where the same writes reach both. No two have the same bytes.
  typename Intervals::iterator join(typename Intervals::iterator of) {
    auto before = std::prev(of);
    const auto same = [](const Write& a, const Write& b) { return a.begin == b.begin && a.end == b.end; };
    if (before->second.end != of->first || !std::ranges::equal(before->second.writes, of->second.writes, same))
      return of;
    before->second.end = of->second.end;
    intervals_.erase(of);
    return before;
  }

  Intervals intervals_;
};

// Who wrote a part of a storage last, so that a reader of one part does not wait for who writes another.
// Writer is what the caller knows a write by. Parts are bytes from the first to the last that a tensor reaches.
template <class Writer>
class LastWrites {
 public:
  LastWrites(const Graph& graph) : graph_(graph) {}

  void note(ValueId value, const Writer& writer) {
    const Value& tensor = graph_.value(value);
    if (tensor.kind != ValueKind::kTensor || !tensor.storage.valid()) return;
    const auto [begin, end] = reached(value);
    parts_[tensor.storage.index].note(begin, end, writer);
  }

  // Calls f(writer) for each that wrote something of what the value reaches.
  template <class F>
  void for_each(ValueId value, F&& f) const {
    const Value& tensor = graph_.value(value);
    if (tensor.kind != ValueKind::kTensor || !tensor.storage.valid()) return;
    const auto found = parts_.find(tensor.storage.index);
    if (found == parts_.end()) return;
    const auto [begin, end] = reached(value);
    found->second.for_each(begin, end, std::forward<F>(f));
  }

 private:
  // The first byte and the one behind the last; of a tensor without strides, all.
  std::pair<int64_t, int64_t> reached(ValueId value) const {
    constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
    const Value& tensor = graph_.value(value);
    if (tensor.layout != c10::kStrided) return {0, kAll};
    const std::optional<int64_t> extent = extent_of(graph_.sizes(value), graph_.strides(value));
    if (!extent) return {0, kAll};
    const auto bytes = static_cast<int64_t>(c10::elementSize(tensor.dtype));
    return {tensor.offset * bytes, (tensor.offset + *extent) * bytes};
  }

  const Graph& graph_;
  std::unordered_map<uint32_t, WrittenParts<Writer>> parts_;  // by storage
};

// Makes tasks of the nodes of a program: on which stream each runs, and what it waits for (shadowgraph/profile/
// overlapped_step.h says by which rules).
//
// A product and a collective with the note "pieces" (shadowgraph/shard/apply.h) are as many tasks as it says. A rank
// has its own piece, so one fewer is sent:
//
//     gathered           1 2 3           scattered            1 2 3
//     product          0 1 2 3           product            1 2 3 0

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
