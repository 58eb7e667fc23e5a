#include "ir/analysis/module_tree.h"

#include <unordered_map>

#include "shadowgraph/graph/analysis.h"

namespace shadowgraph {
namespace {

// Limits the depth of the tree, so that recursion over it is shallow. Deeper paths are attached to the last level.
constexpr uint32_t kDeepest = 64;
// Bytes of a path. Longer ones, in hostile files, would make outputs with a path per node quadratic.
constexpr size_t kLongestPath = 500;

class Builder {
 public:
  // `names` is the maximum number of paths.
  Builder(ModuleTree& tree, size_t names) : tree_(tree) {
    tree_.modules.reserve(names + 1);
    tree_.modules.emplace_back();
    by_path_.reserve(names);
  }

  // `path` is a text of the graph, which outlives this object. `inside` is a module that may contain it.
  uint32_t module_at(std::string_view path, uint32_t inside) {
    if (path.empty()) return 0;
    // Looking up the containers from the root would cost a search for each.
    const std::string& outer = tree_.modules[inside].path;
    const bool begins = inside != 0 && tree_.modules[inside].depth < kDeepest && path.size() > outer.size() &&
                        path[outer.size()] == '.' && path.starts_with(outer);
    uint32_t at = begins ? inside : 0;
    size_t end = begins ? outer.size() : 0;
    while (end != path.size()) {
      const uint32_t depth = tree_.modules[at].depth + 1;
      const size_t dot = depth < kDeepest ? path.find('.', end == 0 ? 0 : end + 1) : std::string::npos;
      end = dot == std::string::npos ? path.size() : dot;
      const auto [entry, added] =
          by_path_.try_emplace(path.substr(0, end), static_cast<uint32_t>(tree_.modules.size()));
      if (added) {
        tree_.modules.push_back({.path = std::string(entry->first), .depth = depth, .parent = at});
        tree_.modules[at].children.push_back(entry->second);
      }
      at = entry->second;
    }
    return at;
  }

 private:
  ModuleTree& tree_;
  std::unordered_map<std::string_view, uint32_t> by_path_;
};

}  // namespace

ModuleTree ModuleTree::of(const Graph& graph) {
  ModuleTree tree{.modules = {}, .of_region = IdMap<RegionId, uint32_t>(0)};
  uint32_t modules = 0;
  for (uint32_t i = 0; i < graph.region_count(); ++i) {
    modules += graph.region(RegionId(i)).kind == RegionKind::kModule ? 1 : 0;
  }
  Builder builder(tree, modules);
  tree.of_region.reserve(graph.region_count());
  IdMap<StringId, uint32_t> by_name(Module::kNone);
  for (uint32_t i = 0; i < graph.region_count(); ++i) {
    const RegionId id(i);
    const Region& region = graph.region(id);
    if (region.kind == RegionKind::kModule) {
      uint32_t at = 0;
      if (region.name.valid()) {
        uint32_t& known = by_name[region.name];
        const bool has_parent = region.parent.valid() && region.parent.index < i;
        if (known == Module::kNone) {
          known = builder.module_at(graph.text_or_empty(region.name), has_parent ? tree.of_region[region.parent] : 0);
        }
        at = known;
      }
      Module& module = tree.modules[at];
      ++module.calls;
      if (module.class_name.empty()) module.class_name = graph.text_or_empty(region.class_name);
      tree.of_region[id] = at;
    } else if (region.parent.valid() && region.parent.index < i) {
      // A region comes after its parent, so the parent's entry exists.
      tree.of_region[id] = tree.of_region[region.parent];
    }
  }
  return tree;
}

uint32_t ModuleTree::of_node(const Graph& graph, NodeId node) const {
  const RegionId region = charged_region(graph, node);
  return region.valid() ? of_region[region] : 0;
}

// A backward node ran in no module, since autograd called it. It is charged to the region of its forward node.
RegionId charged_region(const Graph& graph, NodeId node) {
  const Node& n = graph.node(node);
  const bool linked = n.phase == Graph::kBackward && n.forward.valid() && n.forward.index < graph.node_capacity() &&
                      !graph.is_erased(n.forward);
  return linked ? graph.node(n.forward).region : n.region;
}

// Bounded by the number of regions: messages about invalid graphs use it, and their parents may form a cycle.
std::string module_path(const Graph& graph, NodeId node) {
  RegionId region = charged_region(graph, node);
  for (uint32_t steps = 0; region.valid() && steps < graph.region_count(); ++steps) {
    if (graph.region(region).kind == RegionKind::kModule) {
      const StringId name = graph.region(region).name;
      const std::string_view path = graph.text_or_empty(name);
      if (path.size() <= kLongestPath) return std::string(path);
      return std::string(path.substr(0, kLongestPath)) + "..." + std::to_string(name.index);
    }
    region = graph.region(region).parent;
  }
  return {};
}

std::string placeholder_name(const Graph& graph, NodeId node) {
  if (!is_placeholder(graph.node(node).target)) return {};
  const auto arguments = graph.arguments(node);
  const bool named = !arguments.empty() && arguments[0].kind == ArgumentKind::kString;
  return named ? std::string(graph.text_or_empty(arguments[0].string)) : std::string();
}

// Parents come before their children, so one walk propagates the result, however deep regions nest.
IdMap<RegionId, RegionId> recompute_regions(const Graph& graph) {
  IdMap<RegionId, RegionId> regions;
  regions.reserve(graph.region_count());
  for (uint32_t i = 0; i < graph.region_count(); ++i) {
    const RegionId id(i);
    const RegionId parent = graph.region(id).parent;  // has a smaller index
    regions[id] = is_recompute_region(graph, id) ? id : parent.valid() ? std::as_const(regions)[parent] : RegionId();
  }
  return regions;
}

}  // namespace shadowgraph
