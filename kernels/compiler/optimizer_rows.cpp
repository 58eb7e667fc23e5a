// Optimizer steps, for one tensor of their lists. kernels/replay/list_calls.h hands them over one by one.
#include "kernels/compiler/operator_table.h"

namespace shadowgraph {
namespace {

Typed rest_of(const Call& call, Typed a) { return call.apply(Operation::kSubtract, constant_of(call, 1, a), a); }
Typed root(const Call& call, Typed a) { return call.apply(Operation::kSquareRoot, a); }

// Checks that parameters have one dtype and that the gradient scaler's arguments, from position `scaler` on, are
// absent.
ScalarType parameter_type(const Call& call, std::initializer_list<size_t> tensors, size_t scaler) {
  if (!call.is_none(scaler) || !call.is_none(scaler + 1)) throw KernelError("an optimizer step with a gradient scaler");
  const ScalarType dtype = call.tensor(0).dtype;
  if (dtype != ScalarType::Float && dtype != ScalarType::Double) {
    throw KernelError("an optimizer step of parameters that are neither f32 nor f64");
  }
  for (const size_t i : tensors) {
    if (call.tensor(i).dtype != dtype) throw KernelError("an optimizer step of several dtypes");
  }
  return dtype;
}

// The arguments are
//
//     0 parameter    3 exp_avg_sq              6 lr       9 weight_decay   12 maximize
//     1 gradient     4 max_exp_avg_sq or none  7 beta1   10 eps            13 grad_scale
//     2 exp_avg      5 step                    8 beta2   11 amsgrad        14 found_inf
//
// What follows from numbers alone is computed in double, as libtorch does. AdamW's decay is taken off the parameter,
// Adam's is added to the gradient.
Results adam_step(const Call& call, bool decoupled) {
  const ScalarType dtype = parameter_type(call, {1, 2, 3}, 13);
  const auto number = [&](size_t i) { return call.build.convert(call.tensor(i), ScalarType::Double); };
  const auto rounded = [&](Typed a) { return call.build.convert(a, dtype); };
  const Typed lr = number(6);
  const Typed beta1 = number(7);
  const Typed beta2 = number(8);
  const Typed step = number(5);
  const Typed correction1 = rest_of(call, call.apply(Operation::kPower, beta1, step));
  const Typed correction2 = root(call, rest_of(call, call.apply(Operation::kPower, beta2, step)));
  Typed parameter = call.tensor(0);
  Typed gradient = call.tensor(1);
  if (call.flag(12)) gradient = call.apply(Operation::kNegate, gradient);
  if (call.number(9) != 0) {
    const Typed decay = number(9);
    if (decoupled) {
      parameter = times(call, parameter, rounded(rest_of(call, times(call, lr, decay))));
    } else {
      gradient = multiply_add(call, parameter, rounded(decay), gradient);
    }
  }
  const Typed average =
      multiply_add(call, call.tensor(2), rounded(beta1), times(call, gradient, rounded(rest_of(call, beta1))));
  const Typed square = times(call, times(call, gradient, gradient), rounded(rest_of(call, beta2)));
  const Typed second = multiply_add(call, call.tensor(3), rounded(beta2), square);
  Typed highest = second;
  if (call.flag(11)) highest = call.apply(Operation::kMaximum, call.tensor(4), second);
  const Typed scaled = divided(call, root(call, highest), rounded(correction2));
  const Typed denominator = call.apply(Operation::kAdd, scaled, rounded(number(10)));
  const Typed change = divided(call, times(call, rounded(divided(call, lr, correction1)), average), denominator);
  std::vector<Typed> made = {call.apply(Operation::kSubtract, parameter, change), average, second};
  if (call.flag(11)) made.push_back(highest);
  return made;
}

Results adam(const Call& call) { return adam_step(call, false); }
Results adamw(const Call& call) { return adam_step(call, true); }

// The arguments are
//
//     0 parameter           3 weight_decay  6 dampening   9 is_first_step
//     1 gradient            4 momentum      7 nesterov   10 grad_scale
//     2 momentum or none    5 lr            8 maximize   11 found_inf
Results sgd(const Call& call) {
  const ScalarType dtype = parameter_type(call, {1}, 10);
  const auto number = [&](size_t i) {
    return call.build.convert(call.build.convert(call.tensor(i), ScalarType::Double), dtype);
  };
  const Typed parameter = call.tensor(0);
  Typed gradient = call.tensor(1);
  if (call.flag(8)) gradient = call.apply(Operation::kNegate, gradient);
  if (call.number(3) != 0) gradient = multiply_add(call, parameter, number(3), gradient);
  std::vector<Typed> made(1);
  if (call.number(4) != 0) {
    if (call.tensor(2).dtype != dtype) throw KernelError("an optimizer step of several dtypes");
    Typed momentum = gradient;
    if (!call.flag(9)) {
      const Typed kept =
          call.build.convert(rest_of(call, call.build.convert(call.tensor(6), ScalarType::Double)), dtype);
      momentum = multiply_add(call, call.tensor(2), number(4), times(call, gradient, kept));
    }
    made.push_back(momentum);
    gradient = call.flag(7) ? multiply_add(call, momentum, number(4), gradient) : momentum;
  }
  made[0] = multiply_add(call, gradient, call.apply(Operation::kNegate, number(5)), parameter);
  return made;
}

}  // namespace

std::vector<KernelRow> optimizer_rows() {
  constexpr bool kInexact = true;
  return {
      {.name = "_fused_adam_", .make = adam, .inexact = kInexact, .writes = {0, 2, 3, 4}},
      {.name = "_fused_adamw_", .make = adamw, .inexact = kInexact, .writes = {0, 2, 3, 4}},
      {.name = "_fused_sgd_", .make = sgd, .inexact = kInexact, .writes = {0, 2}},
  };
}

}  // namespace shadowgraph
