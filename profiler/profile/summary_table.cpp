#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <unordered_set>

#include "ir/analysis/module_tree.h"
#include "ir/analysis/structural_hash.h"
#include "profiler/program_costs.h"
#include "shadowgraph/profile/profile.h"
#include "support/hash.h"

namespace shadowgraph {

void GroupCosts::add_disjoint(const GroupCosts& other) {
  forward_nodes += other.forward_nodes;
  backward_nodes += other.backward_nodes;
  incremental += other.incremental;
  output += other.output;
  temporary += other.temporary;
  backward += other.backward;
  forward_flops += other.forward_flops;
  backward_flops += other.backward_flops;
}

std::vector<GroupCosts> group_costs(const Graph& graph, const IdMap<StorageId, StorageKind>& kinds, const Flops& flops,
                                    const IdMap<NodeId, uint32_t>& group_of, uint32_t group_count,
                                    std::span<const uint32_t> parents) {
  std::vector<GroupCosts> groups(group_count);
  IdMap<StorageId, uint8_t> saved;
  std::unordered_set<uint64_t> parameters_seen;  // group and storage

  for (NodeId id : graph.nodes()) {
    const Node& node = graph.node(id);
    const uint32_t group = group_of[id];
    for (const SavedTensor& tensor : graph.saved(id)) {
      const StorageId storage = graph.value(tensor.value).storage;
      if (!storage.valid() || saved[storage] != 0) continue;
      saved[storage] = 1;
      if (group < group_count && !existed_before(graph, graph.storage(storage))) {
        groups[group].incremental += graph.storage(storage).bytes;
      }
    }
    if (group >= group_count || graph.target(node.target).kind() == TargetKind::kBuiltin) continue;
    if (node.phase == Graph::kForward) {
      ++groups[group].forward_nodes;
      groups[group].forward_flops += flops.of(id);
      graph.for_each_input(id, [&](ValueId value) {
        const StorageId storage = graph.value(value).storage;
        if (!storage.valid() || kinds[storage] != StorageKind::kParameter) return;
        uint32_t at = group;
        while (at < group_count && parameters_seen.insert(uint64_t{at} << 32 | storage.index).second) {
          groups[at].parameters += graph.storage(storage).bytes;
          if (parents.empty()) break;
          at = parents[at];
        }
      });
    } else if (node.phase == Graph::kBackward) {
      ++groups[group].backward_nodes;
      groups[group].backward_flops += flops.of(id);
    }
  }

  for (uint32_t i = 0; i < graph.storage_count(); ++i) {
    const Storage& storage = graph.storage(StorageId(i));
    if (existed_before(graph, storage)) continue;
    const uint32_t group = group_of[storage.born];
    if (group >= group_count) continue;
    const PhaseId phase = graph.node(storage.born).phase;
    if (phase == Graph::kForward) {
      (saved[StorageId(i)] != 0 ? groups[group].output : groups[group].temporary) += storage.bytes;
    } else if (phase == Graph::kBackward) {
      groups[group].backward += storage.bytes;
    }
  }
  return groups;
}

namespace {

void add(GroupCosts& to, const GroupCosts& figures) {
  to.add_disjoint(figures);
  to.parameters += figures.parameters;
}

bool has_nodes(const GroupCosts& figures) { return figures.forward_nodes + figures.backward_nodes > 0; }

class ModuleRows {
 public:
  ModuleRows(const ProgramCosts& costs, bool fold)
      : tree_(costs.modules().tree),
        fold_(fold),
        blocks_(costs.graph()),
        nodes_(tree_.modules.size()),
        module_of_(costs.modules().of_node) {
    const Graph& graph = costs.graph();
    const auto count = static_cast<uint32_t>(tree_.modules.size());
    for (const NodeId node : costs.nodes) {
      // A module includes the nodes of its children. In identical modules, identical nodes have the same index.
      if (!fold || graph.target(node).kind() == TargetKind::kBuiltin) continue;
      for (uint32_t at = module_of_[node]; at != 0; at = tree_.modules[at].parent) nodes_[at].push_back(node);
    }
    own_ = group_costs(graph, costs.kinds, costs.flops(), costs.modules().of_node, count);
    std::vector<uint32_t> parents;
    for (const Module& module : tree_.modules) parents.push_back(module.parent);
    inclusive_ = group_costs(graph, costs.kinds, costs.flops(), costs.modules().of_node, count, parents);
    for (uint32_t i = count; i-- > 1;) {
      inclusive_[tree_.modules[i].parent].add_disjoint(inclusive_[i]);
      deepest_ = std::max(deepest_, tree_.modules[i].depth);
    }
  }

