// The kinds of collectives, whichever library calls them.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shadowgraph/capture/process_group.h"
#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/names.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/memory.h"
#include "shadowgraph/profile/operator_costs.h"

namespace SHADOWGRAPH_API shadowgraph {

enum class CollectiveKind : uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kBroadcast,
  kReduce,
  kGather,
  kScatter,
  kSend,
  kReceive,
  kBarrier,
};
constexpr int kCollectiveKindCount = static_cast<int>(CollectiveKind::kBarrier) + 1;
constexpr auto enum_names(CollectiveKind) {
  return names_in_order<CollectiveKind>("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast",
                                        "reduce", "gather", "scatter", "send", "receive", "barrier");
}

// Links between processes. Each figure has a source: a data sheet, a library's sources, a measurement.
//
//     const Interconnect links = Interconnect::named("h100");

// What fewer processes than a block has reach each other by, where links join pairs. Among eight V100s, neighbours
// share one or two links, and some pairs none.
struct LinkGroup {
  int64_t processes = 0;  // of a group within a block of the level, at least; up to the next entry's
  double bandwidth = 0;   // as of LinkLevel
  double direct = 0;
  friend bool operator==(const LinkGroup&, const LinkGroup&) = default;
};

// Processes in blocks of `size` neighbours in rank (8 in a machine) reach each other by this.
struct LinkLevel {
  std::string name;                    // "nvlink"
  int64_t size = 0;                    // 0, for the outermost alone: all processes
  double latency = 0;                  // seconds of a hop
  double bandwidth = 0;                // B/s that one process sends round a ring, while it receives as much
  double direct = 0;                   // B/s that one process sends to all others at once (all_to_all); 0: as bandwidth
  std::vector<LinkGroup> groups = {};  // processes rising
  friend bool operator==(const LinkLevel&, const LinkLevel&) = default;
};

// (payload bytes, seconds): between two points linear, below the first as that, beyond the last on at its rate.
using CollectiveTable = std::vector<std::pair<double, double>>;

// What is known of one axis of a mesh, in place of the levels.
struct AxisLinks {
  std::optional<double> latency;
  std::optional<double> bandwidth;
  std::map<CollectiveKind, CollectiveTable> tables;  // measured on that axis
  friend bool operator==(const AxisLinks&, const AxisLinks&) = default;
};

struct Interconnect {
  std::string name;   // "h100"
  std::string title;  // "8 x H100 by NVLink, nodes by 400 Gb/s InfiniBand"
  double base = 0;    // seconds of any call: its kernel begins and ends
  // What a collective takes of the device while it runs: kernels beside it go on at (1 - share) of their speed.
  double device_share = 0;
  // Steps of a ring that filling it costs, beyond the n - 1 (all_reduce: 2 n - 2) in which its bytes go round.
  double ring_fill = 0;
  std::vector<LinkLevel> levels;
  std::map<std::string, AxisLinks> axes;
  // Measured, by processes of the group, which lie as closely as the levels allow; an axis's own come first.
  std::map<CollectiveKind, std::map<int64_t, CollectiveTable>> tables;
  std::map<std::string, std::string> sources;  // by figure; "*" for all that are not named

  // "v100", "a100", "h100", "h200", "b200", "mi300x", "pcie4", "pcie5". Throws Error.
  static Interconnect named(std::string_view name);
  static std::vector<std::string> names();
  // A name, or a file if there is one of that name.
  static Interconnect find(const std::string& name_or_file);
  // docs/interconnect.schema.json, docs/time.md. Throws ParseError, FileError.
  static Interconnect read_file(const std::string& path);
  void write_file(const std::string& path) const;
  // Takes over the tables of lines of comma-separated values, after one with the columns' names. These are, in any
  // order, collective ("all_reduce"), processes, bytes of payload, seconds, and perhaps axis. A size that is there
  // several times takes the median. Throws ParseError, with file and line, and FileError.
  void add_csv(const std::string& path);
};
nlohmann::json to_json(const Interconnect& links);

// A device, the links between several of them, and the memory of each, as options name them.
//
//     const Machine machine = Machine::find("h100");
//     StepTime::of(graph, machine.specs());
//     plan.links = machine.network();      // throws Error where no links are known: one names them with --interconnect

struct Machine {
  std::optional<DeviceSpec> device;   // nothing: no figures are known of devices of `kind`
  std::optional<Interconnect> links;  // nothing: none are named, and none are known around the device
  std::optional<MemoryLimit> memory;  // as given, or the device's; nothing: unknown
  c10::DeviceType kind = c10::kCUDA;

  // Throw Error, which names the option, where nothing is known.
  const DeviceSpec& specs() const;
  const Interconnect& network() const;

  static Machine of(const DeviceSpec& device);
  // Device and links: a name, or a file if there is one of that name. Without a device it is that of `memory`, except
  // for CPUs; else what fits `kind`: "h100" for CUDA, for the CPU this machine's calibration if there is one, else
  // "cpu". Without links those of the device's file.
  static Machine find(const std::string& device, const std::string& interconnect = {},
                      const std::optional<MemoryLimit>& memory = {}, c10::DeviceType kind = c10::kCUDA);
};

