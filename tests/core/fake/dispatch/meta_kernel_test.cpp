// Kernels that a later registration hides: `import torch` puts some 1,350 Python functions in front of libtorch's Meta kernels.
#include <gtest/gtest.h>
#include <torch/library.h>

#include "core/fake/rules/registry.h"
#include "shadowgraph/capture/fake.h"

namespace shadowgraph {
namespace {

int hidden_calls = 0;

// A boxed Meta kernel in front of an operator of libtorch, as Python functions are registered.
void in_front(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  ++hidden_calls;
  TORCH_CHECK(false, "the kernel in front was called for ", op.operator_name());
}

torch::Library hide(std::initializer_list<const char*> operators) {
  torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__, __LINE__);
  for (const char* name : operators) library.impl(name, torch::CppFunction::makeFromBoxedFunction<&in_front>());
  return library;
}

TEST(MetaKernel, CppKernelsRunWhateverIsInFrontOfThem) {
  // Covers boxed calls, a rule that redispatches to Meta for some operands (clone of a transposed tensor), and a view.
  const torch::Library library = hide({"erfinv", "tril", "clone", "view", "heaviside"});
  hidden_calls = 0;
  {
    const FakeTensorMode mode;
    const at::Tensor x = at::empty({4, 6});
    EXPECT_EQ(x.erfinv().sizes(), x.sizes());
    EXPECT_EQ(x.tril().sizes(), x.sizes());
    EXPECT_EQ(x.t().clone().strides(), at::IntArrayRef({1, 6}));
    EXPECT_EQ(x.view({24}).sizes(), at::IntArrayRef({24}));
    EXPECT_EQ(at::heaviside(x, x).sizes(), x.sizes());
    EXPECT_EQ(hidden_calls, 0);
  }
  // On plain meta tensors libtorch calls the hidden kernel, which throws.
  EXPECT_ANY_THROW(at::empty({4, 6}, at::device(at::kMeta)).erfinv());
}

TEST(MetaKernel, IsTheOneThatLibtorchWouldCall) {
  auto& dispatcher = c10::Dispatcher::singleton();
  const auto erfinv = dispatcher.findSchemaOrThrow("aten::erfinv", "");
  EXPECT_TRUE(has_dedicated_meta_kernel(erfinv));
  EXPECT_NE(cpp_meta_kernel(erfinv), nullptr);
  // An operator with only a composite kernel.
  const auto narrow = dispatcher.findSchemaOrThrow("aten::narrow", "");
  EXPECT_FALSE(has_dedicated_meta_kernel(narrow));
  EXPECT_NE(cpp_meta_kernel(narrow), nullptr);
  // An operator with neither a composite nor a Meta kernel.
  const auto nonzero = dispatcher.findSchemaOrThrow("aten::nonzero", "");
  EXPECT_FALSE(has_dedicated_meta_kernel(nonzero));
  EXPECT_EQ(cpp_meta_kernel(nonzero), nullptr);
}

}  // namespace
}  // namespace shadowgraph
