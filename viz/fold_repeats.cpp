// Finding equal layers: sibling modules, numbered or called repeatedly, whose contents are the same text.
//
// The text of a module lists its drawn nodes in program order: operator, where below the module it lies, constant
// arguments, types of results, and for every tensor argument which node inside made it, or which of the tensors from
// outside it is, in the order in which they first appear:
//
//     attention.query aten::addmm(x0:f32[768], x1:f32[8,768], x2:f32[768,768],1,1) -> f32[8,768]
//     aten::relu(#0.0:f32[8,768]) -> f32[8,768]
//
// Each node is written once for every numbered module around it, so the work is linear in nodes times nesting.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <unordered_map>

#include "viz/drawn_graph.h"

namespace shadowgraph {
namespace {

std::optional<int64_t> number(const std::string& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

class Folder {
 public:
  Folder(const Graph& graph, DrawnGraph& drawn) : graph_(graph), drawn_(drawn) {
    local_.resize(drawn.nodes.size(), 0);
    inside_.resize(drawn.nodes.size(), DrawnGraph::kNone);
  }

  void fold() {
    std::vector<std::pair<uint32_t, uint32_t>> hidden;  // a copy and the sibling drawn for it, outermost first
    for (uint32_t parent = 0; parent < drawn_.clusters.size(); ++parent) {
      const std::vector<uint32_t> siblings = drawn_.clusters[parent].children;
      for (size_t first = 0; first < siblings.size();) {
        const size_t last = end_of_run(siblings, first);
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
  // How far two siblings are apart: by number ("3", "4"), or by call of the same module.
  std::optional<int64_t> distance(const ModuleCluster& a, const ModuleCluster& b) const {
    if (a.phase || b.phase || a.class_name != b.class_name) return std::nullopt;
    if (a.name == b.name) return static_cast<int64_t>(b.call) - static_cast<int64_t>(a.call);
    const auto from = number(a.name);
    const auto to = number(b.name);
    if (!from || !to || a.call != b.call) return std::nullopt;
    return *to - *from;
  }

  size_t end_of_run(const std::vector<uint32_t>& siblings, size_t first) {
    size_t last = first + 1;
    std::optional<int64_t> step;
    std::string original;
    for (; last < siblings.size(); ++last) {
      const auto between = distance(drawn_.clusters[siblings[last - 1]], drawn_.clusters[siblings[last]]);
      // Backward phases meet the layers last to first.
      if (!between || (*between != 1 && *between != -1) || (step && *between != *step)) break;
      if (original.empty()) original = text(siblings[first]);
      if (text(siblings[last]) != original) break;
      step = between;
    }
    return last;
  }

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

  // All drawn nodes below a cluster, in program order.
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

  std::string text(uint32_t cluster) {
    const auto nodes = members(cluster);
    for (uint32_t i = 0; i < nodes.size(); ++i) {
      local_[nodes[i]] = i;
      inside_[nodes[i]] = cluster;
    }
    outside_.clear();
    std::string out = fmt::format("{} nodes\n", nodes.size());
    for (uint32_t node : nodes) {
      const NodeId id = drawn_.nodes[node];
      for (uint32_t at = drawn_.cluster_of[node]; at != cluster; at = drawn_.clusters[at].parent) {
        fmt::format_to(std::back_inserter(out), "{}#{}<", drawn_.clusters[at].name, drawn_.clusters[at].call);
      }
      out += graph_.target(id).name();
      append(out, graph_.arguments(id), cluster);
      out += "->";
      graph_.for_each_output(id, [&](ValueId value) { append_type(out, value); });
      out += '\n';
    }
    return out;
  }

  void append_type(std::string& out, ValueId value) const {
    fmt::format_to(std::back_inserter(out), ":{}", type_label(graph_, value));
    if (graph_.value(value).kind == ValueKind::kTensor) {
      fmt::format_to(std::back_inserter(out), "/{}", fmt::join(graph_.strides(value), ","));
    }
  }

  // Lists nest as deep as a schema's types do.
  void append(std::string& out, std::span<const Argument> arguments, uint32_t cluster) {
    out += '(';
    for (const Argument& argument : arguments) {
      switch (argument.kind) {
        case ArgumentKind::kValue:
          append_value(out, argument.ref.value, cluster);
          break;
        case ArgumentKind::kInt:
          fmt::format_to(std::back_inserter(out), "{}", argument.i);
          break;
        case ArgumentKind::kFloat:
          fmt::format_to(std::back_inserter(out), "{:a}", argument.d);
          break;
        case ArgumentKind::kBool:
          out += argument.b ? "true" : "false";
          break;
        case ArgumentKind::kString:
        case ArgumentKind::kOpaque:
          fmt::format_to(std::back_inserter(out), "'{}'", argument.string.index);  // interned: equal text, equal id
          break;
        case ArgumentKind::kDevice:
        case ArgumentKind::kGenerator:
          fmt::format_to(std::back_inserter(out), "@{}:{}", argument.device_type, argument.device_index);
          break;
        case ArgumentKind::kIntList:
          fmt::format_to(std::back_inserter(out), "[{}]", fmt::join(graph_.ints(argument), ","));
          break;
        case ArgumentKind::kComplex:
          fmt::format_to(std::back_inserter(out), "{:a}", fmt::join(graph_.complex_parts(argument), "+"));
          break;
        case ArgumentKind::kList:
          append(out, graph_.list(argument), cluster);
          break;
        case ArgumentKind::kNone:
        case ArgumentKind::kConstant:
          out += argument.kind == ArgumentKind::kNone ? "none" : "constant";
          break;
      }
      out += ',';
    }
    out += ')';
  }

  void append_value(std::string& out, ValueId value, uint32_t cluster) {
    const ValueId origin = drawn_.origin_of(value);
    const NodeId producer = graph_.value(origin).producer;
    const uint32_t node = producer.valid() ? std::as_const(drawn_.index)[producer] : DrawnGraph::kNone;
    if (node != DrawnGraph::kNone && inside_[node] == cluster) {
      uint32_t result = 0;
      uint32_t found = 0;
      graph_.for_each_output(producer, [&](ValueId output) {
        if (output == origin) found = result;
        ++result;
      });
      fmt::format_to(std::back_inserter(out), "#{}.{}", local_[node], found);
    } else {
      const auto [entry, added] = outside_.try_emplace(origin, outside_.size());
      fmt::format_to(std::back_inserter(out), "x{}", entry->second);
    }
    append_type(out, value);
  }

  const Graph& graph_;
  DrawnGraph& drawn_;
  // Of each drawn node: the cluster whose text was written last with the node in it, and its place there.
  std::vector<uint32_t> inside_;
  std::vector<uint32_t> local_;
  std::unordered_map<ValueId, size_t> outside_;
};

}  // namespace

void fold_repeats(const Graph& graph, DrawnGraph& drawn) { Folder(graph, drawn).fold(); }

}  // namespace shadowgraph
