#include "core/dispatch/operand_copies.h"

#include <ATen/core/enum_tag.h>
#include <ATen/native/TypeProperties.h>

#include <algorithm>
#include <array>
#include <span>

#include "ir/operators/operator_forms.h"
#include "shadowgraph/shape_rules.h"

namespace shadowgraph {
namespace {

using torch::jit::Stack;

// These iterate over operands that are promoted, without the tag `pointwise` on every overload.
constexpr std::array kUntagged = {
    "aten::elu_backward",         "aten::floor_divide",       "aten::gelu_backward",     "aten::hardshrink_backward",
    "aten::hardsigmoid_backward", "aten::hardswish_backward", "aten::hardtanh_backward", "aten::leaky_relu_backward",
    "aten::mish_backward",        "aten::mse_loss",           "aten::smooth_l1_loss",    "aten::softplus_backward",
    "aten::softshrink_backward",  "aten::threshold_backward",
};
// These are tagged, but deal with operands of other dtypes themselves, as their rules know.
constexpr std::array kOwnWay = {
    "aten::where", "aten::masked_fill",  "aten::clone",     "aten::native_dropout_backward",
    "aten::equal", "aten::mvlgamma.out", "aten::angle.out", "aten::conj_physical.out",
};

bool contains(std::span<const char* const> names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Returns the dtype that the iterator computes in. The result tells whether an operator makes integers floating.
c10::ScalarType common_dtype(const OperatorInfo& info, const Stack& arguments, c10::ScalarType result_dtype) {
  at::native::ResultTypeState state;
  const auto& formals = info.op.schema().arguments();
  for (size_t i = 0; i < formals.size(); ++i) {
    const c10::IValue& argument = arguments[i];
    if (argument.isTensor() && argument.toTensor().defined()) {
      state = at::native::update_result_type_state(argument.toTensor(), state);
    } else if (argument.isScalar() && formals[i].name() == "other") {
      state = at::native::update_result_type_state(argument.toScalar(), state);
    }
  }
  const c10::ScalarType common = at::native::result_type(state);
  const bool made_floating = c10::isIntegralType(common, /*includeBool=*/true) && c10::isFloatingType(result_dtype);
  return made_floating ? c10::get_default_dtype_as_scalartype() : common;
}

// Replaces operands by what they are copied to; says whether there were any.
bool replace_operands(const OperatorInfo& info, Stack& arguments, c10::ScalarType common) {
  bool replaced = false;
  for (const uint16_t position : info.tensor_arguments) {
    c10::IValue& argument = arguments[position];
    if (!argument.isTensor() || !argument.toTensor().defined()) continue;
    const at::Tensor& operand = argument.toTensor();
    if (operand.scalar_type() == common || operand.is_non_overlapping_and_dense()) continue;
    argument = rules::empty_like(operand, common);
    replaced = true;
  }
  return replaced;
}

// Runs a call with `out=`, which is checked and resized for the operands as they are. Strides follow from operands only
// where it is resized; they are then those of the functional overload.
void run_with_out(const OperatorInfo& info, Stack* stack, MetaKernel kernel) {
  const size_t begin = stack->size() - info.argument_count;
  Stack functional;
  at::Tensor out;
  for (size_t i = 0; i < info.argument_count; ++i) {
    const bool written = i < 64 && ((info.written_arguments >> i) & 1) != 0;
    if (!written) {
      functional.push_back((*stack)[begin + i]);
    } else {
      out = (*stack)[begin + i].toTensor();
    }
  }
  const auto sizes = out.sizes().vec();
  kernel(info, stack);
  if (out.sizes() == sizes) return;
  const FreshForm* form = fresh_form(info.target);
  if (form == nullptr || form->arguments.size() != functional.size()) return;
  form->op.callBoxed(functional);
  out.unsafeGetTensorImpl()->set_sizes_and_strides(out.sizes(), functional[0].toTensor().strides());
}

}  // namespace

bool copies_operands_on_cpu(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  if (contains(kOwnWay, schema.name()) || contains(kOwnWay, toString(schema.operator_name()))) return false;
  if (!op.hasTag(at::Tag::pointwise) && !contains(kUntagged, schema.name())) return false;
  size_t outs = 0;
  for (const c10::Argument& argument : schema.arguments()) {
    if (argument.is_out()) {
      ++outs;
    } else if (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) {
      return false;  // in place: the strides are there already
    }
  }
  return outs < 2 && schema.returns().size() == 1 && schema.returns()[0].type()->kind() == c10::TypeKind::TensorType;
}

void run_with_copied_operands(const OperatorInfo& info, Stack* stack, MetaKernel kernel) {
  if (info.writes) {
    run_with_out(info, stack, kernel);
    return;
  }
  const size_t begin = stack->size() - info.argument_count;
  Stack again(stack->begin() + static_cast<int64_t>(begin), stack->end());
  kernel(info, stack);
  const c10::ScalarType dtype = stack->back().toTensor().scalar_type();
  if (!replace_operands(info, again, common_dtype(info, again, dtype))) return;
  kernel(info, &again);
  const at::Tensor laid_out = again.back().toTensor();
  // mish_backward makes its result like its input, which now has the common dtype.
  const bool keeps_dtype = laid_out.scalar_type() == dtype;
  stack->back() = keeps_dtype ? laid_out : rules::empty_strided(laid_out.sizes(), laid_out.strides(), dtype);
}

}  // namespace shadowgraph
