#include "shadowgraph/profile/traffic.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <vector>

#include "profiler/time/kernel_classes.h"
#include "shadowgraph/profile/kernel_class.h"
#include "shadowgraph/saturating.h"

namespace shadowgraph {
namespace {

// Counts the bytes of elements that are different: an expanded dimension counts once.
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
      if (is_operand_storage(id, value)) return;  // in-place and out: among the operands
      results = saturating_add(results, element_bytes(graph_, value));
    });
    if (!facts.uninitialised) traffic.written = results;

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
  // FSDP2's shard goes into its own part of the gathered tensor, which is given whole.
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

  // addmm, baddbmm and their like do not read what they would multiply by 0.
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
