// All collectives of a graph, of `_c10d_functional`, `c10d` and `_dtensor`.
//
//     const Interconnect links = Interconnect::named("h100");
//     const Communication communication = Communication::of(graph, {.interconnect = &links});
//     communication.total().wire;                                    // bytes that this process sends
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"
#include "shadowgraph/graph/weak_graph.h"
#include "shadowgraph/mesh.h"
#include "shadowgraph/process_group.h"
#include "shadowgraph/profile/collective_cost.h"
#include "shadowgraph/profile/collective_kind.h"
#include "shadowgraph/profile/flops.h"
#include "shadowgraph/profile/interconnect.h"

namespace SHADOWGRAPH_API shadowgraph {

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
