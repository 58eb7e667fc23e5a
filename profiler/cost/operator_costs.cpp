#include "shadowgraph/profile/operator_costs.h"

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/calls/functions.h"
#include "ir/operators/operator_facts.h"
#include "ir/operators/operator_name.h"
#include "profiler/cost/elementwise_table.h"
#include "profiler/cost/flop_table.h"
#include "profiler/cost/scratch_rules.h"
#include "shadowgraph/error.h"
#include "shadowgraph/profile/profile.h"
#include "support/text.h"

namespace shadowgraph {
namespace {

struct Registered {
  std::mutex mutex;
  std::unordered_map<std::string, std::shared_ptr<const OperatorCosts>> by_name;

  static Registered& global() {
    static auto* registered = new Registered;
    return *registered;
  }
  std::shared_ptr<const OperatorCosts> find(const std::string& name) {
    const std::lock_guard lock(mutex);
    const auto found = find_by_operator(by_name, name);
    return found == by_name.end() ? nullptr : found->second;
  }
};

// Converts a node's arguments and results to spans of shapes, valid until the next node is read. Buffers are reused.
class OperandReader {
 public:
  explicit OperandReader(const Graph& graph) : graph_(graph) {}

  OperandShapes read(NodeId node) {
    lists_.clear();
    ints_.clear();
    read(graph_.arguments(node), arguments_);
    read(graph_.results(node), results_);
    return {.arguments = arguments_, .results = results_};
  }

 private:
  void read(std::span<const Argument> from, std::vector<Operand>& to) {
    to.clear();
    for (const Argument& argument : from) to.push_back(operand(argument));
  }

  static int64_t element_bytes(c10::ScalarType dtype) {
    return dtype == c10::ScalarType::Undefined ? 0 : static_cast<int64_t>(c10::elementSize(dtype));
  }

  Operand tensor(ValueId value) const {
    const auto sizes = graph_.sizes(value), strides = graph_.strides(value);
    Operand read = Operand::of_tensor(sizes, element_bytes(graph_.value(value).dtype));
    read.channels_last = sizes.size() > 2 && sizes[1] > 1 && strides[1] == 1;
    return read;
  }

  Operand operand(const Argument& argument) {
    switch (argument.kind) {
      case ArgumentKind::kNone:
        return {};
      case ArgumentKind::kValue:
        // A host scalar computed by a node (item, size): its value is not in the graph.
        return graph_.value(argument.ref.value).kind == ValueKind::kTensor ? tensor(argument.ref.value)
                                                                           : Operand{.kind = Operand::Kind::kOther};
      case ArgumentKind::kConstant: {
        const auto constant = graph_.constant_meta(argument.constant);
        return constant ? Operand::of_tensor(constant->sizes, element_bytes(constant->dtype)) : Operand();
      }
      case ArgumentKind::kInt:
        return Operand::of_number(static_cast<double>(argument.i));
      case ArgumentKind::kFloat:
        return Operand::of_number(argument.d);
      case ArgumentKind::kBool:
        return Operand::of_number(argument.b ? 1 : 0);
      case ArgumentKind::kIntList:
        return Operand::of_ints(graph_.ints(argument));
      case ArgumentKind::kList:
        return list(graph_.list(argument));
      default:
        return {.kind = Operand::Kind::kOther};
    }
  }

  Operand list(std::span<const Argument> elements) {
    std::vector<Shape> shapes;
    std::vector<int64_t> ints;
    int64_t bytes = 0;
    for (const Argument& element : elements) {
      const Operand one = element.kind == ArgumentKind::kList ? Operand() : operand(element);
      if (one.kind == Operand::Kind::kTensor) {
        if (shapes.empty()) bytes = one.element_bytes;
        shapes.push_back(one.shape);
      }
      if (one.kind == Operand::Kind::kNumber) ints.push_back(static_cast<int64_t>(one.number));
    }
    if (!ints.empty()) return Operand::of_ints(ints_.emplace_back(std::move(ints)));
    return Operand::of_tensors(lists_.emplace_back(std::move(shapes)), bytes);
  }

