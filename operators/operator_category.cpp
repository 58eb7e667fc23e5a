#include <string_view>
#include <utility>

#include "ir/operators/operator_facts.h"
#include "ir/operators/operator_name.h"
#include "profiler/cost/elementwise_table.h"
#include "profiler/cost/flop_table.h"
#include "shadowgraph/profile/operator_support.h"

namespace shadowgraph {
namespace {

using enum OperatorCategory;

// In the order of the enumerators.
constexpr CategoryStyle kStyles[] = {
    {kMatmul, "matmul, convolution", "#8fb8e8"},
    {kAttention, "attention", "#c3a6e8"},
    {kNorm, "norm", "#a8dcc8"},
    {kActivation, "activation", "#f9d48b"},
    {kPooling, "pooling, resampling", "#9fd8e6"},
    {kElementwise, "elementwise", "#f6efb0"},
    {kReduction, "reduction, loss", "#e3b7c9"},
    {kRandom, "dropout, random", "#d6c7b0"},
    {kView, "view", "#f2f2f2"},
    {kCopy, "copy, gather, fill", "#dcdcdc"},
    {kOptimizer, "optimizer", "#f4b393"},
    {kPlaceholder, "input, output", "#ffffff"},
    {kModule, "collapsed module", "#dfe7f5"},
    {kOther, "other", "#f7c6c6"},
};

// Categories of operator families, with precedence over the cost tables.
constexpr std::pair<OperatorFamily, OperatorCategory> kOfFamilies[] = {
    {OperatorFamily::kAttention, kAttention}, {OperatorFamily::kOptimizer, kOptimizer},
    {OperatorFamily::kSoftmax, kActivation},  {OperatorFamily::kNormalization, kNorm},
    {OperatorFamily::kPooling, kPooling},     {OperatorFamily::kDropout, kRandom},
    {OperatorFamily::kLoss, kReduction},      {OperatorFamily::kEmbedding, kCopy},
};

}  // namespace

std::span<const CategoryStyle> category_styles() { return kStyles; }
const CategoryStyle& style_of(OperatorCategory category) { return kStyles[static_cast<size_t>(category)]; }

OperatorCategory category_of(const Target& target) {
  if (target.kind() == TargetKind::kBuiltin) return target.name() == "sg::alias" ? kView : kPlaceholder;
  std::string_view name = short_name(target.name());
  const OperatorFamily own = operator_family(name);
  for (const auto& [family, category] : kOfFamilies) {
    if (own == family) return category;
  }
  if (find_flop_row(target.name()) != nullptr) return kMatmul;
  constexpr std::string_view kForeach = "_foreach_";
  if (name.starts_with(kForeach)) name.remove_prefix(kForeach.size());
  name = without_underscore(name);
  constexpr std::string_view kBackward = "_backward";
  if (name.ends_with(kBackward)) name.remove_suffix(kBackward.size());
  if (operator_row(full_name(name)).is & OperatorFact::kActivation) return kActivation;
  const OperatorFacts& facts = target.facts();
  if (facts.is_view) return kView;
  if (facts.random) return kRandom;
  const ElementwiseFormula formula = ElementwiseFormula::of(target);
  if (formula.coverage == ElementwiseCoverage::kNone) return kOther;
  if (formula.coverage == ElementwiseCoverage::kFree) return kCopy;
  if (formula.row == nullptr) return kElementwise;
  if (formula.row->each == ElementwiseWork()) return kCopy;
  const KernelClass kind = formula.row->kind;
  return kind == KernelClass::kReduction || kind == KernelClass::kSort ? kReduction : kElementwise;
}

OperatorCategory category_of(const Graph& graph, NodeId node) {
  const OperatorCategory category = category_of(graph.target(node));
  const bool optimizer = graph.node(node).phase == Graph::kOptimizer && category != kPlaceholder && category != kView;
  return optimizer ? kOptimizer : category;
}

}  // namespace shadowgraph