  uint32_t deepest() const { return std::max<uint32_t>(deepest_, 1); }
  std::vector<SummaryRow> rows(uint32_t depth) { return rows(0, depth); }

 private:
  // Recursion is bounded: the tree is at most 64 deep (module_tree.cpp).
  std::vector<SummaryRow> rows(uint32_t at, uint32_t depth) {
    const Module& module = tree_.modules[at];
    std::vector<SummaryRow> result;
    const bool whole = module.depth == depth || module.children.empty();
    const GroupCosts& figures = whole ? inclusive_[at] : own_[at];
    if (has_nodes(figures)) {
      const char* unnamed = at == 0 ? "-" : "module";
      result.push_back({.op_type = module.class_name.empty() ? unnamed : module.class_name,
                        .op = at == 0 ? "(top level)" : module.path,
                        .figures = figures});
    }
    if (whole) return result;
    std::vector<std::vector<SummaryRow>> children;
    for (uint32_t child : module.children) children.push_back(rows(child, depth));
    for (size_t first = 0; first < children.size();) {
      const size_t last = fold_ ? last_of_run(module.children, children, first) : first + 1;
      fold(module.children, children, first, last);
      result.insert(result.end(), children[first].begin(), children[first].end());
      first = last;
    }
    return result;
  }

  std::string_view name_of(uint32_t module) const {
    const std::string& path = tree_.modules[module].path;
    const size_t dot = path.rfind('.');
    return std::string_view(path).substr(dot == std::string::npos ? 0 : dot + 1);
  }

  // Returns one past the last of the consecutive siblings from `first` on that are identical.
  size_t last_of_run(const std::vector<uint32_t>& modules, const std::vector<std::vector<SummaryRow>>& rows,
                     size_t first) {
    if (rows[first].empty()) return first + 1;
    std::vector<Sibling> siblings;
    for (const uint32_t module : modules) siblings.push_back({name_of(module), tree_.modules[module].class_name});
    return end_of_run(siblings, first, [&](size_t i) { return content(modules[i]); });
  }

  uint64_t content(uint32_t module) {
    return blocks_.of(nodes_[module], [&](NodeId node) {
      uint64_t place = 0;
      for (uint32_t at = module_of_[node]; at != module; at = tree_.modules[at].parent) {
        place = mixed(mixed(place, std::hash<std::string_view>()(name_of(at))),
                      std::hash<std::string>()(tree_.modules[at].class_name));
      }
      return place;
    });
  }

  void fold(const std::vector<uint32_t>& modules, std::vector<std::vector<SummaryRow>>& rows, size_t first,
            size_t last) const {
    if (last - first < 2) return;
    const std::string& path = tree_.modules[modules[first]].path;
    const std::string prefix = path.substr(0, path.size() - name_of(modules[first]).size());
    const std::string span = fmt::format("{}{{{}..{}}}", prefix, name_of(modules[first]), name_of(modules[last - 1]));
    for (size_t row = 0; row < rows[first].size(); ++row) {
      SummaryRow& merged = rows[first][row];
      merged.op = span + merged.op.substr(path.size());
      merged.repeats *= static_cast<int64_t>(last - first);
      for (size_t other = first + 1; other < last; ++other) add(merged.figures, rows[other][row].figures);
    }
  }

