// Kernels that read at indices: rows, single elements, losses. An out-of-range index raises eager's error.
#include <torch/torch.h>

#include "tests/kernels/cases.h"

namespace shadowgraph::kernel_tests {
namespace {

using c10::IValue;

const std::vector<at::ScalarType> kDtypes = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong, at::kBool};

TEST(KernelsGathers, Rows) {
  torch::manual_seed(1);
  for (const at::ScalarType dtype : kDtypes) {
    const at::Tensor table = (at::randn({50, 33}) * 3).to(dtype);
    for (const at::ScalarType of_index : {at::kLong, at::kInt}) {
      const at::Tensor indices = at::randint(50, {4, 7}, of_index);
      compare("embedding", {table, indices});
      compare("embedding", {table, indices.t()});
      compare("embedding", {table.t().contiguous().t(), indices});
      compare("embedding", {table, at::scalar_tensor(3, of_index)});
      compare("index_select", {table, IValue(0), indices.flatten()});
      compare("index_select", {table, IValue(1), at::randint(33, {5}, of_index)});
      compare("index_select", {table.view({5, 10, 33}), IValue(-2), at::randint(10, {12}, of_index)});
      compare("index_select", {table.t(), IValue(0), at::randint(33, {5}, of_index)});
    }
  }
}

TEST(KernelsGathers, Elements) {
  torch::manual_seed(2);
  for (const at::ScalarType dtype : kDtypes) {
    const at::Tensor x = (at::randn({6, 7, 8}) * 3).to(dtype);
    for (const int64_t dim : {0, 1, 2, -1}) {
      compare("gather", {x, IValue(dim), at::randint(x.size(dim), {6, 7, 8}, at::kLong)});
      compare("gather", {x, IValue(dim), at::randint(x.size(dim), {3, 2, 5}, at::kLong)});
    }
    compare("gather", {x.transpose(0, 2), IValue(0), at::randint(8, {2, 7, 3}, at::kLong)});
  }
}

TEST(KernelsGathers, Losses) {
  torch::manual_seed(3);
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const double ulps = 8;
    const at::Tensor x = at::randn({130, 9}, dtype).log_softmax(1);
    at::Tensor target = at::randint(9, {130}, at::kLong);
    target[3] = -100;
    target[129] = -100;
    const at::Tensor weight = at::rand({9}, dtype);
    for (const IValue& weights : {IValue(), IValue(weight)}) {
      for (const int64_t reduction : {1, 2}) {
        compare("nll_loss_forward", {x, target, weights, reduction, -100}, 64);
        const auto [loss, total] =
            at::nll_loss_forward(x, target, weights.isNone() ? std::optional<at::Tensor>() : weight, reduction, -100);
        compare("nll_loss_backward", {at::scalar_tensor(0.7, dtype), x, target, weights, reduction, -100, total}, ulps);
      }
      const at::Tensor gradient = at::randn({130}, dtype);
      compare("nll_loss_backward", {gradient, x, target, weights, 0, -100, at::scalar_tensor(0, dtype)}, ulps);
    }
    compare("nll_loss_backward", {at::scalar_tensor(1, dtype), x.slice(0, 0, 1), target.slice(0, 0, 1), IValue(), 1,
                                  -100, at::scalar_tensor(1, dtype)});
  }
}

TEST(KernelsGathers, AnIndexOutOfRangeIsLeftToEager) {
  const at::Tensor table = at::randn({5, 3});
  for (const int64_t wrong : {5, -1, 1 << 20}) {
    at::Tensor indices = at::zeros({70}, at::kLong);
    indices[66] = wrong;
    const auto refused = [&](const char* name, std::vector<IValue> given) {
      const auto op = operator_named(name);
      torch::jit::Stack stack = call_of(op, std::move(given));
      const size_t size = stack.size();
      EXPECT_EQ(kernels().call(op, stack), OperatorKernels::Outcome::kUnsupported) << name;
      ASSERT_EQ(stack.size(), size);
      EXPECT_ANY_THROW(op.callBoxed(stack)) << name;
    };
    refused("embedding", {table, indices});
    refused("index_select", {table, IValue(0), indices});
    refused("gather", {table, IValue(0), indices.view({70, 1})});
    refused("nll_loss_forward", {at::randn({70, 5}), indices, IValue(), 1, -100});
  }
}

}  // namespace
}  // namespace shadowgraph::kernel_tests
