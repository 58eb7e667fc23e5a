// Per-node metrics of composable profilers. Costs of backward are attributed to the forward node it differentiates.
//
//     GraphProfiler profilers;
//     profilers.add(FlopProfiler()).add(MemoryProfiler()).add(CommunicationProfiler());
//     profilers.add("energy", "J", [](const Profile& of, NodeId node) { return 1e-12 * double(of.of(node).matmul); });
//     profilers.run(profile(graph)).at(node, "matmul_flops").backward;
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/profile/profile.h"

namespace SHADOWGRAPH_API shadowgraph {

// A scalar metric of a profile, with one name in text, JSON and Python. The table is in profiler/profile/metrics.cpp.

enum class MetricUnit : uint8_t { kCount, kBytes, kSeconds, kRatio };
std::string_view to_string(MetricUnit unit);  // "count", "bytes", "seconds", "ratio"

using MetricValue = std::optional<std::variant<int64_t, double>>;  // std::nullopt: unknown

struct ProfileMetric {
  std::string key;  // in JSON: "peak.bytes" is nested
  MetricUnit unit = MetricUnit::kCount;
  std::string doc;
  std::string label;     // label of its line in the text report; "": not at the start of a line
  bool required = true;  // present whenever the enclosing JSON object is
  bool always = true;    // never absent
  std::function<MetricValue(const Profile&)> value;

  std::string name() const;  // name of the Python attribute: peak_bytes
};

const std::vector<ProfileMetric>& profile_metrics();

struct NodeMetric {
  std::string name;  // "matmul_flops"
  std::string unit;  // "FLOP", "B", "s"; "": a count
};

// A set of metrics per node. Derive from this class, or pass a function to GraphProfiler::add.
class NodeProfiler {
 public:
  virtual ~NodeProfiler() = default;
  virtual std::vector<NodeMetric> metrics() const = 0;
  // Sets the values of a single node, in the order of metrics(); std::nullopt if unknown.
  virtual void measure(const Profile& profile, NodeId node, std::span<std::optional<double>> into) const = 0;
};

// matmul_flops, elementwise_flops, transcendental (NodeFlops). Unknown for uncovered calls.
class FlopProfiler : public NodeProfiler {
 public:
  std::vector<NodeMetric> metrics() const override;
  void measure(const Profile& profile, NodeId node, std::span<std::optional<double>> into) const override;
};

// allocated_bytes of storages allocated at the node, saved_bytes of activations first saved by it, scratch_bytes
// (NodeScratch), and moved_bytes, read and written (NodeTraffic).
class MemoryProfiler : public NodeProfiler {
 public:
  std::vector<NodeMetric> metrics() const override;
  void measure(const Profile& profile, NodeId node, std::span<std::optional<double>> into) const override;
};

// seconds of kernels, except collectives; unknown for a profile without a device spec.
class TimeProfiler : public NodeProfiler {
 public:
  std::vector<NodeMetric> metrics() const override;
  void measure(const Profile& profile, NodeId node, std::span<std::optional<double>> into) const override;
};

// wire_bytes sent by this process and communication_seconds of collectives (CommunicationSum); zero for other nodes.
// Unknown for uncovered collectives; seconds are unknown without an interconnect.
class CommunicationProfiler : public NodeProfiler {
 public:
  std::vector<NodeMetric> metrics() const override;
  void measure(const Profile& profile, NodeId node, std::span<std::optional<double>> into) const override;
};

struct NodeCost {
  double forward = 0;    // of the node itself, regardless of its phase
  double backward = 0;   // of the backward nodes that differentiate it (Node::forward)
  uint32_t unknown = 0;  // number of these nodes with unknown values, not included in the sums
};

class NodeTable {
 public:
  const std::vector<NodeMetric>& metrics() const { return metrics_; }
  // Nodes in program order, except for backward nodes that are attributed to a forward node.
  const std::vector<NodeId>& nodes() const { return nodes_; }
  bool has(NodeId node) const { return row_[node] != kNoRow; }
  const NodeCost& at(NodeId node, size_t metric) const { return costs_[row_[node] * metrics_.size() + metric]; }
  // Throws Error if there is no such metric, or if the node has no row.
  const NodeCost& at(NodeId node, std::string_view metric) const;
  // Returns the sum of a metric over all nodes.
  NodeCost total(size_t metric) const;
  // Throws Error if the graph has been destroyed. Needed by to_csv only.
  const Graph& graph() const { return graph_.get("table of nodes"); }

 private:
  friend class GraphProfiler;
  WeakGraph graph_;
  std::vector<NodeMetric> metrics_;
  std::vector<NodeId> nodes_;
  static constexpr uint32_t kNoRow = 0xFFFFFFFFU;
  IdMap<NodeId, uint32_t> row_{kNoRow};
  std::vector<NodeCost> costs_;
};

// Writes CSV by node: node, phase, module, op, source, each metric and "backward_" of it; "unknown": missing values.
std::string to_csv(const NodeTable& table);

class GraphProfiler {
 public:
  // Throws Error if a metric of the same name exists.
  template <class P>
  requires std::derived_from<P, NodeProfiler> GraphProfiler& add(P profiler) {
    return add(std::make_shared<const P>(std::move(profiler)));
  }
  GraphProfiler& add(std::shared_ptr<const NodeProfiler> profiler);
  GraphProfiler& add(std::string name, std::string unit,
                     std::function<std::optional<double>(const Profile&, NodeId)> rule);

  // Linear in nodes and metrics.
  NodeTable run(const Profile& profile) const;

 private:
  struct Added {
    std::shared_ptr<const NodeProfiler> profiler;
    size_t metrics;
  };
  std::vector<Added> profilers_;
  std::vector<NodeMetric> metrics_;
};

}  // namespace shadowgraph
