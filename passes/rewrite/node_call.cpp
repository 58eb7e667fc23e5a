#include "passes/rewrite/node_call.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/List.h>

#include "core/fake/dispatch_keys.h"
#include "shadowgraph/replay.h"
#include "shadowgraph/text.h"

namespace shadowgraph {
namespace {

c10::DispatchKeySet keys_above() {
  return c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
         c10::DispatchKeySet(kCompositeKey);
}

std::optional<c10::Scalar> number_of(const Graph& graph, const Argument& argument) {
  switch (argument.kind) {
    case ArgumentKind::kInt:
      return c10::Scalar(argument.i);
    case ArgumentKind::kFloat:
      return c10::Scalar(argument.d);
    case ArgumentKind::kBool:
      return c10::Scalar(argument.b);
    case ArgumentKind::kComplex:
      return c10::Scalar(c10::complex<double>(graph.complex_parts(argument)[0], graph.complex_parts(argument)[1]));
    default:
      return std::nullopt;
  }
}

at::Tensor tensor_of_argument(const Graph& graph, const Argument& argument, NodeCalls::TensorOf tensor_of) {
  if (argument.kind == ArgumentKind::kValue) return tensor_of(argument.ref.value);
  if (argument.kind == ArgumentKind::kConstant) return graph.constant(argument.constant);
  const auto number = number_of(graph, argument);
  if (!number) return {};
  at::Tensor wrapped = c10::scalar_to_tensor(*number);  // a real CPU tensor, inside a fake mode too
  wrapped.unsafeGetTensorImpl()->set_wrapped_number(true);
  return wrapped;
}

}  // namespace

BelowAutograd::BelowAutograd() : guard_(keys_above()) {}

const c10::OperatorHandle& NodeCalls::operator_of(NodeId node) {
  const TargetId target = graph_.node(node).target;
  if (target.index >= operators_.size()) operators_.resize(target.index + 1);
  auto& handle = operators_[target.index];
  if (!handle) {
    handle = graph_.target(target).find_operator();
    if (!handle) {
      throw Error("cannot call " + graph_.target(target).name() +
                  " again: this process has no operator with that schema. Load the library that registers it; node: " +
                  to_text(graph_, node));
    }
  }
  return *handle;
}

c10::IValue NodeCalls::list_of(NodeId node, const Argument& argument, const Formal& formal, TensorOf tensor_of) {
  if (argument.kind == ArgumentKind::kIntList) {
    const auto ints = graph_.ints(argument);
    if (formal.type.element == TypeClass::kInt && formal.type.element_optional) {
      c10::List<std::optional<int64_t>> list;
      for (const int64_t element : ints) list.push_back(element);
      return list;
    }
    return c10::IValue(c10::IntArrayRef(ints.data(), ints.size()));
  }
  const auto elements = graph_.list(argument);
  const auto typed = [&]<class T>(c10::List<T> list, auto&& convert) {
    list.reserve(elements.size());
    for (const Argument& element : elements) list.push_back(convert(element));
    return c10::IValue(std::move(list));
  };
  const auto as_float = [](const Argument& e) { return e.kind == ArgumentKind::kInt ? static_cast<double>(e.i) : e.d; };
  switch (formal.type.element) {
    case TypeClass::kTensor:
      if (formal.type.element_optional) {
        return typed(c10::List<std::optional<at::Tensor>>(), [&](const Argument& e) {
          const at::Tensor tensor = tensor_of_argument(graph_, e, tensor_of);
          return tensor.defined() ? std::optional(tensor) : std::nullopt;
        });
      }
      return typed(c10::List<at::Tensor>(),
                   [&](const Argument& e) { return tensor_of_argument(graph_, e, tensor_of); });
    case TypeClass::kInt:
      if (formal.type.element_optional) {
        return typed(c10::List<std::optional<int64_t>>(), [](const Argument& e) {
          return e.kind == ArgumentKind::kInt ? std::optional(e.i) : std::nullopt;
        });
      }
      return typed(c10::List<int64_t>(), [](const Argument& e) { return e.i; });
    case TypeClass::kFloat:
      return typed(c10::List<double>(), as_float);
    case TypeClass::kBool:
      return typed(c10::List<bool>(), [](const Argument& e) { return e.b; });
    case TypeClass::kNumber:
      return typed(c10::List<at::Scalar>(), [&](const Argument& e) { return number_of(graph_, e).value_or(0); });
    case TypeClass::kString:
      return typed(c10::List<std::string>(), [&](const Argument& e) { return graph_.text(e.string); });
    default:
      throw Error("cannot call a node again whose argument '" + formal.name +
                  "' is a list of a type that has no text form: " + to_text(graph_, node));
  }
}

c10::IValue NodeCalls::ivalue_of(NodeId node, const Argument& argument, const Formal& formal, TensorOf tensor_of) {
  if (formal.type.type == TypeClass::kTensor) {
    if (argument.kind == ArgumentKind::kNone) return formal.type.optional ? c10::IValue() : c10::IValue(at::Tensor());
    return tensor_of_argument(graph_, argument, tensor_of);
  }
  switch (argument.kind) {
    case ArgumentKind::kNone:
    case ArgumentKind::kGenerator:
      return {};
    case ArgumentKind::kInt:
      return argument.i;
    case ArgumentKind::kFloat:
      return argument.d;
    case ArgumentKind::kBool:
      return argument.b;
    case ArgumentKind::kComplex:
      return c10::complex<double>(graph_.complex_parts(argument)[0], graph_.complex_parts(argument)[1]);
    case ArgumentKind::kString:
      return graph_.text(argument.string);
    case ArgumentKind::kDevice:
      return argument.device();
    case ArgumentKind::kIntList:
    case ArgumentKind::kList:
      return list_of(node, argument, formal, tensor_of);
    default:
      throw Error("cannot call a node again whose argument '" + formal.name +
                  "' has no text form: " + to_text(graph_, node));
  }
}

void NodeCalls::push_arguments(NodeId node, TensorOf tensor_of, torch::jit::Stack& stack) {
  const TargetFormals& formals = formals_of(node);
  const auto arguments = graph_.arguments(node);
  if (formals.variadic_arguments || arguments.size() != formals.arguments.size()) {
    throw Error("cannot call a node again that has other arguments than its schema: " + to_text(graph_, node));
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    stack.push_back(ivalue_of(node, arguments[i], formals.arguments[i], tensor_of));
  }
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
  stack = function->shape_rule(stack);
}

}  // namespace shadowgraph
