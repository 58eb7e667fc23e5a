// Simulates the tasks of several streams on one device, or on several devices with collectives between them.
//
// A task starts when the host has issued it, the previous task of its stream has finished, and so have all tasks it
// depends on. The device runs one kernel at a time, in the order in which they become ready. Collectives overlap with
// kernels and take a share of the device, so that kernels run at (1 - share) of their speed. Copy engines overlap with
// both at no cost. A task of zero seconds serves as an event that others wait for.
//
// A task may be one device's part of a rendezvous: a collective, or a send and its receive. The parts start together,
// as soon as all of them are ready, and take as long as the longest.
//
// Time in which a device runs no kernel is attributed to its cause: to the chain of collectives that delayed the next
// kernel, or to the host, including its copies.
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

// Calls f(value) for the results and for operands that the node writes, such as `out=`.
template <class F>
void for_each_written_value(const Graph& graph, NodeId node, F&& f) {
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
    double issued = 0;  // by the host; seconds since the start, as all times here
    double seconds = 0;
    bool is_collective = false;
    bool is_copy = false;  // on a copy engine
    uint32_t device = 0;
    uint32_t meeting = kNone;  // rendezvous, from add_rendezvous()
  };
  // The device is idle because of a collective, until `waiter` can start; kNone: until the end of the program.
  struct Wait {
    uint32_t collective;
    uint32_t waiter;
    double seconds;
    uint32_t device = 0;
  };

  // Adds a task, in issue order. `after` lists earlier tasks that it depends on, including the previous one of its
  // stream; kNone is ignored.
  uint32_t add(const Task& task, std::span<const uint32_t> after);
  uint32_t add_rendezvous(uint32_t parts);
  const Task& task(uint32_t number) const { return tasks_[number]; }
  uint32_t tasks() const { return static_cast<uint32_t>(tasks_.size()); }
  // `share`: fraction of the device that a collective takes; 0 <= share < 1.
  void run(double share);

  double seconds() const { return seconds_; }
  // Returns tasks that never ran: they, or tasks they depend on, are parts of an incomplete rendezvous.
  std::vector<uint32_t> stuck() const;
  double start(uint32_t task) const { return start_[task]; }
  double end(uint32_t task) const { return end_[task]; }
  const std::vector<Wait>& waits() const { return waits_; }
  struct DeviceSum {
    double computing = 0;  // kernels, including `slowed`
    double slowed = 0;     // time added to kernels by concurrent collectives
    double waits_for_host = 0;
    double end = 0;  // end of its last task
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

// The last writes to each byte range of one storage: intervals by their first byte, each with the writes that overlap
// it. A write or read costs no more than the intervals that it overlaps, even for a storage written in thousands.
template <class Writer>
class WrittenParts {
 public:
  // A write replaces earlier ones that it contains. Partially overlapped ones stay, since a tensor need not cover all
  // bytes from its first to its last.
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

  // Calls f(writer) once for each write that overlaps these bytes.
  template <class F>
  void for_each(int64_t begin, int64_t end, F&& f) const {
    auto at = intervals_.upper_bound(begin);
    if (at != intervals_.begin() && std::prev(at)->second.end > begin) --at;
    for (; at != intervals_.end() && at->first < end; ++at) {
      for (const Write& write : at->second.writes) {
        if (at->first <= std::max(write.begin, begin)) f(write.writer);  // only at the first interval of the write
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
    std::vector<Write> writes;  // each covers all of it
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
  // Merges an interval into the previous one if both have the same writes, which are identified by their byte range.
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

// The last writes to each part of a storage, so that a reader of one part does not wait for writers of another.
// `Writer` identifies a write. Parts are the bytes from the first to the last of a tensor.
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

  // Calls f(writer) for each write that overlaps the value.
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
  // Returns the byte range [first, end) of a tensor; the whole storage for a tensor without strides.
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

// Creates tasks from the nodes of a program, with their streams and dependencies (rules:
// shadowgraph/profile/step_time.h).
//
// Products and collectives with the note "pieces" (shadowgraph/shard/apply.h) become that many tasks. A rank owns one
// piece, so one fewer is sent:
//
//     gathered           1 2 3           scattered            1 2 3
//     product          0 1 2 3           product            1 2 3 0
struct StreamTaskOptions {
  uint32_t device = 0;  // runs the tasks
  // Time of a collective in seconds; if empty, its estimated cost.
  std::function<double(const Collective&)> seconds;
  // Collectives with the same channel run one after another; if empty, those of a process group do.
  std::function<uint32_t(const Collective&)> channel;
  // Returns the rendezvous of a collective in the schedule; if empty, devices do not wait for each other.
  std::function<uint32_t(const Collective&)> meeting;
  // The nodes are a part of a program; earlier parts have finished.
  bool is_part = false;
  // Ignores the note "pieces".
  bool whole = false;
};

class StreamTasks {
 public:
  StreamTasks(const Graph& graph, const Communication& communication, const StepTime& time, StreamSchedule& schedule,
              StreamTaskOptions rules = {});
  void add(NodeId node);  // in program order

  // Calls f(node, task). A node without time and dependencies is mapped to the previous task of its stream.
  template <class F>
  void for_each_node(F&& f) const {
    for (const auto& [node, task] : nodes_) f(node, task);
  }
  // Returns an invalid id for kNone, and for tasks of another program.
  NodeId node_of(uint32_t task) const {
    return task >= first_ && task - first_ < node_of_.size() ? node_of_[task - first_] : NodeId();
  }

 private:
  struct Made {
    uint32_t task = StreamSchedule::kNone;
    uint32_t stream = 0;
  };
  // Streams of channels are numbered from here, after those of the program.
  static constexpr uint32_t kFirstChannel = 1U << 30;
  // Streams of the two copy engines, to the host and back.
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
  const StreamTaskOptions rules_;
  const uint32_t first_;         // first task of this program in the schedule
  std::vector<NodeId> node_of_;  // by task
  std::vector<std::pair<NodeId, uint32_t>> nodes_;
  std::vector<uint32_t> after_;                                  // dependencies of the next task
  std::unordered_map<uint32_t, uint32_t> last_on_;               // by stream
  std::unordered_map<uint32_t, uint32_t> last_of_channel_;       // by channel
  std::unordered_map<uint32_t, uint32_t> events_;                // the last task before each
  LastWrites<Made> written_;                                     // by the tasks
  std::unordered_map<StorageId, std::vector<uint32_t>> pieces_;  // tasks of storages sent or gathered in pieces
  double host_call_ = 0;
  double host_ = 0;  // time at which the host has issued the calls so far
};

}  // namespace shadowgraph
