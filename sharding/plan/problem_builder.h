// Builds a ShardingProblem from a graph (see problem.cpp).
#pragma once

#include <compare>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "shadowgraph/graph/graph.h"
#include "shadowgraph/profile/step_time.h"
#include "shadowgraph/shard/apply.h"
#include "shadowgraph/shard/problem.h"
#include "sharding/overlap/hidden_collectives.h"
#include "sharding/plan/problem_nodes.h"
#include "sharding/rules/factor_analysis.h"

namespace shadowgraph {

struct MemoryUse {
  std::vector<NodeId> nodes;
  IdMap<NodeId, int64_t> position;
  int64_t first_of_backward = -1;                 // negative: no backward
  IdMap<StorageId, std::vector<int64_t>> writes;  // after allocation; ascending
  IdMap<ValueId, int64_t> last_use;               // of the value and its views

  static MemoryUse of(const Graph& graph);
  // Returns true if the operand cannot be replaced by a copy: the node writes to it, names it as a parameter, or makes
  // a view of memory that is written to while the view is in use.
  bool is_tied(const Graph& graph, NodeId node, ValueId operand) const;
};

class ShardingProblemBuilder {
 public:
  ShardingProblemBuilder(const Graph& graph, const ShardingOptions& options);
  ShardingProblem build();

 private:
  struct Use {
    NodeId node;
    uint32_t variable = 0;
    uint32_t slot = 0;  // operand index
    PhaseId phase;
    bool tied = false;
  };
  struct EdgeKey {
    uint32_t producer = 0, result = 0;  // variable, and tensor index in it
    uint32_t user = 0, slot = 0;
    bool tied = false;
    auto operator<=>(const EdgeKey&) const = default;
  };
  struct Edge {
    ValueId value;
    int64_t times = 0;
    std::vector<LiveInterval> live;
  };
  struct MatrixKey {
    std::vector<uint16_t> from, to;
    std::vector<int64_t> sizes;
    int64_t element_bytes = 0;
    bool tied = false;
    bool kept = false;  // saved from forward to backward
    // The fields of HiddenCollectives::Products in picoseconds, so that keys compare exactly.
    int64_t reduce = 0, scatter = 0, gather = 0, gather_again = 0, weight_gradient = 0;
    auto operator<=>(const MatrixKey&) const = default;
  };
  struct Distances {
    std::map<uint16_t, size_t> number;  // local index of a layout
    std::vector<Layout> layouts;
    std::vector<int64_t> costs;
  };

  void split_pinned_classes();
  void make_variables();
  uint32_t make_variable(NodeId node, const NodeTensors& tensors, RuleSource source, std::span<const AxisStrategy> axis,
                         const NodeTime& time);
  void make_places(NodeId node, const NodeTensors& tensors, const NodeStrategies& strategies);
  NodeStrategies strategies_of(NodeId node, const NodeTensors& tensors) const;
  void finish_variable(uint32_t number);
  bool is_in_layer(NodeId node) const;
  bool is_kept(const LiveInterval& live) const;
  int64_t cost_of_keeping(int64_t bytes) const;
  int64_t counted(int64_t times, bool in_layer) const;
  void add_memory(uint32_t number);
  void tie_memory();
  void find_uses();
  void make_copies();
  uint32_t make_copy(uint32_t producer, uint32_t result, uint32_t phase, ValueId value);
  void add_layouts(uint32_t copy, uint32_t variable, uint32_t tensor);
  void make_edges();
  void add_edge(const EdgeKey& key, ValueId value, const LiveInterval& live);
  void finish_edges();
  MatrixKey matrix_key(const EdgeKey& key, const Edge& edge) const;
  int64_t exposed(const MatrixKey& key, uint16_t from, uint16_t to, int64_t cost) const;
  CostMatrix cost_matrix(const MatrixKey& key);

  uint16_t layout_number(const Layout& layout);
  int64_t end_of_use(NodeId node, ValueId operand) const;
  std::string node_name(NodeId node);
  static std::string name_of(const MeshStrategy& strategy, const NodeTensors& tensors);
  static std::vector<LiveInterval> stacked(std::vector<LiveInterval> intervals);

  const Graph& graph_;
  const ShardingOptions& options_;
  const ShardingRules rules_;
  const FactorAnalysis factors_;
  NodeClasses classes_;
  const MemoryUse memory_;
  const StepTime time_;
  const HiddenCollectives hidden_;
  ShardingProblem problem_;
  std::vector<std::pair<uint32_t, uint32_t>> ties_;  // a variable and the variable of its other results
  std::vector<RuleSource> sources_;
  std::vector<bool> in_layer_;  // by variable, of nodes and of copies
  std::unordered_map<std::string, size_t> layout_numbers_;
  IdMap<ValueId, ShardingProblem::TensorOf> made_by_;
  std::map<std::vector<uint64_t>, uint32_t> alike_;                   // variable of identical places, by content
  std::map<NodeId, std::vector<ValueId>> results_of_;                 // of nodes with places
  std::map<std::pair<NodeId, StorageId>, int64_t> last_use_of_view_;  // of results that alias another node's storage
  IdMap<ValueId, std::vector<Use>> uses_of_;
  std::map<std::pair<ValueId, uint32_t>, uint32_t> copy_of_;  // value, phase: variable
  std::map<EdgeKey, Edge> edges_;
  std::map<MatrixKey, uint32_t> matrices_;
  std::map<std::pair<std::vector<int64_t>, int64_t>, Distances> distances_;
};

}  // namespace shadowgraph
