// One broken graph for each rule of shadowgraph/graph/verify.h, and a test that broken graphs never crash the verifier.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "ir/records.h"
#include "tests/ir/samples.h"

namespace shadowgraph {
namespace {

Graph training() { return parse(samples::kTraining); }

// Expects a violation of `rule`, and that every message about a node prints the node.
void expect_broken(const Graph& graph, Rule rule, bool alone = true) {
  const auto found = violations(graph);
  const auto is_rule = [&](const Violation& v) { return v.rule == rule; };
  EXPECT_TRUE(std::any_of(found.begin(), found.end(), is_rule)) << "rule " << to_string(rule) << " is not reported";
  if (alone) {
    for (const Violation& v : found) EXPECT_EQ(v.rule, rule) << v.message;
  }
  EXPECT_THROW(verify(graph), GraphError);
}

void expect_broken_text(const std::string& from, const std::string& to, Rule rule, bool alone = true) {
  std::string text = samples::kTraining;
  const size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  SCOPED_TRACE(from + " -> " + to);
  expect_broken(parse(text), rule, alone);
}

TEST(IrVerifier, AcceptsTheSample) { EXPECT_TRUE(violations(training()).empty()); }

TEST(IrVerifier, SaysWhatAndShowsTheNode) {
  Graph graph = training();
  mutable_node(graph, NodeId(7)).forward = NodeId(9);
  try {
    verify(graph);
    FAIL();
  } catch (const GraphError& error) {
    EXPECT_STREQ(
        error.what(),
        "the graph violates 1 rule of shadowgraph/graph/verify.h:\n[15 forward] its forward node does not come "
        "before it\n"
        "  n7: %8 = aten::t(self=%2) : f32[3,4]{1,3} @s2 | backward of n9");
  }
}

TEST(IrVerifier, Rule1Links) {
  Graph graph = training();
  mutable_node(graph, NodeId(5)).previous = NodeId(1);
  expect_broken(graph, Rule::kLinks);
  Graph cycle = training();
  mutable_node(cycle, NodeId(5)).next = NodeId(2);
  expect_broken(cycle, Rule::kLinks, false);
  Graph lost = training();
  mutable_node(lost, NodeId(5)).next = NodeId(4000);
  expect_broken(lost, Rule::kLinks, false);
}

TEST(IrVerifier, Rule2References) {
  const auto broken = [](auto&& change) {
    Graph graph = training();
    change(graph);
    expect_broken(graph, Rule::kReferences, false);
  };
  broken([](Graph& g) { mutable_node(g, NodeId(4)).target = TargetId(999); });
  broken([](Graph& g) { mutable_node(g, NodeId(4)).region = RegionId(999); });
  broken([](Graph& g) { mutable_node(g, NodeId(4)).phase = PhaseId(99); });
  broken([](Graph& g) { mutable_node(g, NodeId(4)).source = StringId(9999); });
  broken([](Graph& g) { mutable_node(g, NodeId(4)).forward = NodeId(9999); });
  broken([](Graph& g) { mutable_node(g, NodeId(4)).arguments.offset = 1U << 30; });
  broken([](Graph& g) { mutable_node(g, NodeId(4)).saved.size = 1U << 30; });
  broken([](Graph& g) { const_cast<Argument&>(g.arguments(NodeId(4))[0]).ref.value = ValueId(9999); });
  broken([](Graph& g) { const_cast<SavedTensor&>(g.saved(NodeId(4))[0]).value = ValueId(); });
  broken([](Graph& g) { mutable_value(g, ValueId(4)).dims = 1U << 31; });
  broken([](Graph& g) { mutable_storage(g, StorageId(1)).born = NodeId(777); });
  broken([](Graph& g) { mutable_region(g, RegionId(1)).name = StringId(7777); });
  // A list that contains itself.
  broken([](Graph& g) {
    Argument list = g.make_list(std::vector{Argument::none(), Argument::none()});
    const_cast<Argument&>(g.list(list)[0]) = list;
    const_cast<Argument&>(g.list(list)[1]) = list;
    g.insert_before(NodeId(3), target_of(Builtin::kAlias), std::vector{Argument::none()});
    const_cast<Argument&>(g.arguments(NodeId(12))[0]) = list;
  });
}

TEST(IrVerifier, Rule3Order) {
  Graph graph = training();
  const Argument later[] = {Argument::of_value(ValueId(9))};
  graph.insert_before(NodeId(5), graph.node(NodeId(3)).target, later);
  expect_broken(graph, Rule::kOrder, false);
}

TEST(IrVerifier, Rule4Uses) {
  Graph graph = training();
  const_cast<Argument&>(graph.arguments(NodeId(4))[0]).ref.use = Argument::kNoUse;
  expect_broken(graph, Rule::kUses);
  Graph other = training();
  const_cast<Argument&>(other.arguments(NodeId(8))[0]).ref.value = ValueId(2);
  expect_broken(other, Rule::kUses);
  Graph lost = training();
  mutable_value(lost, ValueId(2)).first_use = Argument::kNoUse;
  expect_broken(lost, Rule::kUses);
  Graph cycle = training();
  const_cast<Use&>(cycle.use(cycle.value(ValueId(2)).last_use)).next = cycle.value(ValueId(2)).first_use;
  expect_broken(cycle, Rule::kUses);
}

TEST(IrVerifier, Rule5Results) {
  Graph graph = training();
  mutable_value(graph, ValueId(5)).producer = NodeId(4);
  expect_broken(graph, Rule::kResults);
  Graph twice = training();
  twice.set_results(NodeId(9), std::vector{Argument::of_value(ValueId(3))});
  expect_broken(twice, Rule::kResults, false);
}

TEST(IrVerifier, Rule6Arguments) {
  expect_broken_text("p=0.5", "p=1", Rule::kArguments);
  expect_broken_text("p=0.5", "p=None", Rule::kArguments);
  expect_broken_text("name=\"bias\"", "name=3", Rule::kArguments);
  expect_broken_text("values=[%9, None]", "values=[%9, \"three\"]", Rule::kArguments);
  expect_broken_text("values=[%9, None]", "values=ints[1]", Rule::kArguments);
  expect_broken_text("train=true", "train=[1]", Rule::kArguments);
  Graph graph = training();
  mutable_node(graph, NodeId(10)).arguments.size = 1;
  expect_broken(graph, Rule::kArguments, false);
  // An undefined tensor is valid for a Tensor argument, because autograd passes it.
  EXPECT_TRUE(
      violations(samples::graph_of("operator aten::neg(Tensor self) -> Tensor\naten::neg(self=None)\n")).empty());
  // So is a number, which the C++ API wraps.
  EXPECT_TRUE(
      violations(samples::graph_of("operator aten::neg(Tensor self) -> Tensor\naten::neg(self=0.5)\n")).empty());
}

TEST(IrVerifier, Rule7Returns) {
  expect_broken_text("n10: sg::gradient(parameter=%0, gradient=%10)",
                     "n10: %11 = sg::gradient(parameter=%0, gradient=%10) : int", Rule::kReturns);
  expect_broken_text(
      "n9: %10 = aten::t(self=%9) : f32[2,3]{1,2} @s6 | phase \"my phase\"\nn10: sg::gradient(parameter=%0, "
      "gradient=%10)",
      "n9: %10 = aten::t(self=%9) : int | phase \"my phase\"\nn10: sg::gradient(parameter=%0, gradient=%0)",
      Rule::kReturns, false);
}

TEST(IrVerifier, Rule8Storage) {
  expect_broken_text("f32[4,3] @s2", "f32[4,3] @s2 cpu", Rule::kStorage);
  expect_broken_text("s1 = 8 cuda:0", "s1 = -8 cuda:0", Rule::kStorage, false);
  Graph graph = training();
  mutable_value(graph, ValueId(6)).storage = StorageId(99);
  expect_broken(graph, Rule::kStorage);
}

TEST(IrVerifier, Rule9Extent) {
  expect_broken_text("s1 = 8 cuda:0", "s1 = 7 cuda:0", Rule::kExtent);
  expect_broken_text("f32[4,3] @s2", "f32[4,3] @s2+1", Rule::kExtent);
  expect_broken_text("f32[4,3] @s2", "f32[4,-3] @s2", Rule::kExtent);
  expect_broken_text("f32[4,3] @s2", "f32[9223372036854775807,3]{9223372036854775807,1} @s2", Rule::kExtent);
  EXPECT_TRUE(
      violations(samples::graph_of("s0 = 0 cpu input\n%0 = sg::input(name=\"x\") : f32[0,1000] @s0+5\n")).empty());
}

TEST(IrVerifier, Rule10Alias) {
  expect_broken_text("f32[3,2]{1,3} @s0 grad", "f32[3,2]{1,3} @s2 grad", Rule::kAlias);  // a view
  expect_broken_text("f32[4,2] @s3 grad | r2 grad_mode writes(s3@1)", "f32[4,2] @s5 grad | r2", Rule::kAlias,
                     false);  // in-place
  EXPECT_TRUE(
      violations(samples::graph_of(
                     "operator aten::contiguous(Tensor(a) self, *, MemoryFormat memory_format=contiguous_format) "
                     "-> Tensor(a)\ns0 = 8 cpu input\ns1 = 8 cpu temporary\n%0 = sg::input(name=\"x\") : f32[2] "
                     "@s0\n%1 = aten::contiguous(self=%0) : f32[2] @s1\n"))
          .empty());
}

TEST(IrVerifier, Rule11Lifetime) {
  expect_broken_text("saved(self) \"linear.cpp:4\"", "free(s2)", Rule::kLifetime);  // x is read again in backward
  expect_broken_text("s3 = 32 cuda:0 activation", "s3 = 32 cuda:0 activation born n5", Rule::kLifetime);
  // Only the operand of the last reader is freed; its result is fresh.
  const Graph read_late = samples::graph_of(
      "operator aten::relu(Tensor self) -> Tensor\ns0 = 8 cpu input\ns1 = 8 cpu temporary\ns2 = 8 cpu temporary\n"
      "s3 = 8 cpu temporary\n%0 = sg::input(name=\"x\") : f32[2] @s0\n%1 = aten::relu(self=%0) : f32[2] @s1\n"
      "%2 = aten::relu(self=%1) : f32[2] @s2 | free(s1)\n%3 = aten::relu(self=%1) : f32[2] @s3\n");
  expect_broken(read_late, Rule::kLifetime);
}

TEST(IrVerifier, Rule12Regions) {
  Graph graph = training();
  mutable_region(graph, RegionId(1)).parent = RegionId(2);
  expect_broken(graph, Rule::kRegions);
  Graph orphan = training();
  mutable_region(orphan, RegionId(3)).parent = RegionId();
  expect_broken(orphan, Rule::kRegions);
  Graph arguments = training();
  mutable_region(arguments, RegionId(2)).arguments.size = 2;
  expect_broken(arguments, Rule::kRegions);
}

TEST(IrVerifier, Rule13Placeholders) {
  Graph graph = training();
  graph.insert_before(NodeId(4), target_of(Builtin::kInput), std::vector{graph.string_argument("late")});
  expect_broken(graph, Rule::kPlaceholders);
}

TEST(IrVerifier, Rule14Output) {
  expect_broken_text("n11: sg::output(values=[%9, None])", "n11: sg::output(values=[%9])\nn12: sg::output(values=[])",
                     Rule::kOutput);
  Graph graph = training();
  const Argument pair[] = {Argument::of_value(ValueId(0)), Argument::of_value(ValueId(1))};
  graph.insert_before(NodeId(9), target_of(Builtin::kGradient), pair);
  expect_broken(graph, Rule::kOutput);
}

TEST(IrVerifier, Rule15Forward) {
  expect_broken_text("backward of n4", "backward of n7", Rule::kForward);
  Graph graph = training();  // links to erased nodes are dropped
  graph.erase(NodeId(6));
  mutable_node(graph, NodeId(7)).forward = NodeId(6);
  EXPECT_TRUE(violations(graph).empty());
  EXPECT_EQ(to_text(graph).find("of n6"), std::string::npos);
}

TEST(IrVerifier, Rule16Saved) {
  expect_broken_text("saved(self)", "saved(self=%1)", Rule::kSaved);
  expect_broken_text("saved(self)", "saved(argument[7]=%2)", Rule::kSaved);
  expect_broken_text("result[1], internal=%3", "result[1]=%0", Rule::kSaved);
  expect_broken_text("result[1], internal=%3", "result[2]=%6", Rule::kSaved);
}

TEST(IrVerifier, Rule17Frees) {
  Graph graph = training();
  mutable_storage(graph, StorageId(3)).freed_after = NodeId(9);
  expect_broken(graph, Rule::kFrees, false);
  Graph unlisted = training();
  mutable_storage(unlisted, StorageId(6)).freed_after = NodeId(11);
  expect_broken(unlisted, Rule::kFrees);
}

// Overwrites nodes, values, storages and regions with random bytes: the verifier may answer anything but must not
// crash. A graph that it accepts can be printed and round-trips.
TEST(IrVerifier, NoiseNeverCrashes) {
  std::mt19937 random(20261122);
  int good = 0;
  for (int i = 0; i < 2000; ++i) {
    Graph graph = training();
    const auto noise = [&](auto& record) {
      auto* bytes = reinterpret_cast<unsigned char*>(&record);
      bytes[random() % sizeof record] = static_cast<unsigned char>(random());
    };
    for (uint32_t changes = 1 + random() % 3; changes > 0; --changes) {
      switch (random() % 5) {
        case 0:
          noise(mutable_node(graph, NodeId(random() % graph.node_capacity())));
          break;
        case 1: {
          // Booleans and enumerations are always set by our own code; ids and ranges are what edits may get wrong.
          Value& value = mutable_value(graph, ValueId(random() % graph.value_capacity()));
          uint32_t* const fields[] = {&value.dims, &value.storage.index, &value.producer.index, &value.first_use,
                                      &value.last_use};
          *fields[random() % 5] = random() % 3 == 0 ? random() : random() % 20;
          break;
        }
        case 2: {
          const NodeId n(random() % 12);
          if (graph.is_erased(n) || !graph.in_bounds(graph.node(n)) || graph.arguments(n).empty()) break;
          auto& argument = const_cast<Argument&>(graph.arguments(n)[0]);
          argument.kind = static_cast<ArgumentKind>(random() % 13);
          if (argument.kind == ArgumentKind::kBool) {  // a bool with another bit pattern is undefined behavior
            argument.b = random() % 2 == 0;
            break;
          }
          argument.run = {static_cast<uint32_t>(random() % 40), static_cast<uint32_t>(random() % 6)};
          break;
        }
        case 3:
          mutable_storage(graph, StorageId(random() % graph.storage_count())).born = NodeId(random() % 40);
          break;
        default: {
          Region& region = mutable_region(graph, RegionId(random() % graph.region_count()));
          region.parent = RegionId(random() % 6);
          region.target = TargetId(random() % 20);
          region.arguments = {static_cast<uint32_t>(random() % 600), static_cast<uint32_t>(random() % 600)};
        }
      }
    }
    if (!violations(graph).empty()) continue;
    ++good;
    const std::string text = to_text(graph);
    ASSERT_EQ(to_text(parse(text)), text);
  }
  EXPECT_GT(good, 20);
  EXPECT_LT(good, 1500);
}

}  // namespace
}  // namespace shadowgraph
