#include "core/dispatch/out_form.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/enum_tag.h>
#include <ATen/native/Resize.h>
#include <c10/core/ScalarType.h>

#include <algorithm>

namespace shadowgraph {
namespace {

// Says which results of an operator that is not pointwise have the strides of new ones: all of them, or those that were
// resized.
enum class Restrided : uint8_t { kAlways, kIfResized };
constexpr std::pair<std::string_view, Restrided> kRestrided[] = {
    {"aten::adaptive_avg_pool2d.out", Restrided::kAlways}, {"aten::max_pool3d_with_indices.out", Restrided::kAlways},
    {"aten::reflection_pad3d.out", Restrided::kAlways},    {"aten::replication_pad2d.out", Restrided::kAlways},
    {"aten::replication_pad3d.out", Restrided::kAlways},   {"aten::nonzero.out", Restrided::kIfResized},
};

// Refuses results whose elements share memory, with each other or with an operand's. A pointwise kernel may write to an
// operand.
void check_overlap(const std::vector<at::Tensor>& outs, const torch::jit::Stack& operands, bool pointwise) {
  for (const at::Tensor& out : outs) {
    at::assert_no_internal_overlap(out);
    for (const c10::IValue& operand : operands) {
      if (!operand.isTensor() || !operand.toTensor().defined()) continue;
      if (pointwise) {
        at::assert_no_partial_overlap(out, operand.toTensor());
      } else {
        at::assert_no_overlap(out, operand.toTensor());
      }
    }
  }
}

}  // namespace

const FreshForm* form_of_tensors(const Target& op) {
  size_t results = 0;
  for (const Formal& argument : op.signature().arguments) {
    if (!argument.out) continue;
    if (argument.type.type != TypeClass::kTensor || argument.type.optional) return nullptr;
    ++results;
  }
  return results != 0 && results == op.signature().returns.size() ? fresh_form(op) : nullptr;
}

void run_out_form(const c10::OperatorHandle& out_form, const FreshForm& fresh, torch::jit::Stack* stack) {
  const auto& formals = out_form.schema().arguments();
  const size_t begin = stack->size() - formals.size();
  std::vector<at::Tensor> outs;
  for (size_t i = 0; i < formals.size(); ++i) {
    if (formals[i].is_out()) outs.push_back((*stack)[begin + i].toTensor());
  }
  torch::jit::Stack inner;
  for (size_t i = 0; i < fresh.arguments.size(); ++i) {
    if (fresh.arguments[i] != FreshForm::kOfResult) {
      inner.push_back((*stack)[begin + fresh.arguments[i]]);
    } else if (fresh.op.schema().arguments()[i].name() == "dtype") {
      inner.emplace_back(outs[0].scalar_type());
    } else {
      inner.emplace_back();
    }
  }
  const bool pointwise = out_form.hasTag(at::Tag::pointwise);  // a TensorIterator: new results have its strides
  check_overlap(outs, inner, pointwise);
  fresh.op.callBoxed(inner);
  const std::string name = toString(out_form.operator_name());
  const auto* const row = std::find_if(std::begin(kRestrided), std::end(kRestrided),
                                       [&](const auto& restrided) { return restrided.first == name; });
  const bool always = row != std::end(kRestrided) && row->second == Restrided::kAlways;
  const bool if_resized = pointwise || row != std::end(kRestrided);
  for (size_t i = 0; i < outs.size(); ++i) {
    const at::Tensor& result = inner[i].toTensor();
    TORCH_CHECK(c10::canCast(result.scalar_type(), outs[i].scalar_type()), name, ": result type ", result.scalar_type(),
                " can't be cast to the desired output type ", outs[i].scalar_type());
    const bool resized = at::native::resize_output(outs[i], result.sizes());
    if (always || (if_resized && resized)) outs[i].as_strided_(result.sizes(), result.strides());
  }
  stack->erase(stack->begin() + static_cast<std::ptrdiff_t>(begin), stack->end());
  for (at::Tensor& out : outs) stack->emplace_back(std::move(out));
}

}  // namespace shadowgraph
