// Small graphs shared by tests of ir/.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "shadowgraph/graph/graph.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/graph/verify.h"
#include "tests/this_libtorch.h"

namespace shadowgraph::samples {

// Prepends the header line to the text.
inline Graph graph_of(const std::string& body) { return parse("shadowgraph 1 libtorch 2.13.0\n" + body); }

// A linear layer with in-place bias and dropout, forward and backward, that uses every node attribute.
inline const std::string kTraining = of_this_libtorch(R"(shadowgraph 1 libtorch 2.13.0
meta "model" = "two \"layers\""
operator aten::t(Tensor(a) self) -> Tensor(a)
operator aten::mm(Tensor self, Tensor mat2) -> Tensor
operator aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)
operator aten::native_dropout(Tensor input, float p, bool? train) -> (Tensor, Tensor)
operator aten::linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor
s0 = 24 cuda:0 parameter
s1 = 8 cuda:0 parameter
s2 = 48 cuda:0 input
s3 = 32 cuda:0 activation
s4 = 32 cuda:0 temporary
s5 = 8 cuda:0 activation
s6 = 24 cuda:0 gradient
r1 = module "layer1.0" "Linear" call 0 in r0
r2 = composite aten::linear(input=%2, weight=%0, bias=%1) in r1
r3 = scope "loss" in r0 inferred
depends size(%2, 0) = "4"
n0: %0 = sg::parameter(name="weight") : f32[2,3] @s0 grad
n1: %1 = sg::parameter(name="bias") : f32[2] @s1 grad
n2: %2 = sg::input(name="x") : f32[4,3] @s2
n3: %3 = aten::t(self=%0) : f32[3,2]{1,3} @s0 grad | r2 grad_mode "linear.cpp:3"
n4: %4 = aten::mm(self=%2, mat2=%3) : f32[4,2] @s3 grad | r2 grad_mode saved(self) "linear.cpp:4"
n5: %5 = aten::add_.Tensor(self=%4, other=%1) : f32[4,2] @s3 grad | r2 grad_mode writes(s3@1) "linear.cpp:4"
n6: %6, %7 = aten::native_dropout(input=%5, p=0.5, train=true) : f32[4,2] @s4 grad, bool[4,2] @s5 | r1 grad_mode saved(result[1], internal=%3) free(s4)
n7: %8 = aten::t(self=%2) : f32[3,4]{1,3} @s2 | backward of n4
n8: %9 = aten::mm(self=%8, mat2=%5) : f32[3,2] @s6 | backward of n4 autocast_cuda free(s3, s5)
n9: %10 = aten::t(self=%9) : f32[2,3]{1,2} @s6 | phase "my phase"
n10: sg::gradient(parameter=%0, gradient=%10)
n11: sg::output(values=[%9, None])
)");

inline void expect_round_trip(const Graph& graph) {
  const std::string text = to_text(graph);
  Graph back = parse(text);
  const auto difference = first_difference(graph, back);
  EXPECT_FALSE(difference) << *difference << "\n" << text;
  EXPECT_EQ(to_text(back), text);
}

}  // namespace shadowgraph::samples
