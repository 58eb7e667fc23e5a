#include "profiler/flops.h"

#include <deque>
#include <map>

#include "core/replay/functional_call.h"
#include "profiler/elementwise_table.h"
#include "profiler/flop_table.h"

namespace shadowgraph {
namespace {

// Turns a node's arguments and results into spans of shapes; buffers are kept from node to node.
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

  Operand operand(const Argument& argument) {
    switch (argument.kind) {
      case ArgumentKind::kNone:
        return {};
      case ArgumentKind::kValue:
        // A host scalar that a node produced (item, size): its value is not known to the graph.
        return graph_.value(argument.ref.value).kind == ValueKind::kTensor
                   ? Operand::of_tensor(graph_.sizes(argument.ref.value))
                   : Operand{.kind = Operand::Kind::kOther};
      case ArgumentKind::kConstant: {
        const at::Tensor& constant = graph_.constant(argument.constant);
        return constant.defined() ? Operand::of_tensor(Shape(constant.sizes().data(), constant.sizes().size()))
                                  : Operand();
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
    for (const Argument& element : elements) {
      const Operand one = element.kind == ArgumentKind::kList ? Operand() : operand(element);
      if (one.kind == Operand::Kind::kTensor) shapes.push_back(one.shape);
      if (one.kind == Operand::Kind::kNumber) ints.push_back(static_cast<int64_t>(one.number));
    }
    if (!ints.empty()) return Operand::of_ints(ints_.emplace_back(std::move(ints)));
    return Operand::of_tensors(lists_.emplace_back(std::move(shapes)));
  }

  const Graph& graph_;
  std::vector<Operand> arguments_;
  std::vector<Operand> results_;
  std::deque<std::vector<Shape>> lists_;  // a deque: spans into earlier elements must stay
  std::deque<std::vector<int64_t>> ints_;
};

struct TargetFormulas {
  bool known = false;
  bool free = false;  // no work whatever the shapes: operands need not be read
  const FlopRow* flop = nullptr;
  ElementwiseFormula elementwise;
};

// A functional call of an operator that writes (core/replay/functional_call.h) takes what that takes, and works as much.
TargetFormulas formulas_of(const Target& called) {
  const std::optional<Target> op = operator_of_functional_call(called);
  const Target& target = op ? *op : called;
  TargetFormulas formulas{.known = true};
  formulas.flop = find_flop_row(target.name());
  formulas.elementwise = ElementwiseFormula::of(target);
  formulas.free = formulas.flop == nullptr &&
                  (formulas.elementwise.coverage == ElementwiseCoverage::kView ||
                   (formulas.elementwise.row != nullptr && formulas.elementwise.row->each == ElementwiseWork()));
  return formulas;
}

}  // namespace

NodeFlops& NodeFlops::operator+=(const NodeFlops& other) {
  matmul = saturating_add(matmul, other.matmul);
  elementwise = saturating_add(elementwise, other.elementwise);
  transcendental = saturating_add(transcendental, other.transcendental);
  beyond_pytorch = saturating_add(beyond_pytorch, other.beyond_pytorch);
  return *this;
}

Flops Flops::run(const Graph& graph) {
  Flops flops;
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
    if (formula.flop != nullptr) {
      const auto matmul = formula.flop->rule(call);
      covered = matmul.has_value();
      count.matmul = matmul.value_or(0);
      if (!formula.flop->counted_by_pytorch) count.beyond_pytorch = count.matmul;
    }
    const auto work = formula.elementwise.evaluate(call);
    covered = covered && work.has_value();
    count.elementwise = work.value_or(ElementwiseWork()).flops;
    count.transcendental = work.value_or(ElementwiseWork()).transcendental;
    if (!covered) ++uncovered[graph.target(target).name()];
    flops.by_node_[node] = count;
    flops.by_phase_[graph.node(node).phase] += count;
  }
  for (auto& [op, count] : uncovered) flops.uncovered_.push_back({op, count});
  return flops;
}

}  // namespace shadowgraph
