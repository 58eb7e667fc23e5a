// One walk over a graph that may be noise, which lists every violation of shadowgraph/verify.h. Internal to ir/analysis.
//
// Nothing may be believed before it is checked. So links and references come first (verifier_references.cpp), and a node
// with a reference out of range is looked at no further.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shadowgraph/text.h"
#include "shadowgraph/verify.h"

namespace shadowgraph {

class Verifier {
 public:
  explicit Verifier(const Graph& graph)
      : graph_(graph),
        ordinals_(graph.node_capacity(), Numbering::kNone),
        broken_(graph.node_capacity(), false),
        use_counts_(graph.value_capacity(), 0),
        results_seen_(graph.value_capacity(), false),
        storage_frees_(graph.storage_count()) {}
  std::vector<Violation> run();

 private:
  template <class... A>
  void report(Rule rule, NodeId node, fmt::format_string<A...> format, A&&... values) {
    std::string message = fmt::format(format, std::forward<A>(values)...);
    // Only a node whose references were checked and found good can be printed.
    if (live(node) && !broken_[node.index]) {
      if (!numbering_) numbering_ = Numbering::of(graph_);
      message += "\n  " + to_text(graph_, node, *numbering_);
    }
    found_.push_back({rule, node, std::move(message)});
  }

  // Nodes are live if the walk along the links met them, whatever their records say.
  bool live(NodeId id) const { return id.index < ordinals_.size() && ordinals_[id.index] != Numbering::kNone; }
  bool earlier(NodeId id, NodeId than) const { return live(id) && ordinals_[id.index] < ordinals_[than.index]; }

  void links();
  bool references(NodeId id);
  bool arguments_in_range(std::span<const Argument> arguments, int depth, bool results);
  void regions();
  void storages();
  void node(NodeId id);
  void inputs(NodeId id, std::span<const Argument> arguments, int depth);
  void uses();
  void signature(NodeId id);
  void result(NodeId id, ValueId v);
  void lifetime(NodeId id, ValueId v, bool as_result);
  void aliases(NodeId id);
  void placement(NodeId id);
  void saved(NodeId id);
  void frees(NodeId id);

  const Graph& graph_;
  std::vector<Violation> found_;
  std::optional<Numbering> numbering_;
  std::vector<NodeId> order_;
  std::vector<uint32_t> ordinals_;  // position in program order
  std::vector<bool> broken_;        // by node: a reference out of range
  std::vector<uint32_t> use_counts_;
  std::vector<bool> results_seen_;
  std::vector<NodeId> storage_frees_;
  bool past_placeholders_ = false;
  bool past_calls_ = false;
  uint32_t outputs_ = 0;
};

}  // namespace shadowgraph
