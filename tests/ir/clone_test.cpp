// Copies of graphs, whole and in part.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "ir/records.h"
#include "shadowgraph/graph/edit.h"
#include "tests/ir/samples.h"
#include "tests/passes/random_graph.h"

namespace shadowgraph {
namespace {

TEST(IrClone, HasTheSameContentAndTheSameIds) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    Graph graph = random_graph(random, 300);
    std::vector<NodeId> dead;
    for (NodeId n : graph.nodes()) {
      if (graph.can_erase(n)) dead.push_back(n);
    }
    graph.erase(dead);
    graph.set_note(graph.last(), "key", "value");
    Graph copy = clone(graph);
    EXPECT_FALSE(first_difference(graph, copy));
    EXPECT_NO_THROW(verify(copy));
    for (NodeId n : graph.nodes()) ASSERT_EQ(copy.node(n).next, graph.node(n).next);
    // The copies are independent.
    const std::string text = to_text(graph);
    copy.erase(copy.last());
    copy.set_note(copy.last(), "key", "other");
    EXPECT_EQ(to_text(graph), text);
    EXPECT_NO_THROW(verify(copy));
    EXPECT_NO_THROW(verify(graph));
  }
}

TEST(IrClone, EveryAttributeComesAlong) {
  Graph graph = parse(samples::kTraining);
  graph.set_note(NodeId(4), "a", "b");
  EXPECT_FALSE(first_difference(graph, clone(graph)));
}

const char* const kBlock =
    "operator aten::t(Tensor(a) self) -> Tensor(a)\noperator aten::mm(Tensor self, Tensor mat2) -> Tensor\n"
    "operator aten::mul_.Tensor(Tensor(a!) self, Tensor other) -> Tensor(a!)\n"
    "s0 = 16 cpu input\ns1 = 16 cpu input\ns2 = 16 cpu temporary\ns3 = 8 cpu constant\ns4 = 16 cpu temporary\n"
    "c0 = f32[2] \"AACAPwAAAEA=\"\n"
    "r1 = module \"fc\" \"Linear\" call 0 in r0\n"
    "%0 = sg::input(name=\"a\") : f32[2,2] @s0\n%1 = sg::input(name=\"w\") : f32[2,2] @s1\n"
    "%2 = sg::constant(data=c0) : f32[2] @s3\n"
    "%3 = aten::t(self=%1) : f32[2,2]{1,2} @s1 | r1\n"
    "%4 = aten::mm(self=%0, mat2=%3) : f32[2,2] @s2 | r1 phase \"mine\" saved(mat2, internal=%5) note(\"k\"=\"v\") "
    "\"a.cpp:1\"\n"
    "%5 = aten::mm(self=%4, mat2=%4) : f32[2,2] @s4 | of n4 free(s2)\n"
    "%6 = aten::mul_.Tensor(self=%5, other=%2) : f32[2,2] @s4\n"
    "sg::output(values=[%6, None, %0])\n";

const char* const kAround =
    "operator aten::relu(Tensor self) -> Tensor\n"
    "s0 = 16 cpu input\ns1 = 64 cpu parameter\ns2 = 16 cpu temporary\ns3 = 16 cpu temporary\n"
    "r1 = module \"outer\" \"Net\" call 0 in r0\n"
    "%0 = sg::input(name=\"x\") : f32[2,2] @s0\n%1 = sg::parameter(name=\"p\") : f32[2,2] @s1+4\n"
    "%2 = aten::relu(self=%0) : f32[2,2] @s2 | r1\n"
    "%3 = aten::relu(self=%0) : f32[2,2] @s3 | r1 free(s2)\n"
    "sg::output(values=[%3])\n";

TEST(IrSplice, PutsAPieceIntoAGraph) {
  Graph graph = samples::graph_of(kAround);
  const Graph piece = samples::graph_of(kBlock);
  const ValueId inputs[] = {ValueId(2), ValueId(1)};
  const auto outputs = splice(graph, graph.last(), piece, inputs);
  ASSERT_EQ(outputs.size(), 3U);
  EXPECT_FALSE(outputs[1].valid());
  EXPECT_EQ(outputs[2], ValueId(2));
  graph.replace_all_uses_with(ValueId(3), outputs[0]);
  EXPECT_NO_THROW(verify(graph)) << to_text(graph);
  EXPECT_EQ(to_text(graph),
            "shadowgraph 1 libtorch " TORCH_VERSION
            "\n"
            "operator aten::relu(Tensor self) -> Tensor\noperator aten::t(Tensor(a) self) -> Tensor(a)\n"
            "operator aten::mm(Tensor self, Tensor mat2) -> Tensor\n"
            "operator aten::mul_.Tensor(Tensor(a!) self, Tensor other) -> Tensor(a!)\n"
            "s0 = 16 cpu input\ns1 = 64 cpu parameter\ns2 = 8 cpu constant\ns3 = 16 cpu temporary\n"
            "s4 = 16 cpu temporary\ns5 = 16 cpu temporary\ns6 = 16 cpu temporary\n"
            "c0 = f32[2] \"AACAPwAAAEA=\"\n"
            "r1 = module \"outer\" \"Net\" call 0 in r0\nr2 = module \"fc\" \"Linear\" call 0 in r0\n"
            "n0: %0 = sg::input(name=\"x\") : f32[2,2] @s0\nn1: %1 = sg::parameter(name=\"p\") : f32[2,2] @s1+4\n"
            "n2: %2 = sg::constant(data=c0) : f32[2] @s2\n"
            "n3: %3 = aten::relu(self=%0) : f32[2,2] @s3 | r1\nn4: %4 = aten::relu(self=%0) : f32[2,2] @s4 | r1\n"
            "n5: %5 = aten::t(self=%1) : f32[2,2]{1,2} @s1+4 | r2\n"
            "n6: %6 = aten::mm(self=%3, mat2=%5) : f32[2,2] @s5 | r2 phase \"mine\" saved(mat2, internal=%7) free(s3) "
            "note(\"k\"=\"v\") \"a.cpp:1\"\n"
            "n7: %7 = aten::mm(self=%6, mat2=%6) : f32[2,2] @s6 | of n6 free(s5)\n"
            "n8: %8 = aten::mul_.Tensor(self=%7, other=%2) : f32[2,2] @s6 | writes(s6@1)\n"
            "n9: sg::output(values=[%8])\n");
  samples::expect_round_trip(graph);
}

