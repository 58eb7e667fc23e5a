#include "core/replay/body_function.h"

#include <algorithm>

#include "shadowgraph/functions.h"
#include "shadowgraph/replay.h"
#include "shadowgraph/text.h"

namespace shadowgraph {
namespace {

// Holds the graph before the interpreter that looks at it.
struct Body {
  Graph graph;
  Interpreter interpreter;

  Body(Graph parsed, const InterpreterOptions& options)
      : graph(std::move(parsed)),
        interpreter(graph, {.device = options.device, .check_results = options.check_results}) {}
};

// Makes several tensors of outputs that are one, as the operand and the result of an in-place operator are. Whoever
// changes the geometry of one later (t_) must not change the other's.
void part(std::vector<at::Tensor>& outputs) {
  for (size_t i = 1; i < outputs.size(); ++i) {
    if (!outputs[i].defined()) continue;
    if (std::any_of(outputs.begin(), outputs.begin() + static_cast<std::ptrdiff_t>(i),
                    [&](const at::Tensor& earlier) { return earlier.is_same(outputs[i]); })) {
      c10::TensorImpl* impl = outputs[i].unsafeGetTensorImpl();
      outputs[i] = at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(), true));
    }
  }
}

size_t tensors_in(const std::vector<Formal>& arguments) {
  return static_cast<size_t>(std::ranges::count_if(
      arguments, [](const Formal& a) { return a.type.type == TypeClass::kTensor && !a.type.optional; }));
}

}  // namespace

std::shared_ptr<const RegisteredFunction> function_of_body(const Target& target, std::string_view text,
                                                           const InterpreterOptions& options) {
  Graph graph = parse(text);
  size_t inputs = 0;
  size_t outputs = 0;
  NodeId last;
  for (const NodeId node : graph.nodes()) {
    inputs += graph.node(node).target == target_of(Builtin::kInput);
    if (graph.node(node).target == target_of(Builtin::kOutput)) outputs = graph.list(graph.arguments(node)[0]).size();
    last = node;
  }
  if (inputs != tensors_in(target.signature().arguments) || outputs != target.signature().returns.size()) {
    throw ReplayError("the body of " + target.name() + " takes " + std::to_string(inputs) + " tensors and gives " +
                          std::to_string(outputs) + ", unlike " + target.schema_text(),
                      NodeId());
  }
  const auto body = std::make_shared<Body>(std::move(graph), options);
  const FunctionKernel kernel = [body](std::span<const c10::IValue> arguments) {
    std::vector<at::Tensor> tensors;
    for (const c10::IValue& argument : arguments) {
      if (argument.isTensor()) tensors.push_back(argument.toTensor());
    }
    std::vector<at::Tensor> outputs = body->interpreter.run(Bindings().in_order(std::move(tensors))).outputs;
    part(outputs);
    return std::vector<c10::IValue>(outputs.begin(), outputs.end());
  };
  return std::make_shared<const RegisteredFunction>(RegisteredFunction{target.schema_text(), kernel, kernel});
}

}  // namespace shadowgraph
