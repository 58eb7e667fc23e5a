// Says what nodes cost to run again, as far as their shapes tell.
//
// passes/ may not ask the profiler, which is above it, so the few formulas that decide are here: products,
// convolutions, attention, recurrent layers. Everything else counts by the bytes that it moves. That is enough to tell
// a matrix product from a gelu; shadowgraph/passes/checkpoint_curve.h takes a function for those who know more.
#include <algorithm>
#include <array>

#include "shadowgraph/passes/checkpoint_curve.h"
#include "shadowgraph/saturating.h"

namespace shadowgraph {
namespace {

ValueId operand(const Graph& graph, NodeId node, std::string_view name) {
  const Argument* argument = graph.find_argument(node, name);
  return argument != nullptr && argument->kind == ArgumentKind::kValue ? argument->ref.value : ValueId();
}

int64_t size_at(const Graph& graph, ValueId value, int64_t from_end) {
  const auto sizes = graph.sizes(value);
  const auto rank = static_cast<int64_t>(sizes.size());
  return from_end <= rank ? sizes[static_cast<size_t>(rank - from_end)] : 1;
}

ValueId first_result(const Graph& graph, NodeId node) {
  ValueId first;
  graph.for_each_output(node, [&](ValueId v) {
    if (!first.valid()) first = v;
  });
  return first;
}

// 2 m n k, where the first factor has the k at its end.
int64_t matrix_product(const Graph& graph, NodeId node, std::string_view first_factor) {
  const ValueId factor = operand(graph, node, first_factor);
  const ValueId result = first_result(graph, node);
  return factor.valid() && result.valid()
             ? saturating_multiply(saturating_multiply(2, graph.numel(result)), size_at(graph, factor, 1))
             : 0;
}

// Each result place takes the weights of one output channel. A transposed convolution scatters from each input place
// instead.
int64_t convolution(const Graph& graph, NodeId node) {
  const ValueId input = operand(graph, node, graph.find_argument(node, "input") != nullptr ? "input" : "self");
  const ValueId weight = operand(graph, node, "weight");
  const ValueId result = first_result(graph, node);
  if (!input.valid() || !weight.valid() || !result.valid() || graph.sizes(weight).empty()) return 0;
  const Argument* transposed = graph.find_argument(node, "transposed");
  const bool upwards = transposed != nullptr && transposed->kind == ArgumentKind::kBool && transposed->b;
  const int64_t places = graph.numel(upwards ? input : result);
  return saturating_multiply(saturating_multiply(2, places),
                             graph.numel(weight) / std::max<int64_t>(1, graph.sizes(weight)[0]));
}

// Two products, of queries with keys and of that with values.
int64_t attention(const Graph& graph, NodeId node) {
  const ValueId query = operand(graph, node, "query");
  const ValueId key = operand(graph, node, "key");
  const ValueId value = operand(graph, node, "value");
  if (!query.valid() || !key.valid() || !value.valid()) return 0;
  const int64_t rows = graph.numel(query) / std::max<int64_t>(1, size_at(graph, query, 1));
  return saturating_multiply(saturating_multiply(saturating_multiply(2, rows), size_at(graph, key, 2)),
                             saturating_add(size_at(graph, query, 1), size_at(graph, value, 1)));
}

constexpr std::array<const char*, 3> kStates = {"hx", "hx_", "cx_"};

// Counts two FLOPs for each weight and row: every step of a sequence multiplies with all weights.
int64_t recurrent(const Graph& graph, NodeId node) {
  const ValueId input = operand(graph, node, "input");
  if (!input.valid()) return 0;
  std::array<ValueId, 4> others{input};  // and the states, matrices too in one of the schemas
  std::transform(kStates.begin(), kStates.end(), others.begin() + 1,
                 [&](const char* name) { return operand(graph, node, name); });
  int64_t weights = 0;
  graph.for_each_input(node, [&](ValueId v) {
    if (std::find(others.begin(), others.end(), v) == others.end() && graph.value(v).kind == ValueKind::kTensor &&
        graph.sizes(v).size() == 2) {
      weights += graph.numel(v);
    }
  });
  return saturating_multiply(saturating_multiply(2, weights),
                             graph.numel(input) / std::max<int64_t>(1, size_at(graph, input, 1)));
}

}  // namespace

int64_t product_flops(const Graph& graph, NodeId node) {
  const std::string_view name = graph.target(node).name();
  if (name == "aten::mm" || name == "aten::bmm" || name == "aten::_int_mm" || name == "aten::_scaled_mm") {
    return matrix_product(graph, node, "self");
  }
  if (name == "aten::addmm" || name == "aten::_addmm_activation") return matrix_product(graph, node, "mat1");
  if (name == "aten::baddbmm") return matrix_product(graph, node, "batch1");
  if (name == "aten::linear" || name == "aten::mkldnn_linear" || name == "aten::_linear_pointwise") {
    return matrix_product(graph, node, "input");
  }
  if (name.find("backward") != std::string_view::npos) return 0;
  if (name.starts_with("aten::_scaled_dot_product") || name.starts_with("aten::_flash_attention") ||
      name.starts_with("aten::_efficient_attention")) {
    return attention(graph, node);
  }
  if (name.find("conv") != std::string_view::npos) return convolution(graph, node);
  if (name == "aten::_cudnn_rnn" || name == "aten::mkldnn_rnn_layer" || name == "aten::miopen_rnn") {
    return recurrent(graph, node);
  }
  return 0;
}

CostOfNode flops_and_bytes() {
  return [](const Graph& graph, NodeId node) {
    if (graph.facts(node).is_view) return int64_t{0};
    int64_t bytes = 0;
    const auto add = [&](ValueId v) {
      if (graph.value(v).kind == ValueKind::kTensor) bytes = saturating_add(bytes, graph.logical_bytes(v));
    };
    graph.for_each_input(node, add);
    graph.for_each_output(node, add);
    return saturating_add(product_flops(graph, node), bytes);
  };
}

}  // namespace shadowgraph
