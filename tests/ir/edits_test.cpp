// Graph edits: each leaves a graph that verifies, or throws and changes nothing.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "ir/records.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/text.h"
#include "tests/ir/samples.h"

namespace shadowgraph {
namespace {

// w -> t -> mm(x, t) @s2, saved, then relu @s3 (frees s2), neg @s4 (frees s3), an in-place add_, and the output.
const char* const kChain =
    "operator aten::t(Tensor(a) self) -> Tensor(a)\n"
    "operator aten::mm(Tensor self, Tensor mat2) -> Tensor\n"
    "operator aten::relu(Tensor self) -> Tensor\n"
    "operator aten::neg(Tensor self) -> Tensor\n"
    "operator aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)\n"
    "operator aten::cat(Tensor[] tensors, int dim=0) -> Tensor\n"
    "s0 = 16 cpu parameter\ns1 = 16 cpu input\ns2 = 16 cpu temporary\ns3 = 16 cpu temporary\ns4 = 16 cpu temporary\n"
    "r1 = module \"layer\" \"Linear\" call 0 in r0\n"
    "%0 = sg::parameter(name=\"w\") : f32[2,2] @s0\n"
    "%1 = sg::input(name=\"x\") : f32[2,2] @s1\n"
    "%2 = aten::t(self=%0) : f32[2,2]{1,2} @s0 | r1 grad_mode \"net.cpp:1\"\n"
    "%3 = aten::mm(self=%1, mat2=%2) : f32[2,2] @s2 | r1 grad_mode saved(self, mat2) \"net.cpp:1\"\n"
    "%4 = aten::relu(self=%3) : f32[2,2] @s3 | saved(result[0]) free(s2)\n"
    "%5 = aten::neg(self=%4) : f32[2,2] @s4 | saved(internal=%2) free(s3)\n"
    "%6 = aten::add_.Tensor(self=%5, other=%1) : f32[2,2] @s4\n"
    "sg::output(values=[%6])\n";
constexpr NodeId kW{0}, kX{1}, kT{2}, kMm{3}, kRelu{4}, kNeg{5}, kAdd{6}, kOutput{7};

std::vector<uint32_t> order_of(const Graph& graph) {
  std::vector<uint32_t> order;
  for (NodeId n : graph.nodes()) order.push_back(n.index);
  return order;
}

// Expects that the edit throws and leaves the graph unchanged.
template <class F>
void expect_refused(Graph& graph, F&& edit) {
  const std::string before = to_text(graph);
  EXPECT_THROW(edit(), GraphError);
  EXPECT_EQ(to_text(graph), before);
  EXPECT_NO_THROW(verify(graph));
}

Argument value(uint32_t index) { return Argument::of_value(ValueId(index)); }

TEST(IrInsertionPoint, NewNodesInheritFromTheNodeItStandsAt) {
  Graph graph = samples::graph_of(kChain);
  InsertionPoint at(graph, kMm);
  const NodeId first = at.insert(graph.node(kRelu).target, {value(1)});
  const NodeId second = at.insert(graph.node(kRelu).target, {value(2)});
  EXPECT_EQ(order_of(graph), (std::vector<uint32_t>{0, 1, 2, first.index, second.index, 3, 4, 5, 6, 7}));
  EXPECT_EQ(graph.node(first).region, RegionId(1));
  EXPECT_TRUE(graph.node(second).flags.grad_mode);
  EXPECT_EQ(graph.text(graph.node(second).source), "net.cpp:1");
  EXPECT_NO_THROW(verify(graph));
}

TEST(IrInsertionPoint, AfterKeepsTheOrderOfInsertionAndSurvivesErasing) {
  Graph graph = samples::graph_of(kChain);
  InsertionPoint at = InsertionPoint::after(graph, kNeg);
  EXPECT_EQ(at.position(), kAdd);
  const NodeId first = at.insert(graph.node(kNeg).target, {value(5)});
  graph.replace_all_uses_with(ValueId(6), ValueId(5));
  graph.erase(kAdd);
  EXPECT_EQ(at.position(), kOutput);
  const NodeId second = at.insert(graph.node(kNeg).target, {value(5)});
  EXPECT_EQ(graph.node(first).next, second);
  EXPECT_EQ(graph.node(second).next, kOutput);
  EXPECT_NO_THROW(verify(graph));
}

TEST(IrInsertionPoint, PlaceholdersFirstOutputsLast) {
  Graph graph = samples::graph_of(kChain);
  InsertionPoint among(graph, kX);
  const NodeId added = among.insert(graph.node(kRelu).target, {value(1)});
  EXPECT_EQ(graph.node(added).previous, kX);
  expect_refused(graph, [&] {
    InsertionPoint late(graph, kRelu);
    late.insert(target_of(Builtin::kInput), {graph.string_argument("y")});
  });
  InsertionPoint end = InsertionPoint::at_end(graph);
  EXPECT_EQ(graph.node(end.insert(graph.node(kRelu).target, {value(6)})).next, kOutput);
  expect_refused(graph, [&] { end.insert(target_of(Builtin::kOutput), {graph.make_list({})}); });
  EXPECT_NO_THROW(verify(graph));
}

TEST(IrInsertionPoint, OperandsMustBeMadeBefore) {
  Graph graph = samples::graph_of(kChain);
  InsertionPoint at(graph, kRelu);
  expect_refused(graph, [&] { at.insert(graph.node(kNeg).target, {value(4)}); });
  at.insert(graph.node(kNeg).target, {value(3)});
}

TEST(IrInsertionPoint, AUseAfterTheDeathOfAStorageExtendsItsLife) {
  Graph graph = samples::graph_of(kChain);
  InsertionPoint at(graph, kAdd);
  const NodeId late = at.insert(graph.node(kRelu).target, {value(3)});
  EXPECT_EQ(graph.storage(StorageId(2)).freed_after, late);
  EXPECT_TRUE(graph.frees(kRelu).empty());
  EXPECT_NO_THROW(verify(graph));
}

// Erasing the node at the insertion point lets the forward node move; once it is behind the point, it is not reused.
TEST(IrInsertionPoint, AForwardNodeThatMovedBehindThePlaceIsNotTakenOver) {
  Graph graph = samples::graph_of(kChain);
  const NodeId forward = InsertionPoint(graph, kRelu).insert(graph.node(kNeg).target, {value(1)});
  mutable_node(graph, kNeg).forward = forward;
  InsertionPoint at(graph, kNeg);
  graph.replace_all_uses_with(ValueId(5), ValueId(4));
  graph.erase(kNeg);
  const NodeId before = at.insert(graph.node(forward).target, {value(4)});
  EXPECT_EQ(graph.node(before).forward, forward);
  graph.erase(before);
  graph.move_before(forward, kOutput);
  const NodeId now = at.insert(graph.node(forward).target, {value(4)});
  EXPECT_TRUE(graph.is_before(now, forward));
  EXPECT_FALSE(graph.node(now).forward.valid());
  EXPECT_NO_THROW(verify(graph));
}

TEST(IrEdits, ErasedNodesHandOnBirthsAndDeaths) {
  Graph graph = samples::graph_of(kChain);
  // Another value in relu's storage, with a longer lifetime than relu.
  const ValueId twin = graph.add_tensor_result(
      graph.insert_before(kNeg, graph.node(kT).target, std::vector{value(4)}),
      {.sizes = graph.sizes(ValueId(4)), .strides = graph.strides(ValueId(4)), .storage = StorageId(3)});
  graph.set_arguments(kNeg, std::vector{Argument::of_value(twin)});
  graph.set_arguments(graph.value(twin).producer, std::vector{value(1)});  // moves it into the storage of x
  EXPECT_EQ(graph.value(twin).storage, StorageId(1));
  EXPECT_NO_THROW(verify(graph));
  graph.set_storage(twin, StorageId(3), 0);
  mutable_node(graph, graph.value(twin).producer).target = graph.node(kNeg).target;
  graph.erase(kRelu);
  EXPECT_EQ(graph.storage(StorageId(3)).born, graph.value(twin).producer);
  EXPECT_EQ(graph.storage(StorageId(2)).freed_after, kMm);
  EXPECT_NO_THROW(verify(graph));
}

TEST(IrEdits, AStorageThatNobodyMakesAnyMoreIsNotFreed) {
  Graph graph = samples::graph_of(kChain);
  graph.set_arguments(kNeg, std::vector{value(1)});
  graph.erase(kRelu);
  EXPECT_TRUE(graph.frees(kNeg).empty());
  EXPECT_NO_THROW(verify(graph));
}

TEST(IrEdits, EraseRefusesWhileAnotherNodeSavesAResult) {
  Graph graph = samples::graph_of(kChain);
  graph.set_arguments(kMm, std::vector{value(1), value(1)});
  EXPECT_FALSE(graph.has_uses(ValueId(2)));
  EXPECT_TRUE(graph.is_saved_elsewhere(ValueId(2)));
  EXPECT_FALSE(graph.can_erase(kT));
  expect_refused(graph, [&] { graph.erase(kT); });
  graph.replace_all_uses_with(ValueId(2), ValueId(0));
  EXPECT_EQ(graph.saved(kNeg)[0].value, ValueId(0));
  graph.erase(kT);
  EXPECT_NO_THROW(verify(graph));
}

TEST(IrEdits, EraseMany) {
  Graph graph = samples::graph_of(kChain);
  expect_refused(graph, [&] { graph.erase(std::vector{kRelu, kMm}); });
  expect_refused(graph, [&] { graph.erase(std::vector{kOutput, kAdd, kRelu}); });
  graph.erase(std::vector{kOutput, kAdd, kNeg, kRelu, kRelu, kMm, kT});
  EXPECT_EQ(order_of(graph), (std::vector<uint32_t>{0, 1}));
  EXPECT_NO_THROW(verify(graph));
  graph.erase(std::vector{kX, kW, kT});
  EXPECT_FALSE(graph.first().valid());
  EXPECT_NO_THROW(verify(graph));
}

TEST(IrEdits, MovesKeepDependencesAndDeaths) {
  Graph graph = samples::graph_of(kChain);
  expect_refused(graph, [&] { graph.move_before(kRelu, kMm); });
  expect_refused(graph, [&] { graph.move_before(kMm, kNeg); });
  expect_refused(graph, [&] { graph.move_before(kT, kX); });
  expect_refused(graph, [&] { graph.move_before(kAdd, NodeId()); });
  expect_refused(graph, [&] { graph.move_range_before(kMm, kNeg, kRelu); });
  expect_refused(graph, [&] { graph.move_range_before(kNeg, kMm, kT); });
  InsertionPoint at(graph, kNeg);
  // ..., relu, early, neg: s2 is freed after relu
  const NodeId early = at.insert(graph.node(kRelu).target, {value(1)});
  const StorageId freed[] = {StorageId(2)};
  graph.set_frees(kRelu, {});
  graph.set_frees(early, freed);
  graph.move_before(early, kMm);
  EXPECT_EQ(graph.storage(StorageId(2)).freed_after, kRelu);
  EXPECT_NO_THROW(verify(graph));
  graph.move_range_before(kT, early, kMm);  // its current position
  graph.move_range_before(early, early, kAdd);
  EXPECT_EQ(order_of(graph), (std::vector<uint32_t>{0, 1, 2, 3, 4, 5, early.index, 6, 7}));
  EXPECT_NO_THROW(verify(graph));
}

TEST(IrEdits, MovingLaterExtendsWhatItReads) {
  Graph graph = samples::graph_of(kChain);
  InsertionPoint at(graph, kRelu);
  const NodeId reader = at.insert(graph.node(kNeg).target, {value(3)});
  graph.move_before(reader, kAdd);
  EXPECT_EQ(graph.storage(StorageId(2)).freed_after, reader);
  EXPECT_NO_THROW(verify(graph));
}

TEST(IrEdits, ABackwardNodeStaysBehindItsForwardNode) {
  Graph graph = samples::graph_of(kChain);
  mutable_node(graph, kNeg).forward = kT;
  InsertionPoint at(graph, kRelu);
  const NodeId free_standing = at.insert(graph.node(kNeg).target, {value(1)});
  mutable_node(graph, kNeg).forward = free_standing;
  expect_refused(graph, [&] { graph.move_before(free_standing, kAdd); });
}

TEST(IrEdits, ReorderTakesAnyOrderThatKeepsDependences) {
  Graph graph = samples::graph_of(kChain);
  expect_refused(graph, [&] { graph.reorder(std::vector{kW, kX, kT}); });
  expect_refused(graph, [&] { graph.reorder(std::vector{kW, kX, kMm, kT, kRelu, kNeg, kAdd, kOutput}); });
  expect_refused(graph, [&] { graph.reorder(std::vector{kW, kW, kT, kMm, kRelu, kNeg, kAdd, kOutput}); });
  expect_refused(graph, [&] { graph.reorder(std::vector{kW, kX, kT, kMm, kRelu, kNeg, kOutput, kAdd}); });
  graph.reorder(std::vector{kX, kW, kT, kMm, kRelu, kNeg, kAdd, kOutput});
  EXPECT_TRUE(graph.is_before(kX, kW));
  EXPECT_NO_THROW(verify(graph));
}

TEST(IrEdits, ReplacingAnOperandMovesWhatAliasesIt) {
  Graph graph = samples::graph_of(kChain);
  // add_ now writes x, so the output returns x, and the lifetime of x's storage must extend to it.
  const StorageId freed[] = {StorageId(1)};
  graph.set_frees(kAdd, freed);
  EXPECT_EQ(graph.replace_all_uses_with(ValueId(5), ValueId(4)), 1U);
  EXPECT_EQ(graph.value(ValueId(6)).storage, StorageId(3));
  EXPECT_FALSE(graph.storage(StorageId(3)).freed_after.valid());
  EXPECT_NO_THROW(verify(graph));
}

// add_ saves its result, which was recorded under the name of the written operand.
TEST(IrEdits, WhatIsSavedAsAResultIsItWhereverTheResultGoes) {
  Graph graph = samples::graph_of(kChain);
  graph.set_saved(kAdd, std::vector<SavedTensor>{{ValueId(5), SavedRole::kResult, 0}});
  EXPECT_NO_THROW(verify(graph));
  graph.set_argument(kAdd, 0, value(4));
  EXPECT_EQ(graph.value(ValueId(6)).storage, StorageId(3));
  ASSERT_EQ(graph.saved(kAdd).size(), 1U);
  EXPECT_EQ(graph.saved(kAdd)[0].value, ValueId(6));
  EXPECT_NO_THROW(verify(graph));
}

TEST(IrEdits, ReplaceWithFilter) {
  Graph graph = samples::graph_of(kChain);
  InsertionPoint at(graph, kOutput);
  const Argument list = graph.make_list(std::vector{value(6), value(6), value(4)});
  const NodeId cat = at.insert(TargetId(graph.node(kAdd).target.index + 1), {list, Argument::of_int(0)});
  int seen = 0;
  EXPECT_EQ(graph.replace_uses_if(ValueId(6), ValueId(4),
                                  [&](NodeId user, const Argument&) { return user == cat && ++seen == 2; }),
            1U);
  EXPECT_EQ(graph.users_of(ValueId(6)), (std::vector{cat, kOutput}));
  EXPECT_EQ(graph.users_of(ValueId(4)), (std::vector{kNeg, cat}));
  EXPECT_NO_THROW(verify(graph));
  expect_refused(graph, [&] { graph.replace_all_uses_with(ValueId(3), ValueId(6)); });
}

TEST(IrEdits, AViewThatWouldReachOutsideRefusesTheReplacement) {
  Graph graph = samples::graph_of(std::string(kChain) + "");
  mutable_storage(graph, StorageId(0)).bytes = 32;
  mutable_value(graph, ValueId(2)).offset = 4;  // a view that fits only into the larger storage
  expect_refused(graph, [&] { graph.set_arguments(kT, std::vector{value(1)}); });
  EXPECT_EQ(graph.value(ValueId(2)).storage, StorageId(0));
}

TEST(IrEdits, SetArgumentsKeepsSavedTensorsAndRefusesNonsense) {
  Graph graph = samples::graph_of(kChain);
  expect_refused(graph, [&] { graph.set_arguments(kMm, std::vector{value(1)}); });
  expect_refused(graph, [&] { graph.set_arguments(kMm, std::vector{value(1), value(5)}); });
  expect_refused(graph, [&] { graph.set_argument(kMm, 2, value(1)); });
  graph.set_argument(kMm, 0, value(0));
  EXPECT_EQ(graph.saved(kMm)[0].value, ValueId(0));
  graph.set_argument(kMm, 1, Argument::of_float(1));  // a wrapped number cannot be saved
  EXPECT_EQ(graph.saved(kMm).size(), 1U);
  EXPECT_NO_THROW(verify(graph));
}

TEST(IrEdits, NodesByOperator) {
  const Graph graph = samples::graph_of(kChain);
  EXPECT_EQ(nodes_calling(graph, "aten::mm"), std::vector{kMm});
  EXPECT_EQ(nodes_calling(graph, "aten::add_"), std::vector{kAdd});
  EXPECT_EQ(nodes_calling(graph, "aten::add_.Tensor"), std::vector{kAdd});
  EXPECT_TRUE(nodes_calling(graph, "aten::add_.Scalar").empty());
  EXPECT_TRUE(nodes_calling(graph, "aten::add").empty());
}

TEST(IrEdits, AGraphThatWasMovedFromIsEmptyAndGood) {
  Graph graph = samples::graph_of(kChain);
  graph.set_note(kMm, "a", "b");
  const std::string text = to_text(graph);
  Graph other = std::move(graph);
  EXPECT_EQ(to_text(other), text);
  EXPECT_FALSE(first_difference(graph, Graph()));  // NOLINT(bugprone-use-after-move)
  EXPECT_NO_THROW(verify(graph));
  graph = parse(text);
  graph = std::move(other);
  EXPECT_EQ(to_text(graph), text);
  EXPECT_EQ(other.node_count(), 0U);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(graph.note(kMm, "a"), "b");
}

TEST(IrEdits, TargetsOfDifferentKindsAreDifferent) {
  Graph graph;
  const std::string schema = "my::op(Tensor x) -> Tensor";
  const TargetId as_operator = graph.intern_target(Target(TargetKind::kOperator, schema));
  const TargetId as_function = graph.intern_target(Target(TargetKind::kFunction, schema));
  EXPECT_NE(as_operator, as_function);
  graph.append(as_operator, {Argument::none()});
  graph.append(as_function, {Argument::none()});
  samples::expect_round_trip(graph);
}

TEST(IrNotes, RoundTripCompareAndRemove) {
  Graph graph = samples::graph_of(kChain);
  const Graph plain = samples::graph_of(kChain);
  EXPECT_FALSE(graph.has_notes(kMm));
  graph.set_note(kMm, "part", "3");
  graph.set_note(kMm, "a\"b\n\xff", "\x01 weird");
  graph.set_note(kMm, "z", "last");
  graph.set_note(kMm, "part", "4");
  EXPECT_EQ(graph.note(kMm, "part"), "4");
  EXPECT_EQ(graph.note(kMm, "none"), "");
  EXPECT_EQ(graph.note(kRelu, "part"), "");
  EXPECT_NE(to_text(graph).find(R"(note("a\"b\n\xff"="\x01 weird", "part"="4", "z"="last") "net.cpp:1")"),
            std::string::npos)
      << to_text(graph);
  samples::expect_round_trip(graph);
  EXPECT_FALSE(first_difference(from_json(to_json(graph)), graph));
  ASSERT_TRUE(first_difference(graph, plain));
  EXPECT_NE(first_difference(graph, plain)->find("its notes"), std::string::npos);
  for (const char* key : {"part", "a\"b\n\xff", "z", "none"}) graph.set_note(kMm, key, "");
  EXPECT_FALSE(first_difference(graph, plain));
  EXPECT_THROW(parse(to_text(plain) + "n8: aten::relu(self=%0) | note(\"a\"=\"b\", \"a\"=\"c\")\n"), ParseError);
  EXPECT_THROW(parse(to_text(plain) + "n8: aten::relu(self=%0) | note(\"a\"=\"\")\n"), ParseError);
}

TEST(IrOrder, LabelsSurviveAMillionInsertionsAtOnePlace) {
  Graph graph;
  const TargetId f = graph.intern_target(Target(TargetKind::kFunction, "test::f() -> ()"));
  const NodeId first = graph.append(f, {});
  const NodeId last = graph.append(f, {});
  const auto insert = [&](NodeId before) { return graph.insert_before(before, f, {}); };
  NodeId middle = last;
  for (int i = 0; i < 200'000; ++i) insert(last);             // always before the last
  for (int i = 0; i < 200'000; ++i) middle = insert(middle);  // always before the node just inserted
  for (int i = 0; i < 100'000; ++i) insert(graph.first());    // at the front
  std::mt19937 random(1);
  for (int i = 0; i < 200'000; ++i) insert(NodeId(random() % graph.node_capacity()));
  EXPECT_TRUE(graph.is_before(first, last));
  EXPECT_NO_THROW(verify(graph));
}

}  // namespace
}  // namespace shadowgraph