  const Graph& graph_;
  std::vector<Operand> arguments_;
  std::vector<Operand> results_;
  std::deque<std::vector<Shape>> lists_;  // a deque, so that spans into earlier elements stay valid
  std::deque<std::vector<int64_t>> ints_;
};

struct TargetFormulas {
  bool known = false;
  bool free = false;                         // no work for any shapes: operands are not read
  std::shared_ptr<const OperatorCosts> own;  // registered by the user; overrides the tables
  const FlopRow* flop = nullptr;
  ElementwiseFormula elementwise;
};

// The functional form of a mutating operator (core/calls/functions.h) takes the same arguments and does the same work.
TargetFormulas formulas_of(const Target& called) {
  const std::optional<Target> op = operator_of_functional_call(called);
  const Target& target = op ? *op : called;
  TargetFormulas formulas{.known = true, .own = registered_costs(target)};
  if (formulas.own && !formulas.own->flops) formulas.own = nullptr;
  if (formulas.own) return formulas;
  if (target.facts().collective) {
    formulas.free = true;  // additions are negligible compared to the transfer (shadowgraph/profile/communication.h)
    return formulas;
  }
  formulas.flop = find_flop_row(target.name());
  formulas.elementwise = ElementwiseFormula::of(target);
  formulas.free = formulas.flop == nullptr &&
                  (formulas.elementwise.coverage == ElementwiseCoverage::kFree ||
                   (formulas.elementwise.row != nullptr && formulas.elementwise.row->each == ElementwiseWork()));
  return formulas;
}

// Scratch rules that apply to all calls of a target.
struct TargetScratch {
  bool asked = false;
  bool never = false;      // no scratch for any operands
  bool pointwise = false;  // no scratch unless an operand has to be converted
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
    // Collectives need none: NCCL's buffers belong to the communicator and persist.
    known.never = facts.is_view || facts.fills || facts.uninitialized || facts.collective;
    known.pointwise = facts.pointwise;
    known.rows[0] = find_scratch_row(target, c10::kCPU);
    known.rows[1] = find_scratch_row(target, c10::kCUDA);
    return known;
  }
};

int64_t bytes_of(std::span<const int64_t> sizes, c10::ScalarType dtype) {
  return saturating_multiply(product_of(sizes), static_cast<int64_t>(c10::elementSize(dtype)));
}

// TensorIterator computes in one dtype. On CPUs it converts operands of other dtypes before the kernel runs; on CUDA
// the kernel converts each element. Numbers wrapped in 0-dimensional tensors are negligible.
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
    bytes = saturating_add(bytes, bytes_of(graph.sizes(id), common));
  });
  return bytes;
}

// Returns the bytes of copies of arguments that the kernel makes contiguous.
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
    bytes = saturating_add(bytes, bytes_of(sizes, graph.value(value).dtype));
  }
  return bytes;
}

}  // namespace

void register_cost(const std::string& operator_name, OperatorCosts costs) {
  const size_t colons = operator_name.find("::");
  if (colons == std::string::npos || colons == 0 || colons + 2 == operator_name.size()) {
    throw Error("register_operator: invalid operator name '" + operator_name +
                "'; expected namespace::name or namespace::name.overload");
  }
  Registered& registered = Registered::global();
  const std::lock_guard lock(registered.mutex);
  const bool added =
      registered.by_name.emplace(operator_name, std::make_shared<const OperatorCosts>(std::move(costs))).second;
  if (!added) {
    throw Error(
        "register_operator: " + operator_name +
        " is registered already. Register it once, with its shape rule and all its costs; to replace only the shape "
        "rule, use register_rule");
  }
}

std::shared_ptr<const OperatorCosts> registered_costs(const Target& called) {
  if (called.kind() == TargetKind::kBuiltin) return nullptr;
  const std::optional<Target> op = operator_of_functional_call(called);
  return Registered::global().find((op ? *op : called).name());
}

