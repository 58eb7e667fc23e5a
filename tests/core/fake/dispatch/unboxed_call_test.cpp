// Operators with unboxed C++ kernels behave and record exactly as through the boxed fallback.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "core/fake/dispatch/call.h"
#include "core/fake/thread_state.h"
#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/shape_rules.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/text.h"
#include "tests/core/compare_with_eager.h"

namespace shadowgraph::testing {
namespace {

using at::Tensor;
using torch::jit::Stack;

struct BoxedCall {
  const char* name;
  const char* overload;
  std::function<Stack()> arguments;
};

// One operator for each kind of argument and result.
std::vector<BoxedCall> calls() {
  const auto x = [] { return at::rand({2, 4, 6}); };
  return {
      {"aten::add", "Tensor",
       [x] {
         return Stack{x(), x(), 2};
       }},
      {"aten::add", "Scalar",
       [x] {
         return Stack{x(), 0.5, 1};
       }},
      {"aten::mul_", "Scalar",
       [x] {
         return Stack{x(), true};
       }},
      {"aten::gelu", "",
       [x] {
         return Stack{x(), "tanh"};
       }},
      {"aten::view", "",
       [x] {
         return Stack{x(), std::vector<int64_t>{8, 6}};
       }},
      {"aten::slice", "Tensor",
       [x] {
         return Stack{x(), 1, c10::IValue(), 3, 1};
       }},
      {"aten::split", "Tensor",
       [x] {
         return Stack{x(), 2, 1};
       }},
      {"aten::sum", "dim_IntList",
       [x] {
         return Stack{x(), std::vector<int64_t>{0, 1}, true, c10::IValue()};
       }},
      {"aten::_softmax", "",
       [x] {
         return Stack{x(), -1, false};
       }},
      {"aten::cat", "",
       [x] {
         return Stack{c10::List<Tensor>({x(), x()}), 1};
       }},
      {"aten::index", "Tensor",
       [x] {
         c10::List<std::optional<Tensor>> indices;
         indices.push_back(std::nullopt);
         indices.push_back(at::zeros({3}, at::kLong));
         return Stack{x(), indices};
       }},
      {"aten::native_layer_norm", "",
       [x] {
         return Stack{x(), std::vector<int64_t>{6}, at::rand({6}), c10::IValue(), 1e-5};
       }},
      {"aten::native_layer_norm_backward", "",
       [x] {
         return Stack{x(),
                      x(),
                      std::vector<int64_t>{6},
                      at::rand({2, 4, 1}),
                      at::rand({2, 4, 1}),
                      at::rand({6}),
                      c10::IValue(),
                      c10::List<bool>({true, true, false})};
       }},
      {"aten::empty", "memory_format",
       [] {
         return Stack{std::vector<int64_t>{2, 3}, at::kHalf,     c10::IValue(),
                      c10::Device("cuda:1"),      c10::IValue(), c10::IValue()};
       }},
      {"aten::_scaled_dot_product_flash_attention", "",
       [] {
         const Tensor q = at::ones({1, 2, 8, 16}, at::kHalf);
         return Stack{q, q, q, 0.0, false, false, c10::IValue()};
       }},
      {"aten::fill_", "Scalar",
       [x] {
         return Stack{x(), c10::complex<double>(1, 0)};
       }},
  };
}

std::string recorded(const BoxedCall& call, bool boxed) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(call.name, call.overload);
  Capture session({.mode = {.device = at::kCUDA}});
  Stack stack = call.arguments();
  try {
    if (boxed) {
      fake_fallback(op, c10::DispatchKeySet(c10::DispatchKey::Fake), &stack);
    } else {
      op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Fake), &stack);
    }
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return to_text(session.finish({}));
}

TEST(UnboxedCall, RecordsWhatTheBoxedOneRecords) {
  for (const BoxedCall& call : calls()) {
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(call.name, call.overload);
    { const FakeTensorMode installed; }
    EXPECT_TRUE(op.hasKernelForDispatchKey(c10::DispatchKey::Fake)) << call.name;
    EXPECT_EQ(recorded(call, false), recorded(call, true)) << call.name;
  }
}

TEST(UnboxedCall, ErrorsLeaveNoKernelRunning) {
  const FakeTensorMode mode;
  const Tensor x = at::ones({2, 3});
  EXPECT_THROW(x.mm(x), c10::Error);
  EXPECT_THROW(x + at::ones({4}), c10::Error);
  EXPECT_THROW(x.add(at::ones({2, 3}, at::device(at::kCUDA))), Error);
  EXPECT_EQ(thread_state.kernel_depth, 0);
  EXPECT_FALSE(c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::AutogradCPU));
  EXPECT_EQ(described(x + x), "Float[2, 3][3, 1]");
}

TEST(UnboxedCall, RealOperands) {
  const Tensor real = at::ones({3});
  const FakeTensorMode mode;
  const Tensor fake = at::ones({3});
  EXPECT_TRUE(is_fake(fake + real));
  EXPECT_TRUE(is_fake(real + real));
  EXPECT_TRUE(is_fake(at::cat({fake, real})));
  Tensor written = real;
  EXPECT_THROW(written.add_(fake), UnsupportedError);
  const UnfakeGuard unfake;
  EXPECT_EQ(real.sum().item<float>(), 3);
}

int by_value_calls = 0;
Tensor amax_by_value(Tensor x, std::vector<int64_t> dims, bool keepdim) {
  ++by_value_calls;
  return at::sum(x, dims, keepdim);
}
Tensor amax_by_reference(const Tensor& x, at::IntArrayRef dims, bool keepdim) { return at::sum(x, dims, keepdim); }

// The function of a rule may take arguments differently from the operator; the boxed call then converts them.
TEST(UnboxedCall, ARuleOfAnotherSignature) {
  const FakeTensorMode mode;
  const Tensor x = at::ones({2, 3});
  EXPECT_EQ(described(x.amax(0)), "Float[3][1]");
  register_rule("aten::amax", &amax_by_value);
  EXPECT_EQ(described(x.amax(0)), "Float[3][1]");
  EXPECT_EQ(by_value_calls, 1);
  register_rule("aten::amax", &amax_by_reference);
  EXPECT_EQ(described(x.amax(1, true)), "Float[2, 1][1, 1]");
  EXPECT_EQ(by_value_calls, 1);
}

// Size reads are tracked on all results, including those that a rule created and the kernel resized.
TEST(UnboxedCall, ResultsOfRulesAreWatched) {
  Capture session({.mode = {.device = at::kCPU}, .guards = true});
  const Tensor x = at::ones({2, 3});
  const Tensor y = x + x;
  (void)y.size(0);
  (void)at::arange(4).sizes();
  EXPECT_EQ(session.finish({}).guards.size(), 2);
}

}  // namespace
}  // namespace shadowgraph::testing
