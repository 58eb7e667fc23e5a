#include <algorithm>
#include <span>
#include <string_view>
#include <vector>

#include "core/calls/functions.h"
#include "ir/operators/operator_facts.h"
#include "ir/operators/operator_name.h"
#include "profiler/cost/elementwise_table.h"
#include "profiler/cost/flop_table.h"
#include "profiler/time/kernel_work.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/operator_costs.h"
#include "shadowgraph/units.h"

namespace shadowgraph {
namespace {

std::string_view trimmed(std::string_view name) {
  while (name.starts_with('_')) name.remove_prefix(1);
  while (name.ends_with('_')) name.remove_suffix(1);
  return name;
}

bool contains(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

int64_t groups_of(const Graph& graph, NodeId node) {
  const Argument* groups = graph.find_argument(node, "groups");
  return groups != nullptr && groups->kind == ArgumentKind::kInt ? groups->i : 1;
}

// 1 x 1, grouped and depthwise convolutions have separate classes.
KernelClass convolution_class(const Graph& graph, NodeId node, bool backward) {
  using K = KernelClass;
  // The weight is the last operand with the rank of the convolution: (input, weight), (grad, input, weight).
  const auto arguments = graph.arguments(node);
  const size_t position = backward ? 2 : 1;
  if (position >= arguments.size() || arguments[position].kind != ArgumentKind::kValue) {
    return backward ? K::kConvolutionBackward : K::kConvolution;
  }
  const auto weight = graph.sizes(arguments[position].ref.value);
  if (groups_of(graph, node) > 1) {
    // Depthwise: each output channel reads one input channel, (out, in / groups, window).
    if (weight.size() > 1 && weight[1] == 1) {
      return backward ? K::kDepthwiseConvolutionBackward : K::kDepthwiseConvolution;
    }
    return backward ? K::kGroupedConvolutionBackward : K::kGroupedConvolution;
  }
  const bool one = weight.size() > 2 && std::all_of(weight.begin() + 2, weight.end(), [](auto n) { return n == 1; });
  if (one) return backward ? K::kPointwiseConvolutionBackward : K::kPointwiseConvolution;
  return backward ? K::kConvolutionBackward : K::kConvolution;
}

// Returns true if all results are existing memory.
bool in_place(const Graph& graph, NodeId node) {
  bool fresh = false;
  graph.for_each_output(node, [&](ValueId value) {
    const StorageId storage = graph.value(value).storage;
    fresh |= storage.valid() && graph.storage(storage).born == node;
  });
  return !fresh;
}

}  // namespace

TargetKernelClass kernel_class(const Target& called) {
  using K = KernelClass;
  TargetKernelClass result{};  // constructed here, so that its `file` is this one
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
    if (facts.is_view || facts.uninitialized) return K::kFree;
    if (row != nullptr && row->kind != K::kOther && !foreach) {
      return row->kind == K::kPointwise ? of_pointwise : row->kind;
    }
    const OperatorFamily family = operator_family(target.name());
    if (family == OperatorFamily::kConvolution) {
      result.convolution = true;
      return result.backward ? K::kConvolutionBackward : K::kConvolution;
    }
    if (family == OperatorFamily::kAttention) return result.backward ? K::kAttentionBackward : K::kAttention;
    if (family == OperatorFamily::kRecurrent) return K::kRecurrent;
    if (find_flop_row(target.name()) != nullptr) return K::kMatmul;
    if (family == OperatorFamily::kOptimizer) return K::kOptimizer;
    if (family == OperatorFamily::kSoftmax) return K::kSoftmax;
    const bool norm = family == OperatorFamily::kNormalization || family == OperatorFamily::kVectorNorm;
    if (norm && !facts.random) return K::kNormalization;
    if (family == OperatorFamily::kPooling) return K::kPooling;
    if (facts.random) return K::kRandom;
    if (facts.fills) return K::kFill;
    if (facts.pointwise || foreach) return of_pointwise;
    if (facts.geometry_only) return K::kFree;
    return K::kOther;
  }();
  return result;
}

KernelClass KernelClasses::of(NodeId node) {
  auto& known = by_target_[graph_.node(node).target];
  if (!known) known = kernel_class(graph_.target(node));
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

namespace {

// Returns the bytes of distinct elements: an expanded dimension counts once.
int64_t element_bytes(const Graph& graph, ValueId id) {
  const Value& value = graph.value(id);
  const auto sizes = graph.sizes(id);
  const auto strides = graph.strides(id);
  int64_t count = 1;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return 0;
    if (strides[d] != 0 || value.layout != c10::Layout::Strided) count = saturating_multiply(count, sizes[d]);
  }
  return saturating_multiply(count, static_cast<int64_t>(c10::elementSize(value.dtype)));
}

class TrafficOf {
 public:
  explicit TrafficOf(const Graph& graph) : graph_(graph), classes_(graph) {}

  NodeTraffic node(NodeId id) {
    const Target& target = graph_.target(id);
    const OperatorFacts& facts = graph_.facts(id);
    if (target.kind() == TargetKind::kBuiltin || facts.is_view) return {};
    NodeTraffic traffic;
    if (target.name() == kCopiesIn) return copied(graph_.arguments(id).first(1));
    seen_.clear();
    int64_t results = 0;
    graph_.for_each_output(id, [&](ValueId value) {
      if (graph_.value(value).kind != ValueKind::kTensor) return;
      if (is_operand_storage(id, value)) return;  // in-place and out: counted among the operands
      results = saturating_add(results, element_bytes(graph_, value));
    });
    if (!facts.uninitialized) traffic.written = results;

    const auto arguments = graph_.arguments(id);
    const KernelClass kind = classes_.of(id);
    const bool takes_rows = kind == KernelClass::kGather;
    const bool ignores_first = kind == KernelClass::kMatmul && is_zero(graph_.find_argument(id, "beta"));
    for (size_t position = 0; position < arguments.size(); ++position) {
      const auto among = [&](const std::vector<uint16_t>& positions) {
        return std::find(positions.begin(), positions.end(), position) != positions.end();
      };
      const bool written = among(facts.written);
      const bool ignored = facts.geometry_only || (ignores_first && position == 0);
      const bool read = !ignored && (!written || !among(facts.overwritten));
      each_value(arguments[position], [&](ValueId value) {
        int64_t bytes = element_bytes(graph_, value);
        if (written) traffic.written = saturating_add(traffic.written, bytes);
        if (!read || std::find(seen_.begin(), seen_.end(), value) != seen_.end()) return;
        if (seen_.size() < 64) seen_.push_back(value);
        if (takes_rows && results > 0) bytes = std::min(bytes, results);
        traffic.read = saturating_add(traffic.read, bytes);
      });
    }
    return traffic;
  }

 private:
  // FSDP2 copies its shard into one part of the gathered tensor, which is passed as a whole.
  static constexpr std::string_view kCopiesIn = "fsdp::all_gather_copy_in";
  NodeTraffic copied(std::span<const Argument> arguments) {
    NodeTraffic traffic;
    for (const Argument& argument : arguments) {
      each_value(argument,
                 [&](ValueId value) { traffic.read = saturating_add(traffic.read, element_bytes(graph_, value)); });
    }
    traffic.written = traffic.read;
    return traffic;
  }

  // addmm, baddbmm and similar do not read an operand multiplied by 0.
  static bool is_zero(const Argument* factor) {
    if (factor == nullptr) return false;
    return (factor->kind == ArgumentKind::kInt && factor->i == 0) ||
           (factor->kind == ArgumentKind::kFloat && factor->d == 0);
  }

  template <class Visit>
  void each_value(const Argument& argument, const Visit& visit) {
    if (argument.kind == ArgumentKind::kValue) {
      if (graph_.value(argument.ref.value).kind == ValueKind::kTensor) visit(argument.ref.value);
    } else if (argument.kind == ArgumentKind::kList) {
      for (const Argument& element : graph_.list(argument)) each_value(element, visit);
    }
  }
  bool is_operand_storage(NodeId node, ValueId result) {
    const StorageId storage = graph_.value(result).storage;
    return !storage.valid() || graph_.storage(storage).born != node;
  }

  const Graph& graph_;
  KernelClasses classes_;
  std::vector<ValueId> seen_;
};

}  // namespace

int64_t NodeTraffic::total() const { return saturating_add(read, written); }

NodeTraffic& NodeTraffic::operator+=(const NodeTraffic& other) {
  read = saturating_add(read, other.read);
  written = saturating_add(written, other.written);
  return *this;
}

Traffic Traffic::of(const Graph& graph) {
  Traffic traffic;
  traffic.by_node_.reserve(graph.node_capacity());
  TrafficOf one(graph);
  for (const NodeId node : graph.nodes()) {
    const NodeTraffic bytes = one.node(node);
    if (bytes == NodeTraffic()) continue;
    traffic.by_node_[node] = bytes;
    traffic.by_phase_[graph.node(node).phase] += bytes;
  }
  return traffic;
}

}  // namespace shadowgraph