std::optional<int64_t> evaluate(const CostRule& rule, const OperandShapes& call) {
  if (!rule) return std::nullopt;
  try {
    const auto answer = rule(call);
    return answer && *answer >= 0 ? answer : std::nullopt;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

CustomOperators CustomOperators::of(const Graph& graph) {
  CustomOperators own;
  IdMap<TargetId, std::optional<std::shared_ptr<const OperatorCosts>>> known;
  std::map<std::string, CustomOperatorCosts> figures;
  OperandReader reader(graph);
  for (const NodeId node : graph.nodes()) {
    const TargetId target = graph.node(node).target;
    auto& entry = known[target];
    if (!entry) entry = registered_costs(graph.target(target));
    const auto& costs = *entry;
    if (!costs) continue;
    const OperandShapes call = reader.read(node);
    const auto flops = evaluate(costs->flops, call);
    const auto bytes = evaluate(costs->bytes, call);
    const auto scratch = evaluate(costs->scratch, call);
    CustomOperatorCosts& row = figures[graph.target(target).name()];
    ++row.calls;
    row.flops = saturating_add(row.flops, flops.value_or(0));
    row.bytes = saturating_add(row.bytes, bytes.value_or(0));
    row.scratch = std::max(row.scratch, scratch.value_or(0));
    if ((costs->flops && !flops) || (costs->bytes && !bytes) || (costs->scratch && !scratch)) ++row.unknown;
    if (scratch.value_or(0) > 0) {
      own.scratch_.push_back({node, *scratch, device_of_call(graph, node).value_or(c10::Device(c10::kCPU))});
    }
  }
  for (auto& [op, row] : figures) {
    row.op = op;
    own.by_operator_.push_back(std::move(row));
  }
  return own;
}

__extension__ using Wide = __int128;

// Attention on packed sequences whose lengths the capture knew is noted as "a/b": a of the b scores that its formula
// counts, which takes every sequence to be as long as the longest.
static NodeFlops of_scores(NodeFlops count, std::string_view note) {
  const size_t slash = note.find('/');
  if (slash == note.npos) return count;
  const auto scores = parse_number<int64_t>(note.substr(0, slash)), all = parse_number<int64_t>(note.substr(slash + 1));
  if (!scores || !all || *scores < 0 || *all < *scores || *all == 0) return count;
  for (int64_t NodeFlops::*member :
       {&NodeFlops::matmul, &NodeFlops::elementwise, &NodeFlops::transcendental, &NodeFlops::beyond_pytorch}) {
    count.*member = static_cast<int64_t>(Wide{count.*member} * *scores / *all);
  }
  return count;
}

NodeFlops& NodeFlops::operator+=(const NodeFlops& other) {
  matmul = saturating_add(matmul, other.matmul);
  elementwise = saturating_add(elementwise, other.elementwise);
  transcendental = saturating_add(transcendental, other.transcendental);
  beyond_pytorch = saturating_add(beyond_pytorch, other.beyond_pytorch);
  return *this;
}

Flops Flops::of(const Graph& graph) {
  Flops flops;
  flops.by_node_.reserve(graph.node_capacity());
  IdMap<TargetId, TargetFormulas> formulas;
  std::map<std::string, int64_t> uncovered;
  OperandReader reader(graph);
  for (NodeId node : graph.nodes()) {
    const TargetId target = graph.node(node).target;
    TargetFormulas& formula = formulas[target];
    if (!formula.known) formula = formulas_of(graph.target(target));
    if (formula.free) continue;
    const OperandShapes call = reader.read(node);
    NodeFlops count;
    bool covered = true;
    if (formula.own) {
      const auto own = evaluate(formula.own->flops, call);
      covered = own.has_value();
      count.matmul = count.beyond_pytorch = own.value_or(0);
    } else if (formula.flop != nullptr) {
      const auto matmul = formula.flop->rule(call);
      covered = matmul.has_value();
      count.matmul = matmul.value_or(0);
      if (!formula.flop->counted_by_pytorch) count.beyond_pytorch = count.matmul;
    }
    if (!formula.own) {
      const auto work = formula.elementwise.evaluate(call);
      covered = covered && work.has_value();
      count.elementwise = work.value_or(ElementwiseWork()).flops;
      count.transcendental = work.value_or(ElementwiseWork()).transcendental;
    }
    if (!covered) {
      ++uncovered[graph.target(target).name()];
      flops.uncovered_nodes_.push_back(node);
    }
    if (covered && graph.has_notes(node)) count = of_scores(count, graph.note(node, kScoresNote));
    flops.by_node_[node] = count;
    flops.by_phase_[graph.node(node).phase] += count;
  }
  for (auto& [op, count] : uncovered) flops.uncovered_.push_back({op, count});
  std::sort(flops.uncovered_nodes_.begin(), flops.uncovered_nodes_.end());
  return flops;
}

NodeFlops Flops::total() const {
  NodeFlops sum;
  for (uint32_t i = 0; i < by_phase_.size(); ++i) sum += by_phase_[PhaseId(i)];
  return sum;
}

bool Flops::is_uncovered(NodeId node) const {
  return std::binary_search(uncovered_nodes_.begin(), uncovered_nodes_.end(), node);
}

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

}  // namespace shadowgraph
