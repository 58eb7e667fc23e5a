// Communication: collectives, interconnects, and the cost of collectives of a graph.
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

// Links between processes. Every value has a source: a data sheet, a library's source code, a measurement.

// Links of small groups in a block with unequal links: among eight V100s, pairs share two, one or none.
struct LinkGroup {
  int64_t processes = 0;  // minimum group size; applies up to the next entry
  double bandwidth = 0;   // see LinkLevel
  double direct = 0;
  friend bool operator==(const LinkGroup&, const LinkGroup&) = default;
};

// Links between the processes of a block of `size` consecutive ranks, such as 8 in a machine.
struct LinkLevel {
  std::string name;                    // "nvlink"
  int64_t size = 0;                    // 0 (outermost level only): all processes
  double latency = 0;                  // seconds per hop
  double bandwidth = 0;                // B/s that a process sends in a ring, while receiving as much
  double direct = 0;                   // B/s that a process sends to all others at once (all_to_all); 0: as bandwidth
  std::vector<LinkGroup> groups = {};  // by increasing number of processes
  friend bool operator==(const LinkLevel&, const LinkLevel&) = default;
};

// Pairs of payload bytes and seconds: interpolated linearly, constant below the first, extrapolated beyond the last.
using CollectiveTable = std::vector<std::pair<double, double>>;

// Links of one axis of a mesh, which override the levels.
struct AxisLinks {
  std::optional<double> latency;
  std::optional<double> bandwidth;
  std::map<CollectiveKind, CollectiveTable> tables;  // measurements on that axis
  friend bool operator==(const AxisLinks&, const AxisLinks&) = default;
};

struct Interconnect {
  std::string name;   // "h100"
  std::string title;  // "8 x H100 by NVLink, nodes by 400 Gb/s InfiniBand"
  double base = 0;    // seconds per call, for kernel launch and completion
  // Fraction of the device that a running collective uses: concurrent kernels run at (1 - share) of their speed.
  double device_share = 0;
  // Additional steps to fill the pipeline of a ring, besides the n - 1 (all_reduce: 2 n - 2) of the transfer itself.
  double ring_fill = 0;
  std::vector<LinkLevel> levels;
  std::map<std::string, AxisLinks> axes;
  // Measurements by number of processes, for ranks placed as closely as possible; overridden by those of an axis.
  std::map<CollectiveKind, std::map<int64_t, CollectiveTable>> tables;
  std::map<std::string, std::string> sources;  // by name of the value; "*" for all others

  // "v100", "a100", "h100", "h200", "b200", "mi300x", "pcie4", "pcie5". Throws Error.
  static Interconnect named(std::string_view name);
  static std::vector<std::string> names();
  // Returns the interconnect in a file of that name if there is one, otherwise named().
  static Interconnect find(const std::string& name_or_file);
  // Format: docs/interconnect.schema.json, docs/time.md. Throws ParseError, FileError.
  static Interconnect read_file(const std::string& path);
  void write_file(const std::string& path) const;
  // Adds measurements from CSV with columns in any order: collective ("all_reduce"), processes, bytes (payload),
  // seconds, and optionally axis. Repeated sizes are replaced by their median. Throws ParseError with line, FileError.
  void add_csv(const std::string& path);
};
nlohmann::json to_json(const Interconnect& links);

// A device type, the interconnect between several of them, and the memory of each, as named by options.
struct Machine {
  std::optional<DeviceSpec> device;   // std::nullopt: no specs of devices of `kind`
  std::optional<Interconnect> links;  // std::nullopt: not given, and no default for the device
  std::optional<MemoryLimit> memory;  // as given, or the device's; std::nullopt: unknown
  c10::DeviceType kind = c10::kCUDA;

  // Return the specs and the interconnect, or throw Error that names the missing option.
  const DeviceSpec& specs() const;
  const Interconnect& network() const;

  static Machine of(const DeviceSpec& device);
  // `device` and `interconnect` are names or files. The default device is that of `memory`, unless it is a CPU;
  // otherwise "h100" for CUDA, and for the CPU this machine's calibration if there is one, else "cpu". The default
  // interconnect is that of the device's spec.
  static Machine find(const std::string& device, const std::string& interconnect = {},
                      const std::optional<MemoryLimit>& memory = {}, c10::DeviceType kind = c10::kCUDA);
};

Interconnect interconnect_from_json(const nlohmann::json& json, const std::string& name);  // throws ParseError

