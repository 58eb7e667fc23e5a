// Copies between device and host that overlap with kernels: one at a time per direction, in call order.
#pragma once

#include <algorithm>
#include <array>
#include <unordered_map>

#include "ir/analysis/module_tree.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/profile/device_spec.h"

namespace shadowgraph {

inline bool overlaps_kernels(const Graph& graph, NodeId node) {
  return graph.has_notes(node) && graph.note(node, kKernelNote) == kCopyEngine;
}

class CopyEngines {
 public:
  CopyEngines(const Graph& graph, const DeviceSpec& spec) : graph_(graph), link_(spec.host ? spec.host->link : 0) {}

  // Returns the time of one copy, in seconds; 0 if the link's bandwidth is unknown.
  double seconds(NodeId copy) const { return link_ > 0 ? static_cast<double>(bytes(copy)) / link_ : 0; }
  int64_t bytes(NodeId copy) const { return graph_.logical_bytes(graph_.results(copy)[0].ref.value); }

  // Starts when the copy has been issued and its engine has finished earlier ones. Returns the end time.
  double run(NodeId copy, double issued) {
    const ValueId made = graph_.results(copy)[0].ref.value;
    double& free = free_[graph_.value(made).device().is_cpu() ? 0 : 1];
    const double begin = std::max(free, issued);
    free = begin + seconds(copy);
    ready_[graph_.value(made).storage] = free;
    return begin;
  }
  // Returns the time at which the node's inputs are available.
  double ready(NodeId node) const {
    double at = 0;
    if (ready_.empty()) return at;
    graph_.for_each_input(node, [&](ValueId v) {
      const auto found = ready_.find(graph_.value(v).storage);
      if (found != ready_.end()) at = std::max(at, found->second);
    });
    return at;
  }
  double end() const { return std::max(free_[0], free_[1]); }

 private:
  const Graph& graph_;
  const double link_;
  std::array<double, 2> free_{};  // to the host, and back
  std::unordered_map<StorageId, double> ready_;
};

}  // namespace shadowgraph
