// Finds equal layers: sibling modules, numbered or called repeatedly, that do the same. What is the same,
// ir/analysis/blocks.h says, which summaries and find-repeats go by, too.
//
// A module's block is its drawn nodes. They must lie in equal places below the module; an operand that is a view that
// is not drawn counts as what it shows. Each node is hashed once for every numbered module around it, so the work is
// linear in nodes times nesting.
#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "ir/analysis/blocks.h"
#include "support/hash_index.h"
#include "viz/drawn_graph.h"

namespace shadowgraph {
namespace {

class Folder {
 public:
  Folder(const Graph& graph, const IdMap<NodeId, uint32_t>& labels, DrawnGraph& drawn)
      : labels_(labels), drawn_(drawn), blocks_(graph) {}

  void fold() {
    std::vector<std::pair<uint32_t, uint32_t>> hidden;  // a copy and the sibling drawn for it, outermost first
    for (uint32_t parent = 0; parent < drawn_.clusters.size(); ++parent) {
      const std::vector<uint32_t> siblings = drawn_.clusters[parent].children;
      std::vector<Sibling> names;
      for (const uint32_t sibling : siblings) {
        const ModuleCluster& cluster = drawn_.clusters[sibling];
        names.push_back({cluster.name, cluster.class_name, cluster.call});
      }
      for (size_t first = 0; first < siblings.size();) {
        // Phases have no number, so no phase repeats another.
        const size_t last = end_of_run(names, first, [&](size_t i) { return content(siblings[i]); });
        if (last - first > 1) mark_run(siblings, first, last, hidden);
        first = last;
      }
    }
    for (const auto& [copy, original] : hidden) {
      const auto from = members(copy);
      const auto to = members(original);
      for (size_t i = 0; i < from.size(); ++i) {
        // The outermost copy decides, and comes first.
        if (drawn_.stand_in[from[i]] == from[i]) drawn_.stand_in[from[i]] = to[i];
      }
    }
    // A stand-in may itself lie in an inner copy; it lies in one cluster fewer each time.
    for (uint32_t& stand_in : drawn_.stand_in) {
      while (drawn_.stand_in[stand_in] != stand_in) stand_in = drawn_.stand_in[stand_in];
    }
  }

 private:
  void mark_run(const std::vector<uint32_t>& siblings, size_t first, size_t last,
                std::vector<std::pair<uint32_t, uint32_t>>& hidden) {
    ModuleCluster& original = drawn_.clusters[siblings[first]];
    const ModuleCluster& end = drawn_.clusters[siblings[last - 1]];
    original.repeats = static_cast<uint32_t>(last - first);
    original.run = siblings[first];
    original.span = original.name == end.name ? fmt::format("{} (calls {}..{})", original.name, original.call, end.call)
                                              : fmt::format("{{{}..{}}}", original.name, end.name);
    for (size_t i = first + 1; i < last; ++i) {
      drawn_.clusters[siblings[i]].stands_for = siblings[first];
      drawn_.clusters[siblings[i]].run = siblings[first];
      hidden.emplace_back(siblings[i], siblings[first]);
    }
  }

  // Returns all drawn nodes below a cluster, in program order.
  std::vector<uint32_t> members(uint32_t cluster) const {
    std::vector<uint32_t> all;
    std::vector<uint32_t> pending{cluster};
    while (!pending.empty()) {
      const ModuleCluster& at = drawn_.clusters[pending.back()];
      pending.pop_back();
      all.insert(all.end(), at.nodes.begin(), at.nodes.end());
      pending.insert(pending.end(), at.children.begin(), at.children.end());
    }
    std::sort(all.begin(), all.end());
    return all;
  }

  uint64_t content(uint32_t cluster) {
    std::vector<NodeId> block;
    for (const uint32_t node : members(cluster)) block.push_back(drawn_.nodes[node]);
    const auto place = [&](NodeId node) {
      uint64_t hash = labels_[node];
      for (uint32_t at = drawn_.cluster_of[std::as_const(drawn_.index)[node]]; at != cluster;
           at = drawn_.clusters[at].parent) {
        hash = mixed(mixed(hash, std::hash<std::string>()(drawn_.clusters[at].name)), drawn_.clusters[at].call);
      }
      return hash;
    };
    return blocks_.of(block, place, [&](ValueId v) { return drawn_.origin_of(v); });
  }

  const IdMap<NodeId, uint32_t>& labels_;
  DrawnGraph& drawn_;
  BlockHashes blocks_;
};

}  // namespace

void fold_repeats(const Graph& graph, const IdMap<NodeId, uint32_t>& labels, DrawnGraph& drawn) {
  Folder(graph, labels, drawn).fold();
}

}  // namespace shadowgraph
