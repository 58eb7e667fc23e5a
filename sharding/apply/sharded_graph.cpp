// What one rank's graph says of itself, whole or from a file.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "shadowgraph/sharding/apply.h"
#include "sharding/apply/sharding_notes.h"

namespace shadowgraph {
namespace {

std::vector<int64_t> sizes_from(std::string_view text) {
  std::vector<int64_t> sizes;
  if (text == "scalar") return sizes;
  while (!text.empty()) {
    int64_t size = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), size);
    if (error != std::errc()) throw Error(fmt::format("'{}' are no sizes", text));
    sizes.push_back(size);
    text.remove_prefix(std::min(text.size(), static_cast<size_t>(stop - text.data()) + 1));
  }
  return sizes;
}

// Splits "a;b;c".
std::vector<std::string_view> parts_of(std::string_view text) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t end = text.find(';');
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

}  // namespace

ShardedGraph ShardedGraph::of(Graph graph) {
  ShardedGraph sharded;
  const auto& meta = graph.metadata.other;
  const auto mesh = meta.find(kMeshKey);
  const auto rank = meta.find(kRankKey);
  if (mesh == meta.end() || rank == meta.end()) {
    throw Error("this graph is not one rank's of a sharded program: it says nothing of a mesh; make it with apply()");
  }
  sharded.mesh = DeviceMesh::parse(mesh->second);
  const std::string& number = rank->second;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), sharded.rank);
  if (error != std::errc() || end != number.data() + number.size() || sharded.rank < 0 ||
      sharded.rank >= sharded.mesh.size()) {
    throw Error("this graph says that it is of rank '" + number + "', which the mesh " + mesh->second +
                " does not have");
  }
  const auto name_of = [&](NodeId node) { return graph.text(graph.arguments(node)[0].string); };
  for (const NodeId node : graph.nodes()) {
    const TargetId target = graph.node(node).target;
    const std::string_view layout = graph.note(node, kLayoutNote);
    const std::string_view sizes = graph.note(node, kSizesNote);
    if (target.index <= target_of(Builtin::kInput).index) {
      sharded.inputs.push_back({name_of(node), Layout::parse(layout), sizes_from(sizes)});
    } else if (target == target_of(Builtin::kGradient)) {
      if (layout.empty()) continue;
      const NodeId parameter = graph.value(graph.arguments(node)[0].ref.value).producer;
      if (graph.node(parameter).target.index > target_of(Builtin::kInput).index) continue;
      sharded.gradients.push_back({name_of(parameter), Layout::parse(layout), sizes_from(sizes)});
    } else if (target == target_of(Builtin::kOutput)) {
      const std::vector<std::string_view> layouts = parts_of(layout);
      const std::vector<std::string_view> all_sizes = parts_of(sizes);
      size_t next = 0;
      for (const Argument& output : graph.list(graph.arguments(node)[0])) {
        const bool tensor =
            output.kind == ArgumentKind::kValue && graph.value(output.ref.value).kind == ValueKind::kTensor;
        if (!tensor) {
          sharded.outputs.push_back({.layout = Layout(sharded.mesh.axes.size()), .defined = false});
          continue;
        }
        if (next >= layouts.size() || next >= all_sizes.size())
          throw Error("sg::output does not say how its tensors lie");
        sharded.outputs.push_back({"", Layout::parse(layouts[next]), sizes_from(all_sizes[next])});
        ++next;
      }
    }
  }
  sharded.graph = std::move(graph);
  return sharded;
}

}  // namespace shadowgraph
