// Splits products and convolutions with a bias into the product, and the addition by itself.
//
//     %3 = aten::addmm(self=%bias, mat1=%x, mat2=%w)      %4 = aten::mm(%x, %w)      %3 = aten::add(%4, %bias)
//
// The addition can then be fused with what follows, and passes need to know one kind of product less.
//
// Expands with a table of its own, so the cost is that of `decompose` for these nodes alone.
#include "passes/decompose/decompositions.h"
#include "passes/decompose/expansion.h"
#include "shadowgraph/passes/decompose.h"

namespace shadowgraph {
namespace {

const ExpansionTable& table() {
  static const ExpansionTable* table = [] {
    auto* made = new ExpansionTable;
    decompositions::add_matrix_products(*made);
    decompositions::add_convolution_bias(*made);
    return made;
  }();
  return *table;
}

}  // namespace

SplitBiasResult split_bias(Graph& graph) { return split_bias_of(graph, nullptr); }

SplitBiasResult split_bias_of(Graph& graph, const std::function<bool(NodeId)>& wanted) {
  std::vector<NodeId> candidates;
  for (const NodeId node : graph.nodes()) {
    const Target& target = graph.target(node);
    if (target.kind() != TargetKind::kOperator || !table().has(target.name())) continue;
    if (wanted && !wanted(node)) continue;
    const Argument* bias = graph.find_argument(node, "bias");
    // A convolution without bias has nothing to split; addmm has its bias under another name.
    if (bias == nullptr || bias->kind == ArgumentKind::kValue) candidates.push_back(node);
  }
  SplitBiasResult result;
  if (candidates.empty()) return result;
  Expander expander(graph, table());
  for (const NodeId node : candidates) {
    if (!expander.expand(node)) ++result.split;
  }
  expander.relink();
  return result;
}

PassResult SplitBiasResult::summary() const { return {.changed = split > 0, .counters = {{"split", split}}}; }

}  // namespace shadowgraph