Interconnect interconnect_from_json(const nlohmann::json& json, const std::string& name);  // throws ParseError

// One collective of n processes.
//
// The payload B is the whole tensor: what all_reduce, broadcast, reduce_scatter and all_to_all are given, and what
// all_gather gives. For gather and scatter it is n tensors.
//
//                                    wire bytes    hops          ring of all processes, unless said otherwise
//     all_gather, reduce_scatter     (n-1)/n B     n-1
//     all_reduce, ring               2 (n-1)/n B   2 (n-1)
//     all_reduce, tree               2 B           up and down a tree: chain in a block, binary above
//     all_to_all, gather, scatter    (n-1)/n B     n-1           direct: each pair by its own link
//     broadcast, reduce              B             n-1           pipelined
//     send, receive                  B             1
//     barrier                        0             as all_reduce
//
//     seconds = base + sum of the hops' latencies + wire bytes / bandwidth;   0 for one process
//
// all_reduce takes the faster of ring and tree, as NCCL's tuning does. Where a group spans blocks, a ring crosses from
// one to the next on as many links as the group has processes in a block. So bandwidth = min(inner, outer x processes).

enum class CollectiveAlgorithm : uint8_t { kNone, kRing, kTree, kDirect, kTable };
constexpr auto enum_names(CollectiveAlgorithm) {
  return names_in_order<CollectiveAlgorithm>("none", "ring", "tree", "direct", "table");
}

struct CollectiveCost {
  int64_t wire = 0;    // bytes that a process sends, or receives, the larger; of the busiest process
  double latency = 0;  // seconds; of a table: all of it
  double transfer = 0;
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kNone;
  double seconds() const { return latency + transfer; }
};

// `group` without ranks: they are taken for neighbours, 0 to n - 1. `peer` of send and receive, a rank of the group;
// below 0: the next.
CollectiveCost collective_cost(CollectiveKind kind, int64_t payload, const ProcessGroupInfo& group,
                               const Interconnect& links, int64_t peer = -1);
// Without links: the ring's bytes, no seconds.
int64_t wire_bytes(CollectiveKind kind, int64_t payload, int64_t processes);

// All collectives of a graph, of `_c10d_functional`, `c10d` and `_dtensor`.
//
//     const Interconnect links = Interconnect::named("h100");
//     const Communication communication = Communication::of(graph, {.interconnect = &links});
//     communication.total().wire;                                    // bytes that this process sends

struct CommunicationOptions {
  const Interconnect* interconnect = nullptr;  // none: bytes, no seconds
  // Groups that the graph names and does not describe (a graph from elsewhere): the axes of this mesh, by name.
  std::vector<MeshAxis> mesh;
};

struct Collective {
  NodeId node;
  CollectiveKind kind = CollectiveKind::kAllReduce;
  uint32_t group = 0;         // in groups()
  int64_t payload = 0;        // bytes
  CollectiveCost cost;        // seconds only with an interconnect
  bool asynchronous = false;  // the program goes on; otherwise it waits here
};

struct CommunicationSum {
  int64_t calls = 0;
  int64_t payload = 0;  // bytes
  int64_t wire = 0;     // bytes
  double seconds = 0;
  CommunicationSum& operator+=(const CommunicationSum& other);
};

class Communication {
 public:
  // Linear. Once the graph is gone, sums by phase, module and forward node throw Error; the others answer still.
  static Communication of(const Graph& graph, const CommunicationOptions& options = {});

  bool empty() const { return collectives_.empty() && uncovered_.empty(); }
  // In program order.
  std::span<const Collective> collectives() const { return collectives_; }
  const Collective* find(NodeId node) const;  // nullptr if it is none
  std::span<const ProcessGroupInfo> groups() const { return groups_; }
  // Collectives that are in no figure: operators without a row, groups of unknown size.
  std::span<const UncoveredOperator> uncovered() const { return uncovered_; }
  bool has_seconds() const { return has_seconds_; }
  const std::string& interconnect() const { return interconnect_; }  // title
  double device_share() const { return device_share_; }              // Interconnect::device_share

  CommunicationSum total() const;
  CommunicationSum of(CollectiveKind kind) const;
  CommunicationSum of(PhaseId phase) const;
  CommunicationSum of_group(uint32_t group) const;
  // Sums what a forward node sends: its own, and those that differentiate it.
  CommunicationSum forward(NodeId node) const;
  CommunicationSum backward(NodeId node) const;

  struct ModuleCommunication {
    std::string path;  // "" for what is in no module
    CommunicationSum forward, backward;
  };
  // Modules that communicate themselves, not through one inside them; phases that are neither count as forward.
  std::vector<ModuleCommunication> by_module() const;

 private:
  template <class Wanted>
  CommunicationSum sum_if(Wanted&& wanted) const;

  WeakGraph graph_;
  std::vector<Collective> collectives_;
  IdMap<NodeId, uint32_t> of_node_;                   // 1 + index
  IdMap<NodeId, std::vector<uint32_t>> backward_of_;  // of forward nodes: indices
  std::vector<ProcessGroupInfo> groups_;
  std::vector<UncoveredOperator> uncovered_;
  std::string interconnect_;
  double device_share_ = 0;
  bool has_seconds_ = false;
};

}  // namespace shadowgraph
