// Checks rules for calls that have no kernel in this build by running their local calls on fakes.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "shadowgraph/graph/text.h"
#include "shadowgraph/shard/simulate.h"
#include "tests/sharding/node_runner.h"
#include "tests/sharding/rule_check.h"
#include "tests/sharding/whole_strategies.h"

namespace shadowgraph {
namespace {

// Returns a fake shard of a value, with its sizes and strides under `layout`.
at::Tensor fake_part(const Graph& graph, ValueId value, const Layout& layout, const DeviceMesh& mesh) {
  const std::vector<int64_t> sizes = local_sizes(graph.sizes(value), layout, mesh).value();
  const std::span<const int64_t> strides = graph.strides(value);
  std::vector<int64_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return strides[static_cast<size_t>(a)] > strides[static_cast<size_t>(b)];
  });
  std::vector<int64_t> dense(sizes.size(), 1);
  int64_t next = 1;
  for (size_t i = order.size(); i-- > 0;) {
    dense[static_cast<size_t>(order[i])] = next;
    next *= std::max<int64_t>(sizes[static_cast<size_t>(order[i])], 1);
  }
  return at::empty_strided(sizes, dense,
                           at::TensorOptions(graph.value(value).dtype).device(graph.value(value).device()));
}

// Runs one strategy's local call on fakes. Returns how the result sizes differ from the strategy, or "".
std::string shapes_differ(Graph& graph, NodeId node, const ShardingRules& rules, const AxisStrategy& strategy,
                          const DeviceMesh& mesh, const std::vector<ValueId>& operands,
                          const std::vector<ValueId>& results) {
  try {
    std::vector<Layout> of_operands;
    std::vector<Layout> of_results;
    Tensors given;
    for (size_t i = 0; i < operands.size(); ++i) {
      of_operands.push_back({strategy.operands[i]});
      given.push_back(fake_part(graph, operands[i], of_operands.back(), mesh));
    }
    for (const Placement& placement : strategy.results) of_results.push_back({placement});
    const std::vector<Argument> arguments = rules.local_arguments(graph, node, of_operands, of_results, mesh);
    const NodeId local = graph.append(graph.node(node).target, arguments);
    const Tensors made = NodeRunner(graph, local, std::nullopt).run(given);
    if (made.size() != results.size()) return "another number of results";
    for (size_t r = 0; r < made.size(); ++r) {
      const std::vector<int64_t> sizes = local_sizes(graph.sizes(results[r]), of_results[r], mesh).value();
      // One-dimensional byte buffers have operator-specific sizes.
      const bool buffer = graph.value(results[r]).dtype == c10::ScalarType::Byte;
      if (!buffer && made[r].sizes() != at::IntArrayRef(sizes)) {
        return fmt::format("result {} has sizes [{}], not [{}]", r, fmt::join(made[r].sizes(), ", "),
                           fmt::join(sizes, ", "));
      }
    }
  } catch (const std::exception& error) {
    return std::string(error.what()).substr(0, 300);
  }
  return "";
}

}  // namespace

void check_rule_shapes(Graph& graph, const ShardingRules& rules, const std::vector<int64_t>& devices,
                       std::set<std::string>& seen, RuleCheck& check) {
  std::vector<NodeId> nodes;
  for (const NodeId node : graph.nodes()) nodes.push_back(node);
  for (const NodeId node : nodes) {
    if (graph.target(node).kind() != TargetKind::kOperator || !find_operator(graph.target(node))) continue;
    if (!seen.insert(call_of(graph, node)).second || graph.facts(node).host_read) continue;
    std::vector<ValueId> operands;
    std::vector<ValueId> results;
    const auto tensors_into = [&](std::vector<ValueId>& list) {
      return [&](ValueId value) {
        if (graph.value(value).kind == ValueKind::kTensor) list.push_back(value);
      };
    };
    graph.for_each_input(node, tensors_into(operands));
    graph.for_each_output(node, tensors_into(results));
    ++check.calls;
    check.operators.insert(graph.target(node).name());
    const NodeStrategies strategies = whole_strategies(rules.strategies(graph, node));
    for (const AxisStrategy& strategy : strategies.axis) {
      for (const int64_t count : devices) {
        if (strategy.extent % count != 0) continue;
        ++check.strategies;
        const DeviceMesh mesh = DeviceMesh::parse(std::to_string(count));
        const std::string how = shapes_differ(graph, node, rules, strategy, mesh, operands, results);
        if (!how.empty()) {
          check.wrong.push_back(fmt::format("{}\n    {} on {}: {}", to_text(graph, node), strategy.name, count, how));
        }
      }
    }
  }
}

}  // namespace shadowgraph
