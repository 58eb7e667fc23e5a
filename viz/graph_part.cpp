#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "ir/analysis/module_tree.h"
#include "ir/operators/operator_name.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/text.h"
#include "support/text.h"
#include "viz/drawn_graph.h"

namespace shadowgraph {
namespace {

// Concatenated lists of indices.
struct Lists {
  std::vector<uint32_t> start, items;
  std::span<const uint32_t> of(uint32_t i) const { return std::span(items).subspan(start[i], start[i + 1] - start[i]); }

  static Lists of_pairs(size_t count, const std::vector<std::pair<uint32_t, uint32_t>>& pairs) {
    Lists lists;
    lists.start.assign(count + 1, 0);
    for (const auto& [from, to] : pairs) ++lists.start[from + 1];
    for (size_t i = 0; i < count; ++i) lists.start[i + 1] += lists.start[i];
    lists.items.resize(pairs.size());
    std::vector<uint32_t> next(lists.start.begin(), lists.start.end() - 1);
    for (const auto& [from, to] : pairs) lists.items[next[from]++] = to;
    return lists;
  }
};

class PartFinder {
 public:
  PartFinder(const Graph& graph, const std::vector<std::pair<ValueId, NodeId>>& extra, DrawnGraph& drawn)
      : graph_(graph), drawn_(drawn), kept_(drawn.nodes.size(), 0) {
    std::vector<std::pair<uint32_t, uint32_t>> forward, backward;
    const auto edge = [&](ValueId value, uint32_t user) {
      const NodeId producer = graph.value(drawn.origin_of(value)).producer;
      if (!producer.valid() || graph.is_erased(producer)) return;
      const uint32_t from = std::as_const(drawn.index)[producer];
      if (from == DrawnGraph::kNone || from == user) return;
      forward.emplace_back(from, user);
      backward.emplace_back(user, from);
    };
    for (uint32_t user = 0; user < drawn.nodes.size(); ++user) {
      graph.for_each_input(drawn.nodes[user], [&](ValueId value) { edge(value, user); });
    }
    for (const auto& [value, node] : extra) {
      if (const uint32_t user = std::as_const(drawn.index)[node]; user != DrawnGraph::kNone) edge(value, user);
    }
    users_ = Lists::of_pairs(drawn.nodes.size(), forward);
    makers_ = Lists::of_pairs(drawn.nodes.size(), backward);
  }

  void keep_around(const std::vector<NodeId>& nodes, int radius) {
    std::vector<uint32_t> rim = places(nodes);
    std::vector<uint8_t> seen(kept_.size(), 0);
    for (const uint32_t at : rim) seen[at] = 1;
    for (int step = 0; !rim.empty(); ++step) {
      std::vector<uint32_t> next;
      for (const uint32_t at : rim) {
        kept_[at] = 1;
        if (step == radius) continue;
        for (const Lists* lists : {&makers_, &users_}) {
          for (const uint32_t other : lists->of(at)) {
            if (std::exchange(seen[other], 1) == 0) next.push_back(other);
          }
        }
      }
      rim = std::move(next);
    }
  }

  void keep_path(const PathEnds& path) {
    const auto from = places(path.from);
    const auto to = places(path.to);
    const auto below = reached(from, users_);
    const auto above = reached(to, makers_);
    bool any = false;
    for (size_t i = 0; i < kept_.size(); ++i) {
      if (below[i] == 0 || above[i] == 0) continue;
      kept_[i] = 1;
      any = true;
    }
    if (any) return;
    const auto back = reached(from, makers_);
    const bool other_way = std::any_of(to.begin(), to.end(), [&](uint32_t at) { return back[at] != 0; });
    throw Error(fmt::format("no path of tensors leads from {} to {}{}", words(path.from), words(path.to),
                            other_way ? "; one leads in the other direction: swap the ends" : ""));
  }

  void drop_rest() {
    std::vector<uint32_t> place(kept_.size(), DrawnGraph::kNone);
    uint32_t count = 0;
    for (uint32_t i = 0; i < kept_.size(); ++i) {
      if (kept_[i] != 0) place[i] = count++;
    }
    for (uint32_t i = 0; i < kept_.size(); ++i) {
      if (kept_[i] == 0) continue;
      for (const bool makers : {true, false}) {
        std::vector<uint32_t> others;
        for (const uint32_t other : (makers ? makers_ : users_).of(i)) {
          if (kept_[other] == 0 && std::find(others.begin(), others.end(), other) == others.end()) {
            others.push_back(other);
          }
        }
        if (others.empty()) continue;
        drawn_.omitted.push_back({place[i], makers, static_cast<uint32_t>(others.size()), drawn_.nodes[others[0]]});
      }
    }
    drawn_.left_out = static_cast<int64_t>(kept_.size()) - count;
    for (uint32_t i = 0; i < kept_.size(); ++i) {
      drawn_.index[drawn_.nodes[i]] = place[i];
      if (kept_[i] == 0) continue;
      drawn_.nodes[place[i]] = drawn_.nodes[i];
      drawn_.position[place[i]] = drawn_.position[i];
    }
    drawn_.nodes.resize(count);
    drawn_.position.resize(count);
  }

 private:
  std::string words(const std::vector<NodeId>& nodes) const {
    if (nodes.empty()) return "nothing";
    const Numbering numbering = Numbering::of(graph_);
    std::string text = fmt::format("n{} ({})", numbering.of(nodes[0]), graph_.target(nodes[0]).name());
    if (nodes.size() > 1) text += fmt::format(" and {} more", nodes.size() - 1);
    return text;
  }

