#include "tests/kernels/cases.h"

#include <torch/torch.h>

#include <map>

namespace shadowgraph::kernel_tests {

OperatorKernels& kernels() {
  static TemporaryFolder folder;
  static OperatorKernels kernels(
      std::make_shared<KernelCache>(KernelCacheOptions{.directory = folder.path(), .background = false}));
  return kernels;
}

torch::jit::Stack call_of(const c10::OperatorHandle& op, std::vector<c10::IValue> given) {
  torch::jit::Stack stack(given.begin(), given.end());
  const auto& formals = op.schema().arguments();
  for (size_t i = stack.size(); i < formals.size(); ++i) {
    stack.push_back(formals[i].default_value() ? *formals[i].default_value() : c10::IValue());
  }
  return stack;
}

torch::jit::Stack copy_of(const torch::jit::Stack& stack) {
  std::map<const c10::StorageImpl*, at::Tensor> storages;
  std::map<const c10::TensorImpl*, at::Tensor> copies;  // a tensor that is passed twice is copied once
  torch::jit::Stack out;
  for (const c10::IValue& value : stack) {
    if (!value.isTensor() || !value.toTensor().defined()) {
      out.push_back(value);
      continue;
    }
    const at::Tensor& tensor = value.toTensor();
    at::Tensor& copy = copies[tensor.unsafeGetTensorImpl()];
    if (copy.defined()) {
      out.emplace_back(copy);
      continue;
    }
    at::Tensor& whole = storages[tensor.storage().unsafeGetStorageImpl()];
    if (!whole.defined()) {
      const auto elements = static_cast<int64_t>(tensor.storage().nbytes() / tensor.itemsize());
      whole = tensor.as_strided({elements}, {1}, 0).clone();
    }
    copy = whole.as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset());
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) copy.unsafeGetTensorImpl()->set_wrapped_number(true);
    out.emplace_back(copy);
  }
  return out;
}

void compare(const std::string& name, std::vector<c10::IValue> given, double ulps) {
  const c10::OperatorHandle op = operator_named(name);
  torch::jit::Stack eager = call_of(op, std::move(given));
  torch::jit::Stack own = copy_of(eager);
  const torch::jit::Stack eager_operands = eager;
  const torch::jit::Stack own_operands = own;
  op.callBoxed(eager);
  const auto outcome = kernels().call(op, own);
  if (outcome != OperatorKernels::Outcome::kRan) {
    for (const auto& report : kernels().report()) {
      if (report.op == "aten::" + name) ADD_FAILURE() << name << " did not run: " << report.reason;
    }
    return;
  }
  ASSERT_EQ(eager.size(), own.size()) << name;
  const auto same = [&](const c10::IValue& a, const c10::IValue& b, const std::string& what) {
    if (!a.isTensor() || !a.toTensor().defined()) return;
    const at::Tensor& x = a.toTensor();
    const at::Tensor& y = b.toTensor();
    EXPECT_EQ(x.scalar_type(), y.scalar_type()) << name << what;
    EXPECT_EQ(x.sizes(), y.sizes()) << name << what;
    if (x.sizes() != y.sizes() || x.scalar_type() != y.scalar_type()) return;
    if (x.numel() > 0) {
      EXPECT_EQ(x.strides(), y.strides()) << name << what;
    }
    EXPECT_LE(ulps_between(x, y), ulps) << name << what << " of " << x.scalar_type() << " " << x.sizes();
  };
  for (size_t i = 0; i < eager.size(); ++i) {
    same(eager[i], own[i], " result " + std::to_string(i));
    for (size_t k = 0; k < own_operands.size(); ++k) {
      if (!own_operands[k].isTensor() || !eager_operands[k].isTensor() || !eager[i].isTensor()) continue;
      EXPECT_EQ(eager[i].toTensor().is_same(eager_operands[k].toTensor()),
                own[i].toTensor().is_same(own_operands[k].toTensor()))
          << name << " result " << i << " is argument " << k;
    }
  }
  for (size_t i = 0; i < own_operands.size(); ++i) {
    if (eager_operands[i].isTensor()) same(eager_operands[i], own_operands[i], " operand " + std::to_string(i));
  }
}

}  // namespace shadowgraph::kernel_tests
