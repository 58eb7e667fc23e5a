#include "shadowgraph/profile/kernel_class.h"

#include <algorithm>
#include <array>
#include <string>

#include "core/calls/functional_call.h"
#include "ir/operators/operator_name.h"
#include "profiler/cost/elementwise_table.h"
#include "profiler/cost/flop_table.h"
#include "profiler/time/kernel_classes.h"

namespace shadowgraph {
namespace {

constexpr std::array<std::string_view, kKernelClassCount> kNames = {"free",
                                                                    "matmul",
                                                                    "convolution",
                                                                    "convolution_backward",
                                                                    "pointwise_convolution",
                                                                    "pointwise_convolution_backward",
                                                                    "grouped_convolution",
                                                                    "grouped_convolution_backward",
                                                                    "depthwise_convolution",
                                                                    "depthwise_convolution_backward",
                                                                    "attention",
                                                                    "attention_backward",
                                                                    "recurrent",
                                                                    "normalization",
                                                                    "softmax",
                                                                    "reduction",
                                                                    "pooling",
                                                                    "pointwise",
                                                                    "pointwise_in_place",
                                                                    "transcendental",
                                                                    "random",
                                                                    "gather",
                                                                    "scatter",
                                                                    "copy",
                                                                    "fill",
                                                                    "sort",
                                                                    "optimizer",
                                                                    "other"};

std::string_view trimmed(std::string_view name) {
  while (name.starts_with('_')) name.remove_prefix(1);
  while (name.ends_with('_')) name.remove_suffix(1);
  return name;
}

bool contains(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

}  // namespace

TargetKernelClass kernel_class(const Target& called) {
  using K = KernelClass;
  TargetKernelClass result{};  // here, so that its place is this file
  if (called.kind() == TargetKind::kBuiltin) {
    result.kind = K::kFree;
    return result;
  }
  const std::optional<Target> op = operator_of_functional_call(called);
  const Target& target = op ? *op : called;
  const OperatorFacts& facts = target.facts();
  const std::string_view name = trimmed(short_name(target.name()));
  const ElementwiseRow* row = find_elementwise_row(target.name());
  result.backward = contains(name, "backward");
  result.kind = [&] {
    const bool foreach = name.starts_with("foreach_");
    const K of_pointwise = row != nullptr && row->each.transcendental > 0 ? K::kTranscendental : K::kPointwise;
    if (facts.is_view || facts.uninitialised) return K::kFree;
    if (row != nullptr && row->kind != K::kOther && !foreach) {
      return row->kind == K::kPointwise ? of_pointwise : row->kind;
    }
    if (contains(name, "conv")) {
      result.convolution = true;
      return result.backward ? K::kConvolutionBackward : K::kConvolution;
    }
    if (contains(name, "attention")) return result.backward ? K::kAttentionBackward : K::kAttention;
    if (contains(name, "rnn") || contains(name, "lstm") || contains(name, "gru")) return K::kRecurrent;
    if (find_flop_row(target.name()) != nullptr) return K::kMatmul;
    if (name.starts_with("fused_adam") || name.starts_with("fused_sgd") || name.starts_with("fused_adagrad")) {
      return K::kOptimizer;
    }
    if (contains(name, "softmax")) return K::kSoftmax;
    if (contains(name, "norm") && !facts.random) return K::kNormalization;
    if (contains(name, "pool") || contains(name, "upsample")) return K::kPooling;
    if (facts.random) return K::kRandom;
    if (facts.fills) return K::kFill;
    if (facts.pointwise || foreach) return of_pointwise;
    if (facts.geometry_only) return K::kFree;
    return K::kOther;
  }();
  return result;
}

namespace {

int64_t groups_of(const Graph& graph, NodeId node) {
  const Argument* groups = graph.find_argument(node, "groups");
  return groups != nullptr && groups->kind == ArgumentKind::kInt ? groups->i : 1;
}

// 1 x 1, grouped and depthwise convolutions have kernels of their own.
KernelClass convolution_class(const Graph& graph, NodeId node, bool backward) {
  using K = KernelClass;
  // The weight is the last operand of the convolution's rank: (input, weight), (grad, input, weight).
  const auto arguments = graph.arguments(node);
  const size_t position = backward ? 2 : 1;
  if (position >= arguments.size() || arguments[position].kind != ArgumentKind::kValue) {
    return backward ? K::kConvolutionBackward : K::kConvolution;
  }
  const auto weight = graph.sizes(arguments[position].ref.value);
  if (groups_of(graph, node) > 1) {
    // Each output channel sees one input channel: (out, in / groups, window).
    if (weight.size() > 1 && weight[1] == 1) {
      return backward ? K::kDepthwiseConvolutionBackward : K::kDepthwiseConvolution;
    }
    return backward ? K::kGroupedConvolutionBackward : K::kGroupedConvolution;
  }
  const bool one = weight.size() > 2 && std::all_of(weight.begin() + 2, weight.end(), [](auto n) { return n == 1; });
  if (one) return backward ? K::kPointwiseConvolutionBackward : K::kPointwiseConvolution;
  return backward ? K::kConvolutionBackward : K::kConvolution;
}

// Says whether all results are memory that was there.
bool in_place(const Graph& graph, NodeId node) {
  bool fresh = false;
  graph.for_each_output(node, [&](ValueId value) {
    const StorageId storage = graph.value(value).storage;
    fresh |= storage.valid() && graph.storage(storage).born == node;
  });
  return !fresh;
}

}  // namespace

std::string_view to_string(KernelClass kind) { return kNames[static_cast<size_t>(kind)]; }

std::optional<KernelClass> parse_kernel_class(std::string_view word) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == word) return static_cast<KernelClass>(i);
  }
  return std::nullopt;
}

struct KernelClasses::Known : TargetKernelClass {};

KernelClasses::KernelClasses(const Graph& graph) : graph_(graph) {}
KernelClasses::~KernelClasses() = default;

KernelClass KernelClasses::of(NodeId node) {
  const uint32_t target = graph_.node(node).target.index;
  if (target >= by_target_.size()) by_target_.resize(target + 1);
  std::unique_ptr<Known>& known = by_target_[target];
  if (!known) known = std::make_unique<Known>(Known{kernel_class(graph_.target(node))});
  if (known->convolution) return convolution_class(graph_, node, known->backward);
  if (known->kind == KernelClass::kPointwise && in_place(graph_, node)) return KernelClass::kPointwiseInPlace;
  return known->kind;
}

int64_t KernelClasses::computed(NodeId node, int64_t counted) {
  const KernelClass kind = of(node);
  if (kind != KernelClass::kGroupedConvolutionBackward && kind != KernelClass::kDepthwiseConvolutionBackward) {
    return counted;
  }
  const Argument* mask = graph_.find_argument(node, "output_mask");
  if (mask == nullptr || mask->kind != ArgumentKind::kList) return counted;
  const auto wanted = graph_.list(*mask);
  const auto is_wanted = [&](size_t i) {
    return i < wanted.size() && wanted[i].kind == ArgumentKind::kBool && wanted[i].b;
  };
  const int64_t input = is_wanted(0) ? 1 : 0;
  const int64_t weight = is_wanted(1) ? 1 : 0;
  const int64_t parts = input + weight * groups_of(graph_, node);
  return parts == 0 ? counted : counted / parts * (input + weight);
}

KernelClass kernel_class(const Graph& graph, NodeId node) { return KernelClasses(graph).of(node); }

}  // namespace shadowgraph
