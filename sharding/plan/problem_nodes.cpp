#include "sharding/plan/problem_nodes.h"

#include <fmt/format.h>

#include <algorithm>
#include <fnmatch.h>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "ir/analysis/module_tree.h"
#include "ir/analysis/structural_hash.h"
#include "shadowgraph/graph/text.h"
#include "support/text.h"

namespace shadowgraph {

std::vector<NodeId> nodes_named(const Graph& graph, const std::string& name) {
  std::vector<NodeId> nodes;
  for (const NodeId node : graph.nodes()) {
    if (!graph.is_placeholder(node)) break;
    if (fnmatch(name.c_str(), placeholder_name(graph, node).c_str(), 0) == 0) nodes.push_back(node);
  }
  if (!nodes.empty() || !name.starts_with('n')) return nodes;
  const auto number = parse_number<uint32_t>(std::string_view(name).substr(1));
  if (!number) return nodes;
  const Numbering numbering = Numbering::of(graph);
  if (*number < numbering.nodes().size()) nodes.push_back(numbering.nodes()[*number]);
  return nodes;
}

std::string without_numbers(std::string_view path) {
  std::string result;
  for (bool first = true;;) {
    const size_t end = std::min(path.find('.'), path.size());
    const std::string_view word = path.substr(0, end);
    const size_t begin = word.find_last_not_of("0123456789") + 1;
    const bool number = begin < word.size() && (begin == 0 || (first && word[begin - 1] == '_'));
    result += word.substr(0, number ? begin : end);
    if (number) result += '#';
    first &= !number;
    if (end == path.size()) return result;
    result += '.';
    path.remove_prefix(end + 1);
  }
}

namespace {

class Classifier {
 public:
  explicit Classifier(const Graph& graph) : graph_(graph), hashes_(graph), modules_(ModuleTree::of(graph)) {
    for (const Module& module : modules_.modules) path_of_.push_back(number_of(without_numbers(module.path)));
  }

  NodeClasses classes() {
    NodeClasses found;
    for (const NodeId node : graph_.nodes()) found.class_of[node] = number_of(key_of(found, node));
    // Renumbers the classes densely, since they share their numbers with module paths.
    std::unordered_map<uint32_t, uint32_t> dense;
    for (const NodeId node : graph_.nodes()) {
      uint32_t& number = found.class_of[node];
      number = dense.try_emplace(number, static_cast<uint32_t>(dense.size())).first->second;
    }
    found.count = static_cast<uint32_t>(dense.size());
    return found;
  }

 private:
  uint32_t number_of(const std::string& key) {
    return numbers_.try_emplace(key, static_cast<uint32_t>(numbers_.size())).first->second;
  }

  std::string key_of(const NodeClasses& found, NodeId node) {
    if (graph_.is_placeholder(node)) {
      // The name of a placeholder is one of its constants; its kind is in the target.
      return fmt::format("placeholder {} {} {}", graph_.node(node).target.index,
                         type_text(graph_, graph_.results(node)[0].ref.value),
                         without_numbers(placeholder_name(graph_, node)));
    }
    const uint64_t call = hashes_.of_node(node);
    const uint32_t module = modules_.of_node(graph_, node);
    const uint32_t phase = graph_.node(node).phase.index;
    if (module != 0) {
      const uint32_t ordinal = ordinals_[fmt::format("{} {} {}", module, phase, call)]++;
      return fmt::format("module {} {} {} {}", path_of_[module], phase, call, ordinal);
    }
    // A node outside modules is identified by its operands, and nodes with equal operands by their order.
    std::string key = fmt::format("free {} {}", phase, call);
    std::string same = key;
    graph_.for_each_input(node, [&](ValueId v) {
      key += fmt::format(" {}:{}", found.class_of[graph_.value(v).producer], position_of(v));
      same += fmt::format(" {}", v.index);
    });
    return fmt::format("{} {}", key, ordinals_[same]++);
  }

  uint32_t position_of(ValueId value) const {
    uint32_t position = 0, found = 0;
    graph_.for_each_output(graph_.value(value).producer, [&](ValueId v) {
      if (v == value) found = position;
      ++position;
    });
    return found;
  }

  const Graph& graph_;
  const BlockHashes hashes_;
  const ModuleTree modules_;
  std::vector<uint32_t> path_of_;  // by module: id of its path without numbers
  std::unordered_map<std::string, uint32_t> numbers_;
  std::unordered_map<std::string, uint32_t> ordinals_;
};

std::string bytes_of(const std::vector<Layout>& layouts) {
  std::string bytes;
  for (const Layout& layout : layouts) {
    for (const Placement& placement : layout) {
      const int64_t parts[] = {static_cast<int64_t>(placement.kind), static_cast<int64_t>(placement.op), placement.dim,
                               placement.outer};
      bytes.append(reinterpret_cast<const char*>(parts), sizeof(parts));
    }
  }
  return bytes;
}

}  // namespace

NodeClasses NodeClasses::of(const Graph& graph, bool fold) {
  if (fold) return Classifier(graph).classes();
  NodeClasses each;
  for (const NodeId node : graph.nodes()) each.class_of[node] = each.count++;
  return each;
}

std::vector<AxisStrategy> builtin_strategies(const Graph& graph, NodeId node, const NodeTensors& tensors) {
  const size_t operands = tensors.operands.size();
  const size_t results = tensors.results.size();
  std::vector<AxisStrategy> found{
      {.name = "", .operands = std::vector<Placement>(operands), .results = std::vector<Placement>(results)}};
  if (tensors.size() == 0) return found;
  const std::span<const int64_t> sizes = graph.sizes(tensors[0]);
  for (size_t i = 1; i < tensors.size(); ++i) {
    // An sg::output of tensors of several shapes stays replicated.
    if (!std::ranges::equal(graph.sizes(tensors[i]), sizes)) return found;
  }
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    if (sizes[dim] < 2) continue;
    const Placement cut = Placement::shard(static_cast<int64_t>(dim));
    found.push_back({.name = "dim" + std::to_string(dim),
                     .operands = std::vector<Placement>(operands, cut),
                     .results = std::vector<Placement>(results, cut),
                     .extent = sizes[dim]});
  }
  return found;
}

std::vector<MeshStrategy> mesh_strategies(const Graph& graph, const NodeTensors& tensors,
                                          std::span<const AxisStrategy> axis, const DeviceMesh& mesh) {
  const size_t axes = mesh.axes.size();
  std::vector<MeshStrategy> found;
  std::unordered_set<std::string> seen;
  std::vector<size_t> pick(axes, 0);
  while (true) {
    MeshStrategy strategy{.layouts = std::vector<Layout>(tensors.size(), Layout(axes))};
    bool divides = true;
    for (size_t a = 0; a < axes && divides; ++a) {
      const AxisStrategy& one = axis[pick[a]];
      if (one.extent > 0) {
        divides = one.extent % mesh.axes[a].size == 0;
        strategy.shares *= mesh.axes[a].size;
      }
      for (size_t i = 0; i < tensors.size(); ++i) {
        strategy.layouts[i][a] = i < one.operands.size() ? one.operands[i] : one.results[i - one.operands.size()];
      }
    }
    for (size_t i = 0; i < tensors.size() && divides; ++i) {
      divides = local_sizes(graph.sizes(tensors[i]), strategy.layouts[i], mesh).has_value();
    }
    if (divides && seen.insert(bytes_of(strategy.layouts)).second) found.push_back(std::move(strategy));
    size_t a = axes;
    while (a > 0 && ++pick[a - 1] == axis.size()) pick[--a] = 0;
    if (a == 0) return found;
  }
}

}  // namespace shadowgraph
