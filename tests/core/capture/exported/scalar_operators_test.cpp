#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <vector>

#include "core/capture/exported/symbolic_size.h"
#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

c10::IValue call(const char* target, std::vector<c10::IValue> operands) {
  auto result = call_scalar_operator(target, operands);
  EXPECT_TRUE(result) << target;
  return result.value_or(c10::IValue());
}

// The trailing comments show the equivalent Python expressions.
TEST(ScalarOperators, ComputeAsPythonDoes) {
  EXPECT_EQ(call("_operator.floordiv", {-7, 2}).toInt(), -4);  // -7 // 2
  EXPECT_EQ(call("_operator.mod", {-7, 2}).toInt(), 1);        // -7 % 2
  EXPECT_EQ(call("_operator.mod", {7, -2}).toInt(), -1);       // 7 % -2
  EXPECT_EQ(call("_operator.truediv", {7, 2}).toDouble(), 3.5);
  EXPECT_EQ(call("_operator.floordiv", {7.5, 2}).toDouble(), 3.0);
  EXPECT_EQ(call("_operator.pow", {3, 4}).toInt(), 81);
  EXPECT_EQ(call("_operator.add", {1, 0.5}).toDouble(), 1.5);
  EXPECT_EQ(call("_operator.sub", {true, 3}).toInt(), -2);
  EXPECT_TRUE(call("_operator.lt", {1, 1.5}).toBool());
  EXPECT_TRUE(call("_operator.and_", {true, true}).toBool());
  EXPECT_EQ(call("math.trunc", {-2.5}).toInt(), -2);
  EXPECT_EQ(call("torch.sym_max", {3, 5}).toInt(), 5);
  EXPECT_EQ(call("torch.sym_ite", {false, 3, 5}).toInt(), 5);
  EXPECT_EQ(call("torch._sym_sqrt", {9}).toDouble(), 3.0);
}

TEST(ScalarOperators, AskTensorsForSizes) {
  const at::Tensor x = at::empty({2, 3, 4});
  EXPECT_EQ(call("torch.ops.aten.sym_size.int", {x, -1}).toInt(), 4);
  EXPECT_EQ(call("torch.ops.aten.sym_stride.int", {x, 0}).toInt(), 12);
  EXPECT_EQ(call("torch.ops.aten.sym_numel.default", {x}).toInt(), 24);
}

TEST(ScalarOperators, RefuseWhatPythonWouldAndWhatDoesNotFit) {
  const auto refused = [](const char* target, std::vector<c10::IValue> operands) {
    EXPECT_THROW(call_scalar_operator(target, operands), Error) << target;
  };
  refused("_operator.floordiv", {1, 0});
  refused("_operator.mod", {1, 0});
  refused("_operator.truediv", {1, 0});
  refused("_operator.add", {INT64_MAX, 1});
  refused("_operator.mul", {int64_t{1} << 40, int64_t{1} << 40});
  refused("_operator.floordiv", {INT64_MIN, -1});
  refused("_operator.pow", {2, 64});
  refused("_operator.lshift", {1, 64});
  refused("_operator.add", {1});
  refused("_operator.add", {1, "x"});
  refused("math.trunc", {1e30});
  EXPECT_FALSE(call_scalar_operator("_operator.matmul", std::vector<c10::IValue>{1, 2}));
}

}  // namespace
}  // namespace shadowgraph
