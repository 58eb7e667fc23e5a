// Calls that involve the host of a GPU program: copies over its link, operators on CPU tensors. And copies that overlap
// with kernels: one at a time per direction, in call order.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_map>

#include "ir/analysis/module_tree.h"
#include "ir/operators/operator_name.h"
#include "profiler/program_costs.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/profile/device_spec.h"

namespace shadowgraph {

// Returns true for a copy that a pass has put on a copy engine (offload).
inline bool overlaps_kernels(const Graph& graph, NodeId node) {
  return graph.has_notes(node) && graph.note(node, kKernelNote) == kCopyEngine;
}

// The part of a call that is not the device's: `link` bytes go over the host's link; `on_host`: all its tensors are on
// the CPU.
struct HostPart {
  int64_t link = 0;
  bool is_copy = false;  // between the two: the call has no other work
  bool on_host = false;
};

class HostParts {
 public:
  // Estimates for a CPU, or of a program captured on one, have none: all calls are the device's.
  HostParts(const Graph& graph, const DeviceSpec& spec)
      : graph_(graph), has_host_(spec.device != c10::kCPU && !main_device(graph, std::nullopt).is_cpu()) {}

  HostPart of(NodeId node) const {
    HostPart part;
    if (!has_host_) return part;
    bool on_device = false, on_cpu = false;
    int64_t cpu_operands = 0;  // bytes; a kernel takes 0-dimensional ones as numbers
    const auto see = [&](ValueId value, bool operand) {
      if (graph_.value(value).kind != ValueKind::kTensor) return;
      const bool cpu = graph_.value(value).device().is_cpu();
      (cpu ? on_cpu : on_device) = true;
      if (cpu && operand && graph_.value(value).rank > 0) cpu_operands += graph_.logical_bytes(value);
    };
    graph_.for_each_input(node, [&](ValueId value) { see(value, true); });
    graph_.for_each_output(node, [&](ValueId value) { see(value, false); });
    part.on_host = on_cpu && !on_device;
    const std::string_view name = short_name(graph_.target(node).name());
    if (name == "_local_scalar_dense" && on_device) {
      part.is_copy = true;
      graph_.for_each_input(node, [&](ValueId value) { part.link += graph_.logical_bytes(value); });
    } else if (on_cpu && on_device) {
      const ValueId result = copied(node, name);
      part.is_copy = result.valid();
      part.link = result.valid() ? graph_.logical_bytes(result) : cpu_operands;
    }
    return part;
  }

 private:
  // Returns the result of a copy, in whose dtype the bytes are sent; invalid for other operators.
  ValueId copied(NodeId node, std::string_view name) const {
    for (const std::string_view copy : {"_to_copy", "copy_", "copy", "_copy_from"}) {
      if (name == copy) return graph_.results(node)[0].ref.value;
    }
    return {};
  }

  const Graph& graph_;
  bool has_host_;
};

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
