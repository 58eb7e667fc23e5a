#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <map>

#include "core/calls/functions.h"
#include "ir/operators/operator_facts.h"
#include "profiler/cost/elementwise_table.h"
#include "profiler/cost/operand_reader.h"
#include "profiler/cost/scratch_rules.h"
#include "shadowgraph/profile/profile.h"

namespace shadowgraph {
namespace {

// Keeps what is known of all calls of a target.
struct TargetScratch {
  bool asked = false;
  bool never = false;      // takes none, whatever its operands are
  bool pointwise = false;  // none if no operand has to be converted
  std::shared_ptr<const OperatorCosts> own;
  const ScratchRow* rows[2] = {};  // CPU, CUDA

  static TargetScratch of(const Target& called) {
    TargetScratch known{.asked = true};
    if (called.kind() == TargetKind::kBuiltin) {
      known.never = true;
      return known;
    }
    const std::optional<Target> op = operator_of_functional_call(called);
    const Target& target = op ? *op : called;
    known.own = registered_costs(target);
    if (known.own && !known.own->scratch) known.own = nullptr;
    const OperatorFacts& facts = target.facts();
    // Collectives take none: NCCL's buffers are the communicator's, and stay.
    known.never = facts.is_view || facts.fills || facts.uninitialised || facts.collective;
    known.pointwise = facts.pointwise;
    known.rows[0] = find_scratch_row(target, c10::kCPU);
    known.rows[1] = find_scratch_row(target, c10::kCUDA);
    return known;
  }
};

// TensorIterator computes in one dtype. On CPUs it converts operands of other dtypes before the kernel runs; on CUDA
// the kernel converts element by element. Numbers that came as 0-dimensional tensors are small either way.
int64_t converted_bytes(const Graph& graph, NodeId node) {
  c10::ScalarType common = c10::ScalarType::Undefined;
  bool mixed = false;
  graph.for_each_input(node, [&](ValueId id) {
    const Value& value = graph.value(id);
    if (value.kind != ValueKind::kTensor || value.rank == 0 || value.dtype == c10::kBool) return;
    if (common == c10::ScalarType::Undefined) common = value.dtype;
    mixed |= value.dtype != common;
    common = c10::promoteTypes(common, value.dtype);
  });
  if (!mixed) return 0;
  int64_t bytes = 0;
  graph.for_each_input(node, [&](ValueId id) {
    const Value& value = graph.value(id);
    if (value.kind != ValueKind::kTensor || value.dtype == common || value.dtype == c10::kBool) return;
    const auto sizes = graph.sizes(id);
    bytes =
        saturating_add(bytes, saturating_multiply(product_of(sizes), static_cast<int64_t>(c10::elementSize(common))));
  });
  return bytes;
}

// Counts copies of arguments that the kernel wants contiguous.
int64_t copied_bytes(const Graph& graph, NodeId node, std::string_view places) {
  int64_t bytes = 0;
  const auto arguments = graph.arguments(node);
  for (const char place : places) {
    const auto at = static_cast<size_t>(place - '0');
    if (at >= arguments.size() || arguments[at].kind != ArgumentKind::kValue) continue;
    const ValueId value = arguments[at].ref.value;
    const auto sizes = graph.sizes(value);
    const auto strides = graph.strides(value);
    int64_t dense = 1;
    bool contiguous = true;
    for (size_t d = sizes.size(); d-- > 0;) {
      contiguous &= sizes[d] == 1 || strides[d] == dense;
      dense = saturating_multiply(dense, std::max<int64_t>(sizes[d], 1));
    }
    if (contiguous || product_of(sizes) == 0) continue;
    bytes = saturating_add(
        bytes,
        saturating_multiply(product_of(sizes), static_cast<int64_t>(c10::elementSize(graph.value(value).dtype))));
  }
  return bytes;
}

}  // namespace

Scratch Scratch::of(const Graph& graph, const MeasuredCalls* measured) {
  Scratch scratch;
  IdMap<TargetId, TargetScratch> targets;
  std::map<std::string, int64_t> unknown;
  OperandReader reader(graph);
  const bool ask = measured != nullptr && measured->size() > 0;
  for (const NodeId node : graph.nodes()) {
    const TargetId id = graph.node(node).target;
    TargetScratch& target = targets[id];
    if (!target.asked) target = TargetScratch::of(graph.target(id));
    if (target.never) continue;
    const auto answer = [&]() -> NodeScratch {
      if (target.own) {
        const auto bytes = evaluate(target.own->scratch, reader.read(node));
        return bytes ? NodeScratch{*bytes, ScratchSource::kRegistered} : NodeScratch{0, ScratchSource::kUnknown};
      }
      const auto device = device_of_call(graph, node);
      if (!device) return {};
      if (ask && device->is_cpu()) {
        if (const MeasuredCall* call = measured->find(call_signature(graph, node))) {
          return {call->scratch, ScratchSource::kMeasured};
        }
      }
      if (const ScratchRow* row = device->is_cpu() ? target.rows[0] : device->is_cuda() ? target.rows[1] : nullptr) {
        if (const auto bytes = evaluate(row->bytes, reader.read(node))) {
          return {saturating_add(*bytes, copied_bytes(graph, node, row->copies)), ScratchSource::kRule};
        }
      }
      if (target.pointwise) {
        const int64_t bytes = device->is_cpu() ? converted_bytes(graph, node) : 0;
        return {bytes, bytes > 0 ? ScratchSource::kRule : ScratchSource::kNone};
      }
      return {0, ScratchSource::kUnknown};
    }();
    if (answer.source == ScratchSource::kUnknown) ++unknown[graph.target(id).name()];
    if (answer.source != ScratchSource::kNone) scratch.by_node_[node] = answer;
  }
  for (auto& [op, calls] : unknown) scratch.unknown_.push_back({op, calls});
  return scratch;
}

int64_t Scratch::unknown_calls() const {
  int64_t calls = 0;
  for (const UncoveredOperator& row : unknown_) calls += row.count;
  return calls;
}

}  // namespace shadowgraph
