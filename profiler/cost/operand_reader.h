// Shows a graph's calls as cost rules see them (operand_shapes.h). Internal to profiler/.
#pragma once

#include <deque>
#include <utility>
#include <vector>

#include "shadowgraph/graph/graph.h"
#include "shadowgraph/profile/operator_costs.h"

namespace shadowgraph {

// Turns a node's arguments and results into spans of shapes, good until the next node is read. Buffers are kept from
// node to node.
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
        // A node produced this host scalar (item, size): the graph does not know its value.
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
  std::deque<std::vector<Shape>> lists_;  // a deque: spans into earlier elements must stay
  std::deque<std::vector<int64_t>> ints_;
};

}  // namespace shadowgraph