  const ModuleTree& tree_;
  bool fold_;
  BlockHashes blocks_;
  std::vector<std::vector<NodeId>> nodes_;  // by module, including its children
  const IdMap<NodeId, uint32_t>& module_of_;
  std::vector<GroupCosts> own_;
  std::vector<GroupCosts> inclusive_;
  uint32_t deepest_ = 0;
};

// Returns, for each region, the outermost enclosing composite call within its module; invalid outside any.
IdMap<RegionId, RegionId> outermost_composites(const Graph& graph) {
  IdMap<RegionId, RegionId> outermost;
  for (uint32_t i = 0; i < graph.region_count(); ++i) {
    const RegionId id(i);
    const Region& region = graph.region(id);
    RegionId inherited;
    if (region.kind != RegionKind::kModule && region.parent.valid() && region.parent.index < i) {
      inherited = std::as_const(outermost)[region.parent];
    }
    outermost[id] = !inherited.valid() && region.kind == RegionKind::kComposite ? id : inherited;
  }
  return outermost;
}

std::vector<SummaryRow> call_rows(const ProgramCosts& costs, bool by_name) {
  const Graph& graph = costs.graph();
  const auto outermost = outermost_composites(graph);
  std::vector<SummaryRow> rows;
  IdMap<RegionId, uint32_t> row_of_region(kNoGroup);
  IdMap<NodeId, uint32_t> row_of_node(kNoGroup);
  std::map<std::string, uint32_t> row_of_name;
  for (NodeId id : graph.nodes()) {
    const Node& node = graph.node(id);
    if (graph.target(node.target).kind() == TargetKind::kBuiltin) continue;
    if (node.phase != Graph::kForward && node.phase != Graph::kBackward) continue;
    if (node.phase == Graph::kBackward && node.forward.valid() &&
        std::as_const(row_of_node)[node.forward] != kNoGroup) {
      row_of_node[id] = std::as_const(row_of_node)[node.forward];
      continue;
    }
    const RegionId region = charged_region(graph, id);
    const RegionId composite = region.valid() ? outermost[region] : RegionId();
    const std::string name = composite.valid() ? std::string(graph.text_or_empty(graph.region(composite).name))
                                               : graph.target(node.target).name();
    uint32_t row = kNoGroup;
    if (by_name) {
      const auto [entry, added] = row_of_name.try_emplace(name, static_cast<uint32_t>(rows.size()));
      row = entry->second;
    } else if (composite.valid()) {
      row = std::as_const(row_of_region)[composite];
    }
    if (row >= rows.size()) {
      row = static_cast<uint32_t>(rows.size());
      const std::string module = by_name ? std::string() : module_path(graph, id);
      rows.push_back(
          {.op_type = composite.valid() ? "composite" : "operator", .op = module.empty() ? name : module + " " + name});
      if (by_name) rows.back().repeats = 0;
      if (!by_name && composite.valid()) row_of_region[composite] = row;
    }
    // A composite counts as one call; so does a node outside composites.
    if (by_name && (!composite.valid() || std::as_const(row_of_region)[composite] == kNoGroup)) {
      ++rows[row].repeats;
      if (composite.valid()) row_of_region[composite] = row;
    }
    row_of_node[id] = row;
  }
  const auto figures = group_costs(graph, costs.kinds, costs.flops(), row_of_node, static_cast<uint32_t>(rows.size()));
  for (size_t i = 0; i < rows.size(); ++i) rows[i].figures = figures[i];
  return rows;
}

}  // namespace

SummaryTable ProgramCosts::summary(const SummaryOptions& options) const {
  SummaryTable table;
  if (options.grouping == SummaryGrouping::kModule) {
    ModuleRows modules(*this, options.fold_repeats);
    table.depth = options.depth > 0 ? options.depth : 1;
    table.rows = modules.rows(static_cast<uint32_t>(table.depth));
    for (uint32_t depth = 2; options.depth <= 0 && depth <= modules.deepest(); ++depth) {
      auto deeper = modules.rows(depth);
      if (options.max_rows != 0 && deeper.size() > options.max_rows) break;
      table.rows = std::move(deeper);
      table.depth = static_cast<int>(depth);
    }
  } else {
    table.rows = call_rows(*this, options.grouping == SummaryGrouping::kOperator);
  }

  int64_t accumulate = 0;
  for (SummaryRow& row : table.rows) row.accumulate = accumulate += row.figures.incremental;
  if (options.max_rows != 0 && table.rows.size() > options.max_rows) {
    table.left_out = table.rows.size() - options.max_rows + 1;
    SummaryRow rest{.op_type = "...", .op = fmt::format("({} more rows)", table.left_out)};
    for (size_t i = options.max_rows - 1; i < table.rows.size(); ++i) add(rest.figures, table.rows[i].figures);
    rest.accumulate = accumulate;
    table.rows.resize(options.max_rows - 1);
    table.rows.push_back(std::move(rest));
  }
  return table;
}

}  // namespace shadowgraph
