#include <charconv>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <vector>

#include "shadowgraph/profile.h"
#include "shadowgraph/saturating.h"

namespace shadowgraph {

namespace {

// Reads "8,3" in the note of a parameter of which this process has a part.
std::optional<int64_t> whole_numel(const Graph& graph, NodeId node) {
  const std::string_view sizes = graph.note(node, "whole_sizes");
  if (sizes.empty()) return std::nullopt;
  int64_t numel = 1;
  for (const char* at = sizes.data(); at < sizes.data() + sizes.size();) {
    int64_t size = 0;
    const auto [end, error] = std::from_chars(at, sizes.data() + sizes.size(), size);
    if (error != std::errc()) return std::nullopt;  // "scalar"
    numel = saturating_multiply(numel, size);
    at = end + 1;
  }
  return numel;
}

}  // namespace

ParameterCount ParameterCount::of(const Graph& graph) {
  ParameterCount count;
  std::set<std::tuple<StorageId, int64_t, std::vector<int64_t>>> seen;
  for (NodeId node : graph.nodes()) {
    const TargetId target = graph.node(node).target;
    // A view of a buffer that has several, or what the program itself made in the graph.
    const bool parameter = target == target_of(Builtin::kParameter) || !graph.note(node, "parameter").empty();
    if (!parameter && target != target_of(Builtin::kBuffer) && graph.note(node, "buffer").empty()) continue;
    graph.for_each_output(node, [&](ValueId id) {
      const Value& value = graph.value(id);
      const auto sizes = graph.sizes(id);
      if (value.kind != ValueKind::kTensor) return;
      const bool fresh = !value.storage.valid() ||
                         seen.emplace(value.storage, value.offset, std::vector(sizes.begin(), sizes.end())).second;
      if (!fresh) return;
      (parameter ? count.parameters : count.buffers) += graph.numel(id);
      if (parameter) count.whole_parameters += whole_numel(graph, node).value_or(graph.numel(id));
      (parameter ? count.parameter_bytes : count.buffer_bytes) += graph.logical_bytes(id);
      ++(parameter ? count.parameter_tensors : count.buffer_tensors);
    });
  }
  return count;
}

}  // namespace shadowgraph
