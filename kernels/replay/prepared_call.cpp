#include "kernels/replay/prepared_call.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <bit>

#include "kernels/compiler/operator_call.h"
#include "kernels/compiler/plan_parts.h"
#include "kernels/replay/call_graph.h"
#include "kernels/replay/launch.h"

namespace shadowgraph {
namespace {

int64_t scalar_bits(const c10::IValue& argument) {
  if (argument.isDouble()) return std::bit_cast<int64_t>(argument.toDouble());
  if (argument.isInt()) return argument.toInt();
  if (argument.isBool()) return argument.toBool() ? 1 : 0;
  const c10::Scalar number = number_of(argument.toTensor());
  if (number.isFloatingPoint()) return std::bit_cast<int64_t>(number.toDouble());
  return number.isBoolean() ? (number.toBool() ? 1 : 0) : number.toLong();
}

void bind(const CallGraph& call, PreparedCall& made) {
  const Graph& graph = call.graph;
  const auto position_of = [&](ValueId v) {
    const auto found = std::ranges::find(call.arguments, v);
    TORCH_INTERNAL_ASSERT(found != call.arguments.end());
    return static_cast<uint32_t>(found - call.arguments.begin());
  };
  std::vector<ValueId> outputs;
  for (PreparedCall::Part& part : made.parts) {
    const KernelPlan& plan = part.plan;
    made.decisive |= plan.decisive;
    for (const ValueId input : plan.inputs) part.inputs.push_back(position_of(input));
    if (plan.inputs.size() + plan.outputs.size() > kMostOperands || plan.scalar_arguments.size() > kMostOperands) {
      throw KernelError("too many operands");
    }
    for (const ValueId output : plan.outputs) {
      part.outputs.push_back(static_cast<uint32_t>(outputs.size()));
      outputs.push_back(output);
      made.fresh.push_back(
          {.dtype = graph.value(output).dtype,
           .sizes = {graph.sizes(output).begin(), graph.sizes(output).end()},
           .strides = {graph.strides(output).begin(), graph.strides(output).end()},
           .contiguous = are_default_strides({graph.sizes(output).data(), graph.sizes(output).size()},
                                             {graph.strides(output).data(), graph.strides(output).size()})});
    }
  }
  for (const Argument& result : graph.results(call.node)) {
    if (result.kind != ArgumentKind::kValue) {
      made.results.push_back(PreparedCall::kUndefined);
      continue;
    }
    ValueId tensor = result.ref.value;
    for (const PreparedCall::Part& part : made.parts) {
      const auto same = std::ranges::find(part.plan.same_tensor, tensor, &KernelPlan::SameTensor::result);
      if (same != part.plan.same_tensor.end()) tensor = same->tensor;
    }
    const auto fresh = std::ranges::find(outputs, tensor);
    made.results.push_back(fresh != outputs.end() ? static_cast<int>(fresh - outputs.begin())
                                                  : -1 - static_cast<int>(position_of(tensor)));
  }
}

// Numbers travel with the call; other tensors must be where the kernel runs.
void check_devices(std::span<const c10::IValue> arguments, c10::DeviceType device) {
  if (device == c10::kCPU) return;  // memory of the host, under any name
  for (const c10::IValue& argument : arguments) {
    if (!argument.isTensor() || !argument.toTensor().defined()) continue;
    const at::Tensor& tensor = argument.toTensor();
    if (tensor.device().type() == device || tensor.unsafeGetTensorImpl()->is_wrapped_number()) continue;
    throw KernelError("an operand on " + tensor.device().str());
  }
}

}  // namespace

int64_t PreparedCall::work() const {
  int64_t sum = 0;
  for (const Part& part : parts) sum += part.plan.range * part.plan.row_work;
  return sum;
}

Kernel::State PreparedCall::state() const {
  bool ready = !parts.empty();
  for (const Part& part : parts) {
    if (part.kernel->function() != nullptr) continue;
    ready = false;
    if (part.kernel->state() == Kernel::State::kFailed) return Kernel::State::kFailed;
  }
  return ready ? Kernel::State::kReady : parts.empty() ? Kernel::State::kFailed : Kernel::State::kPending;
}

std::shared_ptr<const PreparedCall> prepare_call(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments,
                                                 const KernelOptions& options, KernelCache& cache) {
  auto made = std::make_shared<PreparedCall>();
  try {
    if (arguments.size() > kMostOperands) throw KernelError("too many arguments");
    check_devices(arguments, cache.backend().device());
    made->backend = &cache.backend();
    const CallGraph call = call_graph(op, arguments);
    for (KernelPlan& plan : plan_parts(call.graph, call.node, options))
      made->parts.push_back({.plan = std::move(plan)});
    bind(call, *made);
    for (PreparedCall::Part& part : made->parts) {
      part.kernel = cache.find(part.plan.name, part.plan.program);
      if (part.kernel == nullptr) throw KernelError(cache.backend().problem());
    }
    return made;
  } catch (const std::exception& error) {  // the original says what is wrong with the call
    const auto* libtorch = dynamic_cast<const c10::Error*>(&error);
    auto refused = std::make_shared<PreparedCall>();
    refused->problem = libtorch != nullptr ? libtorch->what_without_backtrace() : error.what();
    refused->decisive = ~uint64_t{0};  // the refusal may be for its numbers
    return refused;
  }
}

bool run_call(const PreparedCall& call, std::span<const c10::IValue> arguments, torch::jit::Stack& results) {
  const at::Tensor* first = nullptr;
  for (const PreparedCall::Part& part : call.parts) {
    for (const uint32_t position : part.inputs) {
      const at::Tensor& tensor = arguments[position].toTensor();
      if (first == nullptr || (tensor.dim() > 0 && first->dim() == 0)) first = &tensor;
    }
  }
  c10::SmallVector<at::Tensor, 4> fresh;
  for (const PreparedCall::Fresh& wanted : call.fresh) {
    const bool on_cpu = first == nullptr || first->device().is_cpu();
    fresh.push_back(!on_cpu ? at::empty_strided(wanted.sizes, wanted.strides, first->options().dtype(wanted.dtype))
                    : wanted.contiguous
                        ? at::Tensor(at::detail::empty_cpu(wanted.sizes, wanted.dtype))
                        : at::Tensor(at::detail::empty_strided_cpu(wanted.sizes, wanted.strides, wanted.dtype)));
  }
  for (const PreparedCall::Part& part : call.parts) {
    void* data[kMostOperands];
    int64_t scalars[kMostOperands];
    size_t operands = 0;
    for (size_t i = 0; i < part.inputs.size(); ++i) {
      const at::Tensor& tensor = arguments[part.inputs[i]].toTensor();
      const bool written = part.plan.program.operands[i].written;
      data[operands++] = written ? tensor.mutable_data_ptr() : const_cast<void*>(tensor.const_data_ptr());
    }
    for (const uint32_t output : part.outputs) data[operands++] = fresh[output].data_ptr();
    for (size_t i = 0; i < part.plan.scalar_arguments.size(); ++i) {
      const uint32_t argument = part.plan.scalar_arguments[i];
      const bool fixed = argument == ExpressionBuilder::kNoArgument;
      scalars[i] = fixed ? part.plan.scalars[i] : scalar_bits(arguments[argument]);
    }
    const size_t numbers = part.plan.scalar_arguments.size();
    if (!launch(*call.backend, part.kernel->function(), part.plan, {data, operands}, {scalars, numbers})) return false;
  }
  for (const int result : call.results) {
    if (result == PreparedCall::kUndefined) {
      results.emplace_back(at::Tensor());
    } else {
      results.push_back(result >= 0 ? c10::IValue(fresh[static_cast<size_t>(result)])
                                    : arguments[static_cast<size_t>(-1 - result)]);
    }
  }
  return true;
}

}  // namespace shadowgraph
