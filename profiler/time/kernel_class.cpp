#include <array>
#include <string>
#include <unordered_map>

#include "core/replay/functional_call.h"
#include "ir/operators/operator_name.h"
#include "profiler/cost/elementwise_table.h"
#include "profiler/cost/flop_table.h"
#include "profiler/time/kernel_classes.h"
#include "shadowgraph/profile/time.h"

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
                                                                    "attention",
                                                                    "attention_backward",
                                                                    "recurrent",
                                                                    "normalization",
                                                                    "softmax",
                                                                    "reduction",
                                                                    "pooling",
                                                                    "pointwise",
                                                                    "transcendental",
                                                                    "random",
                                                                    "gather",
                                                                    "scatter",
                                                                    "copy",
                                                                    "fill",
                                                                    "sort",
                                                                    "optimizer",
                                                                    "other"};

// By the operator's short name, without underscores around it.
const std::unordered_map<std::string_view, KernelClass>& by_name() {
  using K = KernelClass;
  static const auto* table = new std::unordered_map<std::string_view, K>{
      {"sum", K::kReduction},
      {"mean", K::kReduction},
      {"amax", K::kReduction},
      {"amin", K::kReduction},
      {"max", K::kReduction},
      {"min", K::kReduction},
      {"argmax", K::kReduction},
      {"argmin", K::kReduction},
      {"prod", K::kReduction},
      {"var", K::kReduction},
      {"std", K::kReduction},
      {"var_mean", K::kReduction},
      {"any", K::kReduction},
      {"all", K::kReduction},
      {"logsumexp", K::kReduction},
      {"linalg_vector_norm", K::kReduction},
      {"norm", K::kReduction},
      {"cumsum", K::kReduction},
      {"cumprod", K::kReduction},
      {"nll_loss_forward", K::kReduction},
      {"nll_loss2d_forward", K::kReduction},
      {"embedding", K::kGather},
      {"index", K::kGather},
      {"index_select", K::kGather},
      {"gather", K::kGather},
      {"take", K::kGather},
      {"masked_select", K::kGather},
      {"nonzero", K::kGather},
      {"embedding_bag", K::kGather},
      {"embedding_dense_backward", K::kScatter},
      {"index_put", K::kScatter},
      {"index_put_impl", K::kScatter},
      {"index_add", K::kScatter},
      {"scatter", K::kScatter},
      {"scatter_add", K::kScatter},
      {"index_copy", K::kScatter},
      {"select_backward", K::kScatter},
      {"slice_backward", K::kScatter},
      {"nll_loss_backward", K::kScatter},
      {"nll_loss2d_backward", K::kScatter},
      {"index_fill", K::kScatter},
      {"copy", K::kCopy},
      {"clone", K::kCopy},
      {"cat", K::kCopy},
      {"stack", K::kCopy},
      {"to_copy", K::kCopy},
      {"constant_pad_nd", K::kCopy},
      {"repeat", K::kCopy},
      {"roll", K::kCopy},
      {"flip", K::kCopy},
      {"reflection_pad1d", K::kCopy},
      {"reflection_pad2d", K::kCopy},
      {"im2col", K::kCopy},
      {"col2im", K::kCopy},
      {"pixel_shuffle", K::kCopy},
      {"contiguous", K::kCopy},
      {"slice_scatter", K::kCopy},
      {"tril", K::kPointwise},
      {"triu", K::kPointwise},
      {"sort", K::kSort},
      {"topk", K::kSort},
      {"argsort", K::kSort},
      {"unique2", K::kSort},
      {"unique_dim", K::kSort},
      {"kthvalue", K::kSort},
      {"median", K::kSort},
      {"searchsorted", K::kSort},
  };
  return *table;
}

std::string_view trimmed(std::string_view name) {
  while (name.starts_with('_')) name.remove_prefix(1);
  while (name.ends_with('_')) name.remove_suffix(1);
  return name;
}

