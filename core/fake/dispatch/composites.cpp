#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/enum_tag.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <utility>

#include "core/fake/dispatch/call.h"
#include "core/fake/dispatch/operand_scan.h"
#include "core/fake/dispatch/run_on_meta.h"
#include "core/fake/fake_tensor_impl.h"
#include "core/fake/known_contents.h"
#include "core/fake/thread_state.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/libtorch.h"

namespace shadowgraph {

static bool is_lazy(const c10::IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined()) return false;
  return (value.toTensor().is_conj() || value.toTensor().is_neg()) && is_fake(value.toTensor());
}

bool may_resize_output(const c10::OperatorHandle& op) {
  if (op.hasTag(at::Tag::inplace_view)) return true;
  for (const c10::Argument& argument : op.schema().arguments()) {
    if (argument.is_out() && argument.type()->kind() == c10::TypeKind::TensorType) return true;
  }
  return false;
}

void lazy_output_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  static const c10::DispatchKeySet below(c10::DispatchKeySet::FULL_AFTER, kCompositeKey);
  const auto& formals = op.schema().arguments();
  const size_t begin = stack->size() - formals.size();
  for (size_t i = 0; thread_state.kernel_depth == 0 && i < formals.size(); ++i) {
    if (!is_written(formals[i]) || !is_lazy((*stack)[begin + i])) continue;
    LazyOutput output{OperatorInfo::of(op).key, i, (*stack)[begin + i].toTensor()};
    const auto restore = c10::make_scope_exit(
        [outer = std::exchange(thread_state.lazy_output, &output)] { thread_state.lazy_output = outer; });
    op.redispatchBoxed(keys & below, stack);
    return;
  }
  op.redispatchBoxed(keys & below, stack);
}

at::Tensor take_lazy_output(const OperatorInfo& info, const torch::jit::Stack& stack) {
  if (thread_state.lazy_output->op != info.key) return {};
  const c10::IValue& written = stack[stack.size() - info.argument_count + thread_state.lazy_output->position];
  if (!written.isTensor() || written.toTensor().is_same(thread_state.lazy_output->tensor)) return {};
  return std::exchange(thread_state.lazy_output, nullptr)->tensor;
}

void resize_like(const at::Tensor& lazy, const at::Tensor& clone) {
  c10::SmallVector<int64_t, 6> sizes;
  {
    const KernelDepth depth;
    if (lazy.sizes() == clone.sizes()) return;
    sizes.assign(clone.sizes().begin(), clone.sizes().end());
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  lazy.resize_(sizes);
}

namespace {

using torch::jit::Stack;

// Returns whether autocast is on and has a kernel for `op`.
bool casts_first(const c10::OperatorHandle& op, c10::DispatchKeySet keys) {
  for (const auto key :
       {c10::DispatchKey::AutocastCUDA, c10::DispatchKey::AutocastXPU, c10::DispatchKey::AutocastMPS}) {
    if (keys.has(key) && op.hasKernelForDispatchKey(key)) return true;
  }
  return false;
}

// Makes integer operands readable for a decomposition that accesses their data pointers.
void make_operands_readable(const OperatorInfo& info, const Stack& stack, size_t begin) {
  for (const uint16_t position : info.tensor_arguments) {
    const c10::IValue& argument = stack[begin + position];
    if (!argument.isTensor() || !argument.toTensor().defined()) continue;
    if (c10::isIntegralType(argument.toTensor().scalar_type(), /*includeBool=*/false))
      make_readable(argument.toTensor());
  }
}

// On the CPU, one_hot reads its operand to check it, unless the user provides the values it reads.
bool is_unread_one_hot(const OperatorInfo& info, const Stack& stack, size_t begin) {
  if (info.name != "aten::one_hot" || stack[begin + 1].toInt() < 1) return false;
  const HostReads& reads = thread_state.mode->options.host_reads;
  return reads.values.empty() && !reads.hint && !is_knowable(stack[begin].toTensor());
}

bool composite_rule_applies(const OperatorInfo& info, const Stack& stack, size_t begin) {
  if (C10_UNLIKELY(is_unread_one_hot(info, stack, begin))) return true;
  for (const uint16_t position : info.tensor_arguments) {
    const c10::IValue& argument = stack[begin + position];
    if (!argument.isTensor()) continue;
    const auto device = device_of_fake_or_wrapper(argument.toTensor());
    return device && composite_rule_applies(info, device->type());
  }
  return false;
}

}  // namespace

bool composite_rule_applies(const OperatorInfo& info, c10::DeviceType device) {
  if (device == c10::DeviceType::CUDA) return true;
  if (device == c10::DeviceType::CPU) {
    return info.name == "aten::lstm.input" && thread_state.mode->profile().cpu != CpuProfile::this_machine();
  }
  const bool asks_its_library = device == c10::DeviceType::XPU || device == c10::DeviceType::MPS;
  return asks_its_library && info.name == "aten::scaled_dot_product_attention";
}

void composite_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  static const c10::DispatchKeySet below(c10::DispatchKeySet::FULL_AFTER, kCompositeKey);
  const ModeState* mode = thread_state.mode;
  if (!reports_composites(mode)) {
    op.redispatchBoxed(keys & below, stack);
    return;
  }
  const OperatorInfo& info = OperatorInfo::of(op);
  const size_t begin = stack->size() - info.argument_count;
  if (C10_UNLIKELY(runs_directly(info, *stack, begin))) {
    fake_fallback(op, keys & below, stack);
    return;
  }
  if (C10_UNLIKELY(info.reads_operands)) make_operands_readable(info, *stack, begin);
  // Autocast must cast the operands first; its kernel calls the operator again with autocast off.
  const bool autocast_first = casts_first(op, keys);
  const CompositeScope scope(mode->observer, info, viewed(*stack, begin));
  try {
    if (info.composite_rule && !autocast_first && composite_rule_applies(info, *stack, begin)) {
      info.composite_rule->kernel.callBoxed(op, keys & below, stack);
    } else {
      op.redispatchBoxed(keys & below, stack);
    }
  } catch (const c10::Error& error) {
    if (!reads_data(error)) throw;
    try {
      throw_data_dependent(info);
    } catch (const Error& data_dependent) {
      translate(data_dependent);
      throw;
    }
  }
}

bool is_reported_as_region(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  const auto returns_tensor = [](const c10::Argument& argument) {
    return argument.type()->isSubtypeOf(*c10::TensorType::get()) ||
           argument.type()->isSubtypeOf(*c10::ListType::ofTensors());
  };
  const bool tensor_result = std::any_of(schema.returns().begin(), schema.returns().end(), returns_tensor);
  return tensor_result || schema.returns().empty();
}

}  // namespace shadowgraph
