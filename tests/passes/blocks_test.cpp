// Structural equality of blocks, by which find-repeats, diagrams and summaries fold layers.
#include <gtest/gtest.h>

#include "ir/analysis/structural_hash.h"
#include "shadowgraph/graph/text.h"

namespace shadowgraph {
namespace {

// Two blocks of two nodes, n2 n3 and n4 n5, between two inputs and the output; %0 and %1 are external values.
Graph blocks(const std::string& first, const std::string& second) {
  return parse(R"(shadowgraph 1 libtorch 2.13.0
operator aten::relu(Tensor self) -> Tensor
operator aten::neg(Tensor self) -> Tensor
operator aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
s0 = 16 cpu input
s1 = 16 cpu input
s2 = 16 cpu temporary
s3 = 16 cpu temporary
s4 = 16 cpu temporary
s5 = 16 cpu temporary
n0: %0 = sg::input(name="x") : f32[2,2] @s0
n1: %1 = sg::input(name="y") : f32[2,2] @s1
)" + first + second +
               "n6: sg::output(values=[%5])\n");
}

bool equal(const std::string& first, const std::string& second) {
  const Graph graph = blocks(first, second);
  BlockHashes hashes(graph);
  return hashes.of(std::vector{NodeId(2), NodeId(3)}) == hashes.of(std::vector{NodeId(4), NodeId(5)});
}

TEST(Blocks, AreEqualByOperatorsConstantsTypesAndWiring) {
  const std::string first =
      "n2: %2 = aten::relu(self=%0) : f32[2,2] @s2\nn3: %3 = aten::add.Tensor(self=%2, other=%0, alpha=1) : f32[2,2] "
      "@s3\n";
  const auto second = [](const std::string& relu, const std::string& add) {
    return "n4: %4 = aten::" + relu + " @s4\nn5: %5 = aten::add.Tensor(" + add + " @s5\n";
  };
  // Different external values, but again the same one twice.
  EXPECT_TRUE(equal(first, second("relu(self=%1) : f32[2,2]", "self=%4, other=%1, alpha=1) : f32[2,2]")));
  EXPECT_TRUE(equal(first, second("relu(self=%3) : f32[2,2]", "self=%4, other=%3, alpha=1) : f32[2,2]")));
  // Two external values instead of one.
  EXPECT_FALSE(equal(first, second("relu(self=%1) : f32[2,2]", "self=%4, other=%0, alpha=1) : f32[2,2]")));
  // Operands swapped.
  EXPECT_FALSE(equal(first, second("relu(self=%1) : f32[2,2]", "self=%1, other=%4, alpha=1) : f32[2,2]")));
  // A different operator, a different constant.
  EXPECT_FALSE(equal(first, second("neg(self=%1) : f32[2,2]", "self=%4, other=%1, alpha=1) : f32[2,2]")));
  EXPECT_FALSE(equal(first, second("relu(self=%1) : f32[2,2]", "self=%4, other=%1, alpha=2) : f32[2,2]")));
  // Different strides of a result.
  EXPECT_FALSE(equal(first, second("relu(self=%1) : f32[2,2]{1,2}", "self=%4, other=%1, alpha=1) : f32[2,2]")));
}

TEST(Blocks, LabelsAndOriginsCount) {
  const Graph graph =
      blocks("n2: %2 = aten::relu(self=%0) : f32[2,2] @s2\nn3: %3 = aten::neg(self=%2) : f32[2,2] @s3\n",
             "n4: %4 = aten::relu(self=%1) : f32[2,2] @s4\nn5: %5 = aten::neg(self=%1) : f32[2,2] @s5\n");
  BlockHashes hashes(graph);
  const std::vector first{NodeId(2), NodeId(3)};
  const std::vector second{NodeId(4), NodeId(5)};
  const auto no_label = [](NodeId) { return uint64_t{0}; };
  EXPECT_NE(hashes.of(first), hashes.of(second));
  const auto as_made = [](ValueId v) { return v == ValueId(2) ? ValueId(0) : v; };
  EXPECT_EQ(hashes.of(first, no_label, as_made), hashes.of(second));
  EXPECT_NE(hashes.of(first, [](NodeId n) { return uint64_t{n.index}; }), hashes.of(first));
}

TEST(Blocks, SiblingsRepeatByNumberOrCallInOneDirection) {
  const auto run = [](std::vector<Sibling> siblings) {
    return end_of_run(siblings, 0, [](size_t) { return uint64_t{7}; });
  };
  EXPECT_EQ(run({{"0", "A"}, {"1", "A"}, {"2", "A"}, {"4", "A"}}), 3U);
  EXPECT_EQ(run({{"3", "A"}, {"2", "A"}, {"1", "A"}, {"2", "A"}}), 3U);
  EXPECT_EQ(run({{"cell", "A", 0}, {"cell", "A", 1}, {"other", "A", 2}}), 2U);
  EXPECT_EQ(run({{"0", "A"}, {"1", "B"}}), 1U);
  EXPECT_EQ(run({{"fc1", "A"}, {"fc2", "A"}}), 1U);
  const std::vector<Sibling> three = {{"0", "A"}, {"1", "A"}, {"2", "A"}};
  EXPECT_EQ(end_of_run(three, 0, [](size_t i) { return uint64_t{i / 2}; }), 2U);
}

}  // namespace
}  // namespace shadowgraph
