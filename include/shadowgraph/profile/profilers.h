// Gives figures of single nodes, each kind by a profiler of its own, put together as one likes. What backward takes
// stands beside the forward node that it belongs to.
//
//     GraphProfiler profilers;
//     profilers.add(FlopProfiler()).add(MemoryProfiler()).add(CommunicationProfiler());
//     profilers.add("energy", "J", [](const Profile& of, NodeId node) { return 1e-12 * double(of.of(node).matmul); });
//     const NodeTable table = profilers.run(profile(graph));
//     table.at(node, "matmul_flops").backward;
//     write_file("costs.csv", to_csv(table));
//
// The names are those of ColossalAI's analyzer, whose profilers run each node again; these read the graph.
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

// A single figure of a whole profile, under the same name in the report's text, in JSON, and in Python. The table is
// profiler/profile/figures.cpp.
//
//     for (const ProfileFigure& figure : profile_figures()) figure.value(costs);

enum class FigureUnit : uint8_t { kCount, kBytes, kSeconds, kRatio };
std::string_view to_string(FigureUnit unit);  // "count", "bytes", "seconds", "ratio"

using FigureValue = std::optional<std::variant<int64_t, double>>;  // empty: not known

struct ProfileFigure {
  std::string key;  // of JSON: "peak.bytes" is in an object
  FigureUnit unit = FigureUnit::kCount;
  std::string doc;
  std::string label;     // of its line in the text; empty: it begins none
  bool required = true;  // there wherever its object is
  bool always = true;    // never absent
  std::function<FigureValue(const Profile&)> value;

  std::string name() const;  // of the attribute in Python: peak_bytes
};

const std::vector<ProfileFigure>& profile_figures();

struct NodeFigure {
  std::string name;  // "matmul_flops"
  std::string unit;  // "FLOP", "B", "s"; empty: a count
};

// One kind of figures. A rule of a user's own is a class of these, or a function (GraphProfiler::add).
class NodeProfiler {
 public:
  virtual ~NodeProfiler() = default;
  virtual std::vector<NodeFigure> figures() const = 0;
  // What this node takes itself, in the order of figures(); empty where that is not known, never a zero that stands for
  // it.
  virtual void measure(const Profile& profile, NodeId node, std::span<std::optional<double>> into) const = 0;
};

// matmul_flops, elementwise_flops, transcendental (profile/flops.h). Uncovered calls are not known.
class FlopProfiler : public NodeProfiler {
 public:
  std::vector<NodeFigure> figures() const override;
  void measure(const Profile& profile, NodeId node, std::span<std::optional<double>> into) const override;
};

// Gives allocated_bytes of storages born at the node, and saved_bytes of activations that it is the first to keep for
// backward. Also gives scratch_bytes (profile/scratch.h) and moved_bytes, read and written (profile/traffic.h).
class MemoryProfiler : public NodeProfiler {
 public:
  std::vector<NodeFigure> figures() const override;
  void measure(const Profile& profile, NodeId node, std::span<std::optional<double>> into) const override;
};

// seconds of kernels, of a profile with a spec; without one not known. Those of collectives are
// CommunicationProfiler's.
class TimeProfiler : public NodeProfiler {
 public:
  std::vector<NodeFigure> figures() const override;
  void measure(const Profile& profile, NodeId node, std::span<std::optional<double>> into) const override;
};

// Gives wire_bytes that this process sends and communication_seconds of collectives (profile/communication.h). Both are
// zero for all other nodes. They are not known for collectives in no figure, and seconds are not known without an
// interconnect.
class CommunicationProfiler : public NodeProfiler {
 public:
  std::vector<NodeFigure> figures() const override;
  void measure(const Profile& profile, NodeId node, std::span<std::optional<double>> into) const override;
};

struct NodeCost {
  double forward = 0;    // of the node itself, whatever its phase
  double backward = 0;   // of the backward nodes that differentiate it (Node::forward)
  uint32_t unknown = 0;  // of those nodes, how many have no answer: the sums are then at least
};

class NodeTable {
 public:
  const std::vector<NodeFigure>& figures() const { return figures_; }
  // In program order: all nodes but the backward ones that belong to a forward node.
  const std::vector<NodeId>& nodes() const { return nodes_; }
  bool has(NodeId node) const { return row_[node] != kNoRow; }
  const NodeCost& at(NodeId node, size_t figure) const { return costs_[row_[node] * figures_.size() + figure]; }
  // Throws Error for a name that is none, and for a node without a row.
  const NodeCost& at(NodeId node, std::string_view figure) const;
  // Sums a figure over all nodes.
  NodeCost total(size_t figure) const;
  // Throws Error if it is gone; to_csv asks for it, the figures do not.
  const Graph& graph() const { return graph_.get("table of nodes"); }

 private:
  friend class GraphProfiler;
  WeakGraph graph_;
  std::vector<NodeFigure> figures_;
  std::vector<NodeId> nodes_;
  static constexpr uint32_t kNoRow = 0xFFFFFFFFU;
  IdMap<NodeId, uint32_t> row_{kNoRow};
  std::vector<NodeCost> costs_;
};

// Writes a line a node: node, phase, module, op, source, then each figure and "backward_" of it. "unknown" has how many
// answers of both are missing.
std::string to_csv(const NodeTable& table);

class GraphProfiler {
 public:
  // Figures of one name throw Error.
  template <class P>
  requires std::derived_from<P, NodeProfiler> GraphProfiler& add(P profiler) {
    return add(std::make_shared<const P>(std::move(profiler)));
  }
  GraphProfiler& add(std::shared_ptr<const NodeProfiler> profiler);
  GraphProfiler& add(std::string name, std::string unit,
                     std::function<std::optional<double>(const Profile&, NodeId)> rule);

  // Linear in nodes and figures.
  NodeTable run(const Profile& profile) const;

 private:
  struct Added {
    std::shared_ptr<const NodeProfiler> profiler;
    size_t figures;
  };
  std::vector<Added> profilers_;
  std::vector<NodeFigure> figures_;
};

}  // namespace shadowgraph