TEST(IrSplice, Refusals) {
  const Graph piece = samples::graph_of(kBlock);
  const auto refused = [&](NodeId position, std::vector<ValueId> inputs, const char* why) {
    Graph graph = samples::graph_of(kAround);
    const std::string text = to_text(graph);
    try {
      splice(graph, position, piece, inputs);
      ADD_FAILURE() << "not refused: " << why;
    } catch (const GraphError& error) {
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    }
    EXPECT_EQ(to_text(graph), text);
  };
  refused(NodeId(4), {ValueId(2)}, "has 2 placeholders, but 1 values are given");
  refused(NodeId(4), {ValueId(2), ValueId(1), ValueId(1)}, "has 2 placeholders, but 3 values are given");
  refused(NodeId(3), {ValueId(3), ValueId(1)}, "not defined before the insertion point");
  refused(NodeId(4), {ValueId(77), ValueId(1)}, "does not exist");
  Graph other = samples::graph_of(kAround);
  other.set_geometry(ValueId(1),
                     {.sizes = std::vector<int64_t>{4}, .strides = std::vector<int64_t>{1}, .storage = StorageId(1)});
  EXPECT_THROW(splice(other, NodeId(4), piece, std::vector{ValueId(2), ValueId(1)}), GraphError);
  other = samples::graph_of(kAround);
  mutable_value(other, ValueId(1)).offset = 13;  // the view of w exceeds its storage
  mutable_storage(other, StorageId(1)).bytes = 64;
  EXPECT_THROW(splice(other, NodeId(4), piece, std::vector{ValueId(2), ValueId(1)}), GraphError);
}

TEST(IrExtract, CutsOutAndPutsBack) {
  int cut = 0;
  for (uint32_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    Graph graph = random_graph(random, 60);
    std::vector<NodeId> nodes;
    for (NodeId n : graph.nodes()) {
      if (!graph.is_placeholder(n) && n != graph.last() && random() % 2 == 0) nodes.push_back(n);
    }
    const Subgraph piece = extract(graph, nodes);
    const auto found = violations(piece.graph);
    ASSERT_TRUE(found.empty()) << found[0].message << "\n" << to_text(piece.graph);
    samples::expect_round_trip(piece.graph);
    EXPECT_EQ(piece.graph.node_count(), nodes.size() + piece.inputs.size() + 1);
    // At the end, after all its inputs.
    const auto outputs = splice(graph, NodeId(), piece.graph, piece.inputs);
    ASSERT_EQ(outputs.size(), piece.outputs.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      EXPECT_EQ(type_text(graph, outputs[i]), type_text(graph, piece.outputs[i]));
    }
    const auto after = violations(graph);
    ASSERT_TRUE(after.empty()) << after[0].message;
    ++cut;
  }
  EXPECT_EQ(cut, 40);
}

// x and its second half y: values bound to them must have the same relative offset.
TEST(IrNodeCopier, BindsAliasesAtTheirDistanceAlone) {
  const Graph from = samples::graph_of(R"(s0 = 16 cpu input
n0: %0 = sg::input(name="x") : f32[4] @s0
n1: %1 = sg::input(name="y") : f32[2] @s0+2
n2: sg::output(values=[%0, %1])
)");
  Graph into = samples::graph_of(R"(s0 = 32 cpu input
s1 = 8 cpu input
n0: %0 = sg::input(name="a") : f32[4] @s0+4
n1: %1 = sg::input(name="b") : f32[2] @s0+6
n2: %2 = sg::input(name="near") : f32[2] @s0+5
n3: %3 = sg::input(name="elsewhere") : f32[2] @s1
n4: sg::output(values=[%0, %1, %2, %3])
)");
  const auto bound_to = [&](uint32_t second) {
    NodeCopier copier(from, into);
    copier.bind(ValueId(0), ValueId(0));
    copier.bind(ValueId(1), ValueId(second));
  };
  EXPECT_NO_THROW(bound_to(1));
  EXPECT_THROW(bound_to(2), GraphError);
  EXPECT_THROW(bound_to(3), GraphError);
}

}  // namespace
}  // namespace shadowgraph