  // Returns the positions of those nodes that are drawn; a module may have nodes in phases that are not.
  std::vector<uint32_t> places(const std::vector<NodeId>& nodes) const {
    std::vector<uint32_t> found;
    for (const NodeId node : nodes) {
      if (node.index >= graph_.node_capacity() || graph_.is_erased(node)) {
        throw Error(fmt::format("the graph has no node with id {}", node.index));
      }
      if (const uint32_t at = std::as_const(drawn_.index)[node]; at != DrawnGraph::kNone) found.push_back(at);
    }
    if (found.empty()) {
      throw Error(fmt::format("{} is not in a phase that is shown{}", words(nodes),
                              nodes.empty() ? "" : ": it is in " + graph_.phase_name(graph_.node(nodes[0]).phase)));
    }
    return found;
  }

  static std::vector<uint8_t> reached(const std::vector<uint32_t>& from, const Lists& steps) {
    std::vector<uint8_t> seen(steps.start.size() - 1, 0);
    std::vector<uint32_t> pending = from;
    for (const uint32_t at : from) seen[at] = 1;
    while (!pending.empty()) {
      const uint32_t at = pending.back();
      pending.pop_back();
      for (const uint32_t other : steps.of(at)) {
        if (std::exchange(seen[other], 1) == 0) pending.push_back(other);
      }
    }
    return seen;
  }

  const Graph& graph_;
  DrawnGraph& drawn_;
  std::vector<uint8_t> kept_;
  Lists users_, makers_;
};

std::optional<uint32_t> number_after(char letter, std::string_view text) {
  return text.starts_with(letter) ? parse_number<uint32_t>(text.substr(1)) : std::nullopt;
}

bool is_in_module(std::string_view path, std::string_view module) {
  return path.starts_with(module) && (path.size() == module.size() || path[module.size()] == '.');
}

[[noreturn]] void no_such_node(const Graph& graph, std::string_view name) {
  // Collects paths, names and operators that contain the text, shortest first.
  std::map<std::pair<size_t, std::string>, bool> alike;
  const auto offer = [&](std::string text) {
    if (text.find(name) != text.npos) alike[{text.size(), std::move(text)}] = true;
  };
  for (const Module& module : ModuleTree::of(graph).modules) offer(module.path);
  for (const NodeId node : graph.nodes()) {
    offer(placeholder_name(graph, node));
    offer(graph.target(node).name());
  }
  std::string text = fmt::format(
      "nothing in the graph is named '{}'; give a node (n12), a value (%7), a module path, a parameter or an operator",
      name);
  size_t shown = 0;
  for (const auto& [key, unused] : alike) {
    if (key.first == 0 || shown == 5) continue;
    text += (shown++ == 0 ? "; similar names: " : ", ") + key.second;
  }
  throw Error(text);
}

}  // namespace

std::vector<NodeId> nodes_named(const Graph& graph, std::string_view name) {
  const Numbering numbering = Numbering::of(graph);
  if (const auto number = number_after('n', name); number && *number < numbering.nodes().size()) {
    return {numbering.nodes()[*number]};
  }
  if (const auto number = number_after('%', name); number && *number < numbering.values().size()) {
    return {graph.value(numbering.values()[*number]).producer};
  }
  std::vector<NodeId> in_module, named, calling;
  for (const NodeId node : graph.nodes()) {
    const std::string placeholder = placeholder_name(graph, node);
    if (!placeholder.empty()) {
      if (placeholder == name) named.push_back(node);
      continue;
    }
    if (graph.target(node).kind() == TargetKind::kBuiltin) continue;
    if (is_in_module(module_path(graph, node), name)) in_module.push_back(node);
    const std::string& target = graph.target(node).name();
    const bool overloads = target.size() > name.size() && target.starts_with(name) && target[name.size()] == '.';
    if (target == name || overloads || short_name(target) == name) calling.push_back(node);
  }
  if (name.empty()) no_such_node(graph, name);
  // Use the module's forward nodes; its backward nodes are nearby.
  std::vector<NodeId> forward;
  std::copy_if(in_module.begin(), in_module.end(), std::back_inserter(forward),
               [&](NodeId node) { return graph.node(node).phase == Graph::kForward; });
  if (!forward.empty()) in_module = std::move(forward);
  for (std::vector<NodeId>* found : {&named, &in_module, &calling}) {
    if (!found->empty()) return std::move(*found);
  }
  no_such_node(graph, name);
}

IdMap<NodeId, uint8_t> named_nodes(const ViewOptions& options) {
  IdMap<NodeId, uint8_t> named;
  for (const NodeId node : options.around) named[node] = 1;
  if (options.path) {
    for (const NodeId node : options.path->from) named[node] = 1;
    for (const NodeId node : options.path->to) named[node] = 1;
  }
  return named;
}

void keep_part(const Graph& graph, const ViewOptions& options, const std::vector<std::pair<ValueId, NodeId>>& extra,
               DrawnGraph& drawn) {
  if (options.around.empty() && !options.path) return;
  PartFinder part(graph, extra, drawn);
  if (!options.around.empty()) part.keep_around(options.around, options.radius);
  if (options.path) part.keep_path(*options.path);
  part.drop_rest();
}

}  // namespace shadowgraph
