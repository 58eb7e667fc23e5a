#include "core/dispatch/lazy_outputs.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/enum_tag.h>

#include <utility>

#include "core/fake/dispatch_keys.h"
#include "core/fake/fake_tensor_impl.h"
#include "core/fake/kernel_depth.h"
#include "shadowgraph/graph/libtorch.h"

namespace shadowgraph {

namespace {

bool is_lazy(const c10::IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined()) return false;
  return (value.toTensor().is_conj() || value.toTensor().is_neg()) && is_fake(value.toTensor());
}

class LazyOutputScope {
 public:
  explicit LazyOutputScope(LazyOutput& output) : outer_(std::exchange(thread_state.lazy_output, &output)) {}
  ~LazyOutputScope() { thread_state.lazy_output = outer_; }
  LazyOutputScope(const LazyOutputScope&) = delete;
  LazyOutputScope& operator=(const LazyOutputScope&) = delete;

 private:
  LazyOutput* outer_;
};

}  // namespace

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
    const LazyOutputScope scope(output);
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

}  // namespace shadowgraph