bool contains(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

// The class of an operator, as far as its name and facts tell.
struct TargetClass {
  KernelClass kind = KernelClass::kOther;
  bool convolution = false;  // its operands say which
  bool backward = false;
};

TargetClass class_of(const Target& called) {
  using K = KernelClass;
  TargetClass result;
  if (called.kind() == TargetKind::kBuiltin) {
    result.kind = K::kFree;
    return result;
  }
  const std::optional<Target> op = operator_of_functional_call(called);
  const Target& target = op ? *op : called;
  const OperatorFacts& facts = target.facts();
  const std::string_view name = trimmed(short_name(target.name()));
  result.backward = contains(name, "backward");
  result.kind = [&] {
    if (facts.is_view || facts.uninitialised) return K::kFree;
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
    if (const auto found = by_name().find(name); found != by_name().end()) return found->second;
    if (contains(name, "softmax")) return K::kSoftmax;
    if (contains(name, "norm") && !facts.random) return K::kNormalization;
    if (contains(name, "pool") || contains(name, "upsample")) return K::kPooling;
    if (facts.random) return K::kRandom;
    if (facts.fills) return K::kFill;
    if (facts.pointwise || name.starts_with("foreach_")) {
      const ElementwiseRow* row = find_elementwise_row(target.name());
      return row != nullptr && row->each.transcendental > 0 ? K::kTranscendental : K::kPointwise;
    }
    if (facts.geometry_only) return K::kFree;
    return K::kOther;
  }();
  return result;
}

// 1 x 1 and grouped ones have kernels of their own.
KernelClass convolution_class(const Graph& graph, NodeId node, bool backward) {
  using K = KernelClass;
  // The weight is the operand with the convolution's rank that comes last: (input, weight), (grad, input, weight).
  ValueId weight;
  const auto arguments = graph.arguments(node);
  const size_t position = backward ? 2 : 1;
  if (position < arguments.size() && arguments[position].kind == ArgumentKind::kValue) {
    weight = arguments[position].ref.value;
  }
  if (!weight.valid()) return backward ? K::kConvolutionBackward : K::kConvolution;
  const auto sizes = graph.sizes(weight);
  bool one = sizes.size() > 2;
  for (size_t d = 2; d < sizes.size(); ++d) one &= sizes[d] == 1;
  int64_t groups = 1;
  const Target& target = graph.target(node);
  const auto& formals = target.schema().arguments();
  for (size_t i = 0; i < arguments.size() && i < formals.size(); ++i) {
    if (formals[i].name() == "groups" && arguments[i].kind == ArgumentKind::kInt) groups = arguments[i].i;
  }
  if (groups > 1) return backward ? K::kGroupedConvolutionBackward : K::kGroupedConvolution;
  if (one) return backward ? K::kPointwiseConvolutionBackward : K::kPointwiseConvolution;
  return backward ? K::kConvolutionBackward : K::kConvolution;
}

}  // namespace

std::string_view to_string(KernelClass kind) { return kNames[static_cast<size_t>(kind)]; }

std::optional<KernelClass> parse_kernel_class(std::string_view word) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == word) return static_cast<KernelClass>(i);
  }
  return std::nullopt;
}

struct KernelClasses::Known : TargetClass {};

KernelClasses::KernelClasses(const Graph& graph) : graph_(graph) {}
KernelClasses::~KernelClasses() = default;

KernelClass KernelClasses::of(NodeId node) {
  const uint32_t target = graph_.node(node).target.index;
  if (target >= by_target_.size()) by_target_.resize(target + 1);
  std::unique_ptr<Known>& known = by_target_[target];
  if (!known) known = std::make_unique<Known>(Known{class_of(graph_.target(node))});
  return known->convolution ? convolution_class(graph_, node, known->backward) : known->kind;
}

KernelClass kernel_class(const Graph& graph, NodeId node) { return KernelClasses(graph).of(node); }

}  // namespace shadowgraph
