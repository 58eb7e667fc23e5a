#include "viz/view_marks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <map>

#include "ir/analysis/module_tree.h"
#include "ir/operators/operator_name.h"
#include "viz/box_labels.h"

namespace shadowgraph {

void mark_boxes(const BoxNodes& nodes, const IdMap<NodeId, uint8_t>& named, const MergedGraph* merged,
                ViewModel& view) {
  for (size_t b = 0; b < nodes.size(); ++b) {
    if (nodes[b].empty()) continue;
    ViewBox& box = view.boxes[b];
    std::array<size_t, 5> count{};
    for (const NodeId node : nodes[b].front()) {
      if (named[node] != 0) box.mark = ViewMark::kNamed;
      if (merged != nullptr) ++count[static_cast<size_t>(merged->marks[node])];
    }
    const size_t added = count[static_cast<size_t>(ViewMark::kAdded)];
    const size_t removed = count[static_cast<size_t>(ViewMark::kRemoved)];
    const size_t changed = count[static_cast<size_t>(ViewMark::kChanged)];
    const size_t all = nodes[b].front().size();
    if (added + removed + changed == 0) continue;
    box.mark = added == all ? ViewMark::kAdded : removed == all ? ViewMark::kRemoved : ViewMark::kChanged;
    if (all == 1) continue;
    std::vector<std::string> parts;
    if (added > 0) parts.push_back(fmt::format("{} added", added));
    if (removed > 0) parts.push_back(fmt::format("{} removed", removed));
    if (changed > 0) parts.push_back(fmt::format("{} changed", changed));
    box.lines.push_back(fmt::format("{}", fmt::join(parts, ", ")));
  }
  for (ViewEdge& edge : view.edges) {
    edge.removed = edge.removed || view.boxes[edge.from].mark == ViewMark::kRemoved ||
                   view.boxes[edge.to].mark == ViewMark::kRemoved;
  }
}

void add_omitted(const Graph& graph, const DrawnGraph& drawn, const std::vector<uint32_t>& box_of_node,
                 ViewModel& view) {
  std::map<std::pair<uint32_t, bool>, uint32_t> boxes;
  std::vector<std::pair<uint32_t, NodeId>> counts;
  for (const DrawnGraph::Omitted& omitted : drawn.omitted) {
    const uint32_t box = box_of_node[omitted.node];
    if (drawn.stand_in[omitted.node] != omitted.node || box == DrawnGraph::kNone) continue;
    const auto [entry, added] = boxes.try_emplace({box, omitted.makers}, static_cast<uint32_t>(counts.size()));
    if (added) counts.emplace_back(0, omitted.first);
    counts[entry->second].first += omitted.count;
  }
  for (const auto& [key, index] : boxes) {
    const auto& [box, makers] = key;
    const auto& [count, first] = counts[index];
    ViewBox stub;
    stub.id = fmt::format("{}_{}", view.boxes[box].id, makers ? "before" : "after");
    stub.category = OperatorCategory::kView;
    stub.omitted = true;
    const std::string name = placeholder_name(graph, first);
    stub.lines = {count > 1 ? fmt::format("{} more", count)
                            : shortened(name.empty() ? std::string(short_name(graph.target(first).name())) : name)};
    stub.tooltip =
        fmt::format("left out: {} operators that {}", count, makers ? "make what it reads" : "read what it makes");
    const auto at = static_cast<uint32_t>(view.boxes.size());
    view.boxes.push_back(std::move(stub));
    view.edges.push_back({.from = makers ? at : box, .to = makers ? box : at});
  }
}

}  // namespace shadowgraph
