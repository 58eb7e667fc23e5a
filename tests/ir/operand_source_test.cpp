#include "ir/analysis/operand_source.h"

#include <gtest/gtest.h>

#include "shadowgraph/graph/text.h"

namespace shadowgraph {
namespace {

// A sharded weight that is gathered, cast and transposed, and a tensor computed by the program.
TEST(OperandSource, IsBehindViewsCastsAndGathering) {
  const Graph graph = parse(
      "shadowgraph 1 libtorch 2.13.0\n"
      "operator aten::t(Tensor(a) self) -> Tensor(a)\n"
      "operator aten::relu(Tensor self) -> Tensor\n"
      "operator aten::_to_copy(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? "
      "pin_memory=None, bool non_blocking=False, MemoryFormat? memory_format=None) -> Tensor\n"
      "operator _c10d_functional::all_gather_into_tensor(Tensor input, int group_size, Any group_name) -> Tensor\n"
      "operator _c10d_functional::wait_tensor(Tensor tensor) -> Tensor\n"
      "s0 = 32 cpu parameter\ns1 = 64 cpu temporary\ns2 = 32 cpu temporary\ns3 = 16 cpu temporary\n"
      "s4 = 32 cpu temporary\n"
      "%0 = sg::parameter(name=\"w\") : f32[2,4] @s0\n"
      "%1 = _c10d_functional::all_gather_into_tensor(input=%0, group_size=2, group_name=\"tp\") : f32[4,4] @s1\n"
      "%2 = _c10d_functional::wait_tensor(tensor=%1) : f32[4,4] @s1\n"
      "%3 = aten::_to_copy(self=%2, dtype=bf16) : bf16[4,4] @s2\n"
      "%4 = aten::t(self=%3) : bf16[4,4]{1,4} @s2\n"
      "%5 = aten::_to_copy(self=%0, dtype=bf16) : bf16[2,4] @s3\n"
      "%6 = aten::t(self=%5) : bf16[4,2]{1,4} @s3\n"
      "%7 = aten::relu(self=%0) : f32[2,4] @s4\n"
      "%8 = aten::t(self=%7) : f32[4,2]{1,4} @s4\n");
  const auto source = [&](uint32_t of, LookThrough behind) { return source_of(graph, ValueId(of), behind).index; };
  EXPECT_EQ(source(0, LookThrough::kGathering), 0U);
  EXPECT_EQ(source(4, LookThrough::kViews), 3U);
  EXPECT_EQ(source(4, LookThrough::kCasts), 2U);
  EXPECT_EQ(source(4, LookThrough::kGathering), 0U);
  EXPECT_EQ(source(6, LookThrough::kViews), 5U);
  EXPECT_EQ(source(6, LookThrough::kCasts), 0U);
  EXPECT_EQ(source(8, LookThrough::kGathering), 7U);
  const NodeId parameter = graph.value(ValueId(0)).producer;
  EXPECT_EQ(parameter_of_operand(graph, ValueId(6), LookThrough::kCasts), parameter);
  EXPECT_FALSE(parameter_of_operand(graph, ValueId(6), LookThrough::kViews).valid());
  EXPECT_FALSE(parameter_of_operand(graph, ValueId(8), LookThrough::kGathering).valid());
}

}  // namespace
}  // namespace shadowgraph
