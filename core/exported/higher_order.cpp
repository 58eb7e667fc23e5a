#include "core/exported/higher_order.h"

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <optional>
#include <string_view>

#include "core/fake/autocast.h"
#include "shadowgraph/capture.h"
#include "shadowgraph/checkpoint.h"
#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

using IValues = std::vector<c10::IValue>;

[[noreturn]] void refuse_form(const std::string& why) { throw Error("it is not of a form known here: " + why); }

const ExportedGraph& graph_at(const HigherOrderCall& call, size_t position) {
  if (position >= call.node.inputs.size() || call.node.inputs[position].operand.kind != ExportedOperand::Kind::kGraph) {
    refuse_form("its input " + std::to_string(position) + " should be a graph");
  }
  return *call.node.inputs[position].operand.graph;
}

// Returns what stands before the graph.
IValues leading(const HigherOrderCall& call, size_t count) {
  if (call.node.inputs.size() < count) refuse_form("it has too few inputs");
  return plain_arguments(std::span(call.node.inputs).first(count), call.values);
}

// Returns, from `first` on, what the graph is given.
IValues operands_from(const HigherOrderCall& call, size_t first) {
  if (call.node.inputs.size() < first) refuse_form("it has too few inputs");
  IValues operands = plain_arguments(std::span(call.node.inputs).subspan(first), call.values);
  for (const uint32_t value : call.node.unused) call.values[value] = c10::IValue();
  return operands;
}

IValues with_grad_mode(const HigherOrderCall& call) {
  const IValues head = leading(call, 1);
  if (head.size() != 1 || !head[0].isBool()) refuse_form("its first input should be a boolean");
  IValues operands = operands_from(call, 2);
  const at::AutoGradMode mode(head[0].toBool());
  return call.run(graph_at(call, 1), std::move(operands));
}

IValues with_autocast(const HigherOrderCall& call) {
  const IValues head = leading(call, 4);
  if (head.size() != 4 || !head[0].isString() || !head[2].isBool()) {
    refuse_form("it should begin with a device, a dtype and whether autocast is enabled");
  }
  IValues operands = operands_from(call, 5);
  c10::DeviceType device = c10::Device(head[0].toStringRef()).type();
  for (const c10::IValue& operand : operands) {
    // The program may run on another device than it was exported on.
    if (operand.isTensor() && operand.toTensor().defined()) {
      device = operand.toTensor().device().type();
      break;
    }
  }
  const auto dtype = head[1].isInt() ? std::optional(static_cast<c10::ScalarType>(head[1].toInt())) : std::nullopt;
  const AutocastScope scope(device, dtype, head[2].toBool(), !head[3].isBool() || head[3].toBool());
  return call.run(graph_at(call, 4), std::move(operands));
}

IValues one_of_two(const HigherOrderCall& call) {
  const IValues head = leading(call, 1);
  if (head.size() != 1) refuse_form("its first input should be a condition");
  bool condition = false;
  if (head[0].isTensor()) {
    condition = head[0].toTensor().item().toBool();  // throws DataDependentError if nobody knows
  } else if (head[0].isBool()) {
    condition = head[0].toBool();
  } else {
    refuse_form("its condition is of type " + head[0].tagKind());
  }
  const ExportedGraph& branch = graph_at(call, condition ? 1 : 2);
  return call.run(branch, operands_from(call, 3));
}

IValues subgraph(const HigherOrderCall& call) {
  return call.run(graph_at(call, 0), operands_from(call, 2));  // the second is the graph's name
}

IValues checkpointed(const HigherOrderCall& call) {
  const ExportedGraph& graph = graph_at(call, 0);
  std::vector<NamedOperand> positional;
  for (const NamedOperand& input : std::span(call.node.inputs).subspan(1)) {
    if (input.name.empty()) positional.push_back(input);  // the others are options of Python's checkpoint
  }
  IValues operands = plain_arguments(positional, call.values);
  Tensors tensors;
  for (const c10::IValue& operand : operands) {
    if (operand.isTensor()) tensors.push_back(operand.toTensor());
  }
  for (c10::IValue& operand : operands) {
    if (operand.isTensor()) operand = at::Tensor();
  }
  const Tensors results = checkpoint_tensors(
      [&graph, run = call.run_later, operands](const Tensors& inputs) {
        IValues all = operands;
        size_t next = 0;
        for (c10::IValue& one : all) {
          if (one.isTensor()) one = inputs[next++];
        }
        Tensors outputs;
        for (const c10::IValue& output : run(graph, std::move(all))) {
          if (!output.isTensor()) throw Error("a checkpointed graph gives something else than tensors");
          outputs.push_back(output.toTensor());
        }
        return outputs;
      },
      std::move(tensors));
  return {results.begin(), results.end()};
}

struct HigherOrderOperator {
  std::string_view name;
  IValues (*call)(const HigherOrderCall&);
};

constexpr HigherOrderOperator kHigherOrderOperators[] = {
    {"wrap_with_set_grad_enabled", &with_grad_mode},
    {"wrap_with_autocast", &with_autocast},
    {"cond", &one_of_two},
    {"invoke_subgraph", &subgraph},
    {"tag_activation_checkpoint", &checkpointed},
};

}  // namespace

std::vector<c10::IValue> call_higher_order(const HigherOrderCall& call) {
  const std::string_view target = call.node.target;
  const std::string_view name = target.substr(target.rfind('.') + 1);
  for (const HigherOrderOperator& row : kHigherOrderOperators) {
    if (row.name == name) return row.call(call);
  }
  std::string names;
  for (const HigherOrderOperator& row : kHigherOrderOperators)
    names += (names.empty() ? "" : ", ") + std::string(row.name);
  throw Error("this higher-order operator is not supported; these are: " + names);
}

}  // namespace shadowgraph
