// Runs the operator of a node on given tensors.
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <vector>

#include "core/calls/node_calls.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/libtorch.h"

namespace shadowgraph {

class NodeRunner {
 public:
  // Replaces device arguments of the call by `device`; nullopt keeps them.
  NodeRunner(const Graph& graph, NodeId node, std::optional<c10::Device> device = c10::Device(c10::kCPU))
      : graph_(graph), node_(node), formals_(graph.target(node).signature()), templates_(graph) {
    graph.for_each_input(node, [&](ValueId value) {
      if (graph.value(value).kind == ValueKind::kTensor) values_.push_back(value);
    });
    const auto named = [&](c10::Device own) { return device.value_or(own); };
    const auto problem = [](const std::string& what) { throw Error(what); };
    call_ = templates_.add(node, formals_, {.device = named, .problem = problem});
  }

  std::vector<at::Tensor> run(const std::vector<at::Tensor>& operands) const {
    torch::jit::Stack stack;
    size_t next = 0;
    // `content` is called in the order of values, repeats included, as push() does. Values computed on the host are
    // sizes.
    const auto content = [&](ValueId value) {
      constexpr int64_t kLength = 6;
      return graph_.value(value).kind == ValueKind::kTensor ? c10::IValue(operands.at(next++)) : c10::IValue(kLength);
    };
    templates_.push(call_, content, stack);
    find_operator(graph_.target(node_))->callBoxed(stack);
    std::vector<at::Tensor> results;
    for (const c10::IValue& value : stack) {
      if (value.isTensor() && value.toTensor().defined()) results.push_back(value.toTensor());
      if (value.isTensorList()) {
        for (const at::Tensor& tensor : value.toTensorVector()) {
          if (tensor.defined()) results.push_back(tensor);
        }
      }
    }
    return results;
  }

  const std::vector<ValueId>& values() const { return values_; }

 private:
  const Graph& graph_;
  NodeId node_;
  Signature formals_;
  CallTemplates templates_;
  CallTemplates::Call call_;
  std::vector<ValueId> values_;
};

}  // namespace shadowgraph