// Cost of a collective of n processes.
//
// The payload B is the whole tensor: the input of all_reduce, broadcast, reduce_scatter and all_to_all, the output of
// all_gather. For gather and scatter it is n tensors.
//
//                                    wire bytes    hops          algorithm: a ring of all processes by default
//     all_gather, reduce_scatter     (n-1)/n B     n-1
//     all_reduce, ring               2 (n-1)/n B   2 (n-1)
//     all_reduce, tree               2 B           up and down a tree: chain within a block, binary across blocks
//     all_to_all, gather, scatter    (n-1)/n B     n-1           direct: each pair uses its own link
//     broadcast, reduce              B             n-1           pipelined
//     send, receive                  B             1
//     barrier                        0             as all_reduce
//
//     seconds = base + sum of the hops' latencies + wire bytes / bandwidth;   0 for one process
//
// all_reduce uses the faster of ring and tree, as NCCL's tuning does. If a group spans blocks, a ring crosses between
// blocks on as many links as the group has processes in a block: bandwidth = min(inner, outer x processes).

enum class CollectiveAlgorithm : uint8_t { kNone, kRing, kTree, kDirect, kTable };
constexpr auto enum_names(CollectiveAlgorithm) {
  return names_in_order<CollectiveAlgorithm>("none", "ring", "tree", "direct", "table");
}

struct CollectiveCost {
  int64_t wire = 0;    // maximum of bytes sent and received, of the busiest process
  double latency = 0;  // seconds; with a table: the whole time
  double transfer = 0;
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kNone;
  double seconds() const { return latency + transfer; }
};

// A `group` without ranks has ranks 0 to n - 1. `peer` of send and receive is a rank in it; negative: the next.
CollectiveCost collective_cost(CollectiveKind kind, int64_t payload, const ProcessGroupInfo& group,
                               const Interconnect& links, int64_t peer = -1);
// Returns the bytes of a ring, without interconnect.
int64_t wire_bytes(CollectiveKind kind, int64_t payload, int64_t processes);

// All collectives of a graph, from namespaces `_c10d_functional`, `c10d` and `_dtensor`.

struct CommunicationOptions {
  const Interconnect* interconnect = nullptr;  // nullptr: bytes only, no seconds
  // Groups that the graph names but does not describe (a graph from another tool): axes of this mesh, by name.
  std::vector<MeshAxis> mesh;
};

struct Collective {
  NodeId node;
  CollectiveKind kind = CollectiveKind::kAllReduce;
  uint32_t group = 0;         // index in groups()
  int64_t payload = 0;        // bytes
  CollectiveCost cost;        // seconds require an interconnect
  bool asynchronous = false;  // false: the program waits for completion
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
  // Linear. After the graph is destroyed, sums by phase, module and forward node throw Error; others remain usable.
  static Communication of(const Graph& graph, const CommunicationOptions& options = {});

  bool empty() const { return collectives_.empty() && uncovered_.empty(); }
  // In program order.
  std::span<const Collective> collectives() const { return collectives_; }
  const Collective* find(NodeId node) const;  // nullptr if the node is not a collective
  std::span<const ProcessGroupInfo> groups() const { return groups_; }
  // Collectives not included in the results: operators without a rule, groups of unknown size.
  std::span<const UncoveredOperator> uncovered() const { return uncovered_; }
  bool has_seconds() const { return has_seconds_; }
  const std::string& interconnect() const { return interconnect_; }  // title
  double device_share() const { return device_share_; }              // Interconnect::device_share

  CommunicationSum total() const;
  CommunicationSum of(CollectiveKind kind) const;
  CommunicationSum of(PhaseId phase) const;
  CommunicationSum of_group(uint32_t group) const;
  // Return the communication of a forward node, and of the backward nodes that differentiate it.
  CommunicationSum forward(NodeId node) const;
  CommunicationSum backward(NodeId node) const;

  struct ModuleCommunication {
    std::string path;  // "" outside of all modules
    CommunicationSum forward, backward;
  };
  // Returns modules with collectives, without those of submodules; phases other than backward count as forward.
  std::vector<ModuleCommunication> by_module() const;

 private:
  template <class Wanted>
  CommunicationSum sum_if(Wanted&& wanted) const;

  WeakGraph graph_;
  std::vector<Collective> collectives_;
  IdMap<NodeId, uint32_t> of_node_;                   // 1 + index
  IdMap<NodeId, std::vector<uint32_t>> backward_of_;  // by forward node: indices
  std::vector<ProcessGroupInfo> groups_;
  std::vector<UncoveredOperator> uncovered_;
  std::string interconnect_;
  double device_share_ = 0;
  bool has_seconds_ = false;
};

}  // namespace shadowgraph
