#include "core/calls/node_calls.h"

#include "core/fake/dispatch_keys.h"
#include "shadowgraph/functions.h"
#include "shadowgraph/graph/libtorch.h"
#include "shadowgraph/text.h"

namespace shadowgraph {
namespace {

c10::DispatchKeySet keys_above() {
  return c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
         c10::DispatchKeySet(kCompositeKey);
}

}  // namespace

BelowAutograd::BelowAutograd() : guard_(keys_above()) {}

const c10::OperatorHandle& NodeCalls::operator_of(NodeId node) {
  const TargetId target = graph_.node(node).target;
  // Looked up once for each target: many nodes share one, and find_operator compares schemas.
  if (target.index >= operators_.size()) operators_.resize(target.index + 1);
  auto& handle = operators_[target.index];
  if (!handle) {
    handle = find_operator(graph_.target(target));
    if (!handle) {
      throw Error("cannot call " + graph_.target(target).name() +
                  " again: this process has no operator with that schema. Load the library that registers it; node: " +
                  to_text(graph_, node));
    }
  }
  return *handle;
}

void NodeCalls::push_arguments(NodeId node, TensorOf tensor_of, torch::jit::Stack& stack) {
  const Signature& formals = formals_of(node);
  if (formals.variadic_arguments || graph_.arguments(node).size() != formals.arguments.size()) {
    throw Error("cannot call a node again that has other arguments than its schema: " + to_text(graph_, node));
  }
  const auto own_device = [](c10::Device device) { return device; };
  const auto refuse = [&](const std::string& what) {
    throw Error("cannot call a node again: " + what + "; node: " + to_text(graph_, node));
  };
  const auto content = [&](ValueId v) -> c10::IValue {
    if (graph_.value(v).kind != ValueKind::kTensor) refuse("an argument is a number that another node computes");
    return tensor_of(v);
  };
  arguments_.clear();
  const CallTemplates::Call call = arguments_.add(node, formals, {.device = own_device, .problem = refuse});
  arguments_.push(call, content, stack);
}

void NodeCalls::call(NodeId node, torch::jit::Stack& stack) {
  if (graph_.target(node).kind() != TargetKind::kFunction) {
    operator_of(node).callBoxed(stack);
    return;
  }
  const auto function = find_function(graph_.target(node));
  if (!function) {
    throw Error("cannot call " + graph_.target(node).name() +
                ": no function of that schema is registered in this process; see shadowgraph/replay.h");
  }
  // A function of the user's has no kernel for fake tensors; its shape rule stands for one.
  stack = function->shape_rule(stack);
}

}  // namespace shadowgraph
