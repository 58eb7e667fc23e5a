// Decomposes operators on lists of tensors into loops: _foreach_* by a generic rule, fused optimizers by formula.
//
// A list operator is one node for a hundred parameters. As a loop it is a hundred nodes, each of which can be fused,
// moved or freed. The loop calls the single-tensor operator of the same name: new ones need no row.
#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "passes/decompose/decompositions.h"

namespace shadowgraph::decompositions {

using at::Tensor;

namespace {

// Returns whether an argument matches a formal's type, as far as single-tensor overloads differ by it.
bool takes(const c10::Type& type, const c10::IValue& value) {
  if (type.kind() == c10::TypeKind::OptionalType) {
    return value.isNone() || takes(*type.castRaw<c10::OptionalType>()->getElementType(), value);
  }
  switch (type.kind()) {
    case c10::TypeKind::TensorType:
      return value.isTensor();
    case c10::TypeKind::NumberType:
      return value.isScalar();
    case c10::TypeKind::BoolType:
      return value.isBool();
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      return value.isInt();
    case c10::TypeKind::FloatType:
      return value.isDouble();
    default:
      return false;
  }
}

// Returns the overload of `name` that accepts these positional arguments, with defaults for the rest.
std::optional<c10::OperatorHandle> overload_for(const std::string& name, const std::vector<c10::IValue>& arguments) {
  for (const char* overload : {"", "Tensor", "Scalar", "Tensor_Scalar"}) {
    const auto op = c10::Dispatcher::singleton().findSchema({name, overload});
    if (!op) continue;
    const auto& formals = op->schema().arguments();
    bool fits = formals.size() >= arguments.size();
    for (size_t i = 0; fits && i < formals.size(); ++i) {
      fits = i < arguments.size() ? takes(*formals[i].type(), arguments[i]) : formals[i].default_value().has_value();
    }
    if (fits) return op;
  }
  return std::nullopt;
}

// aten::_foreach_add_.List(self, other, alpha) becomes aten::add_.Tensor(self[i], other[i], alpha) for each i.
void foreach_loop(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::string name = "aten::" + op.operator_name().name.substr(std::string("aten::_foreach_").size());
  const size_t count = op.schema().arguments().size();
  const std::vector<c10::IValue> given(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  stack->resize(stack->size() - count);
  const size_t length = given[0].toListRef().size();
  c10::List<Tensor> results;
  for (size_t i = 0; i < length; ++i) {
    std::vector<c10::IValue> arguments;
    for (const c10::IValue& argument : given) {
      // A scalar applies to every tensor of the lists.
      if (!argument.isList()) {
        arguments.push_back(argument);
      } else {
        if (argument.toListRef().size() != length) decline("its lists have different lengths");
        arguments.push_back(argument.toListRef()[i]);
      }
    }
    const auto single = overload_for(name, arguments);
    if (!single) decline("there is no single-tensor " + name + " with these arguments");
    torch::jit::Stack one(arguments.begin(), arguments.end());
    const auto& formals = single->schema().arguments();
    for (size_t k = arguments.size(); k < formals.size(); ++k) one.push_back(*formals[k].default_value());
    single->callBoxed(one);
    results.push_back(one.at(0).toTensor());
  }
  if (!op.schema().returns().empty()) stack->emplace_back(std::move(results));
}

// One step of Adam, or of AdamW if decay is decoupled (Loshchilov and Hutter 2019), for gradient g and step t:
//
//     m = beta1 m + (1 - beta1) g       v = beta2 v + (1 - beta2) g^2
//     p = p - lr (m / (1 - beta1^t)) / (sqrt(v) / sqrt(1 - beta2^t) + eps)
//
// amsgrad uses the maximum of v so far instead of v.
template <bool decoupled>
void fused_adam(at::TensorList parameters, at::TensorList gradients, at::TensorList averages, at::TensorList squares,
                at::TensorList largest, at::TensorList steps, double lr, double beta1, double beta2, double decay,
                double eps, bool amsgrad, bool maximize, const std::optional<Tensor>& grad_scale,
                const std::optional<Tensor>& found_inf) {
  if ((grad_scale && grad_scale->defined()) || (found_inf && found_inf->defined())) decline("it unscales gradients");
  for (size_t i = 0; i < parameters.size(); ++i) {
    Tensor parameter = parameters[i];
    Tensor average = averages[i];
    Tensor square = squares[i];
    Tensor gradient = maximize ? at::neg(gradients[i]) : gradients[i];
    if (decay != 0) {
      if (decoupled) {
        // AdamW decays the parameter directly. Adam adds the decay to the gradient, so it enters the averages.
        parameter.mul_(1 - lr * decay);
      } else {
        gradient = at::add(gradient, at::mul(parameter, decay));
      }
    }
    average.mul_(beta1).add_(at::mul(gradient, 1 - beta1));
    square.mul_(beta2).add_(at::mul(at::mul(gradient, gradient), 1 - beta2));
    // Bias correction, since the averages start at zero. The step is a tensor of unknown value.
    const Tensor correction1 = at::add(at::neg(at::pow(beta1, steps[i])), 1);
    const Tensor correction2 = at::sqrt(at::add(at::neg(at::pow(beta2, steps[i])), 1));
    Tensor second = square;
    if (amsgrad) {
      Tensor most = largest[i];
      most.copy_(at::maximum(most, square));
      second = most;
    }
    const Tensor denominator = at::add(at::div(at::sqrt(second), correction2), eps);
    parameter.sub_(at::mul(at::div(at::div(average, denominator), correction1), lr));
  }
}

// One step of SGD: buffer = momentum buffer + (1 - dampening) g, and p = p - lr buffer, or with Nesterov momentum.
void fused_sgd(at::TensorList parameters, at::TensorList gradients, at::TensorList momenta, double decay,
               double momentum, double lr, double dampening, bool nesterov, bool maximize, bool first_step,
               const std::optional<Tensor>& grad_scale, const std::optional<Tensor>& found_inf) {
  if ((grad_scale && grad_scale->defined()) || (found_inf && found_inf->defined())) decline("it unscales gradients");
  for (size_t i = 0; i < parameters.size(); ++i) {
    Tensor parameter = parameters[i];
    Tensor gradient = maximize ? at::neg(gradients[i]) : gradients[i];
    if (decay != 0) gradient = at::add(gradient, at::mul(parameter, decay));
    if (momentum != 0) {
      Tensor buffer = momenta[i];
      // torch.optim initializes the buffer with the first gradient, without dampening.
      if (first_step) {
        buffer.copy_(gradient);
      } else {
        buffer.mul_(momentum).add_(at::mul(gradient, 1 - dampening));
      }
      gradient = nesterov ? at::add(gradient, at::mul(buffer, momentum)) : buffer;
    }
    parameter.sub_(at::mul(gradient, lr));
  }
}

}  // namespace

void add_foreach_and_fused(ExpansionTable& table) {
  // Enumerates the dispatcher's operators, since the list grows with each libtorch.
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const bool writes_out = name.overload_name.ends_with("out");
    if (name.name.starts_with("aten::_foreach_") && !writes_out) table.add_boxed(toString(name), &foreach_loop);
  }
  table.add("aten::_fused_adam_", &fused_adam<false>);
  table.add("aten::_fused_adamw_", &fused_adam<true>);
  table.add("aten::_fused_sgd_", &fused_sgd);
}

const ExpansionTable& all() {
  static const ExpansionTable* table = [] {
    auto* made = new ExpansionTable;
    add_matrix_products(*made);
    add_pointwise(*made);
    add_softmax(*made);
    add_views(*made);
    add_normalization(*made);
    add_embedding_and_loss(*made);
    add_attention(*made);
    add_foreach_and_fused(*made);
    return made;
  }();
  return *table;
}

}  // namespace shadowgraph::decompositions
