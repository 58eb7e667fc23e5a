// The graph of one rank: its text, refused plans, and memory that matches its timeline.

#include "shadowgraph/shard/apply.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "core/fake/process_groups.h"
#include "shadowgraph/graph/verify.h"
#include "shadowgraph/passes/recompute.h"
#include "shadowgraph/profile/memory.h"
#include "shadowgraph/shard/simulate.h"
#include "tests/counting_allocator.h"
#include "tests/ir/samples.h"
#include "tests/sharding/captured_step.h"
#include "tests/sharding/random_plan.h"

namespace shadowgraph {
namespace {

// y = relu(x w), in place; the tests shard both the batch and the columns of w.
constexpr const char* kProduct = R"(operator aten::mm(Tensor self, Tensor mat2) -> Tensor
operator aten::relu_(Tensor(a!) self) -> Tensor(a!)
operator aten::sum(Tensor self, *, ScalarType? dtype=None) -> Tensor
s0 = 192 cpu parameter
s1 = 256 cpu input
s2 = 192 cpu temporary
s3 = 8 cpu temporary
r1 = module "linear" "Linear" call 0 in r0
n0: %0 = sg::parameter(name="w") : f64[8,3] @s0 grad
n1: %1 = sg::input(name="x") : f64[4,8] @s1
n2: %2 = aten::mm(self=%1, mat2=%0) : f64[4,3] @s2 | r1 grad_mode saved(self, mat2) "net.cpp:7"
n3: %3 = aten::relu_(self=%2) : f64[4,3] @s2 | r1 writes(s2@1) saved(result[0])
n4: %4 = aten::sum(self=%3) : f64[] @s3 | backward of n2 free(s2) note("why"="test")
n5: sg::output(values=[%4])
)";

// Parses the layouts of the nodes in order: "operand operand -> result".
GraphLayouts plan_of(const Graph& graph, const char* mesh, const std::vector<std::string>& lines) {
  GraphLayouts plan;
  plan.mesh = DeviceMesh::parse(mesh);
  size_t next = 0;
  for (const NodeId node : graph.nodes()) {
    bool results = false;
    std::istringstream words(lines.at(next++));
    for (std::string word; words >> word;) {
      if (word == "->") {
        results = true;
      } else {
        (results ? plan.nodes[node].results : plan.nodes[node].operands).push_back(Layout::parse(word));
      }
    }
  }
  return plan;
}

TEST(Apply, WritesAnOrdinaryGraphOfLocalSizes) {
  const Graph graph = samples::graph_of(kProduct);
  // The inner dimension is sharded, so the result is a partial sum, reduced before the write.
  const GraphLayouts plan =
      plan_of(graph, "tp=2", {"-> S(0)", "-> R", "S(1) S(0) -> P(sum)", "R -> R", "R -> R", "R ->"});
  EXPECT_THROW(apply(graph, plan, 0), UnsupportedError);  // relu_ would write to a copy of its operand

  const GraphLayouts right =
      plan_of(graph, "tp=2", {"-> S(0)", "-> R", "S(0) R -> S(0)", "S(0) -> S(0)", "S(0) -> P(sum)", "R ->"});
  const ShardedGraph rank = apply(graph, right, 1);
  verify(rank.graph);
  const std::string text = to_text(rank.graph);
  for (const char* line : {
           "meta \"sharding.mesh\" = \"tp=2\"",
           "meta \"sharding.rank\" = \"1\"",
           "%0 = sg::parameter(name=\"w\") : f64[4,3] @s0 grad | note(\"layout\"=\"S(0)\", \"whole_sizes\"=\"8,3\")",
           "%1 = sg::input(name=\"x\") : f64[4,8] @s1 | note(\"layout\"=\"R\", \"whole_sizes\"=\"4,8\")",
           "aten::slice.Tensor(self=%1, start=2, end=4) : f64[2,8] @s1+16 | r1 grad_mode "
           "note(\"redistribution\"=\"R -> S(0)\") \"net.cpp:7\"",
           "sg_c10d::process_group(group_name=\"tp\", size=2, rank=1, ranks=[0, 1], axis=\"tp\")",
           "_c10d_functional::all_gather_into_tensor(input=%0, group_size=2, group_name=\"tp\") : f64[8,3]",
           // Autograd saves the local tensors, not the redistributed copies that the product reads.
           "aten::mm(self=%3, mat2=%5) : f64[2,3] @s4 | r1 grad_mode saved(internal=%1, internal=%0) free(s2, s3)",
           "_c10d_functional::all_reduce(input=%8, reduce_op=\"sum\", group_name=\"tp\") : f64[]",
           "note(\"why\"=\"test\")",
       }) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
  }
  ASSERT_EQ(rank.inputs.size(), 2U);
  EXPECT_EQ(rank.inputs[0].name, "w");
  EXPECT_EQ(to_string(rank.inputs[0].layout), "S(0)");
  EXPECT_EQ(rank.inputs[0].sizes, (std::vector<int64_t>{8, 3}));
  // The sharded graph round-trips through its text.
  const ShardedGraph again = ShardedGraph::of(parse(text));
  EXPECT_EQ(again.rank, 1);
  EXPECT_EQ(again.mesh.to_string(), "tp=2");
  EXPECT_EQ(again.outputs.size(), 1U);
  EXPECT_EQ(again.inputs[1].sizes, (std::vector<int64_t>{4, 8}));
  EXPECT_THROW(ShardedGraph::of(samples::graph_of(kProduct)), Error);
  for (const char* number : {"2", "-1", "x", "", "1x", "99999999999999999999"}) {
    std::string other = text;
    const std::string_view said = "meta \"sharding.rank\" = \"1\"";
    other.replace(other.find(said), said.size(), std::string(said.substr(0, said.size() - 2)) + number + "\"");
    EXPECT_THROW(ShardedGraph::of(parse(other)), Error) << number;
  }
}

TEST(Apply, SaysWhatIsWrongWithAPlan) {
  const Graph graph = samples::graph_of(kProduct);
  const auto message = [&](const std::vector<std::string>& lines, const char* mesh = "2", int64_t rank = 0) {
    try {
      apply(graph, plan_of(graph, mesh, lines), rank);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  const std::string partial = message({"-> S(0)", "-> S(1)", "S(1) S(0) -> P(sum)", "R -> R", "R -> R", "R ->"});
  EXPECT_NE(partial.find("aten::relu_"), std::string::npos) << partial;
  EXPECT_NE(partial.find("with layout P(sum), but the plan requires R"), std::string::npos) << partial;
  const std::string none = message({"-> R", "-> R", "S(0) S(0) -> R", "R -> R", "R -> R", "R ->"});
  EXPECT_NE(none.find("[S(0); S(0)] to [R]"), std::string::npos) << none;
  const std::string divides = message({"-> S(1)", "-> R", "R R -> R", "R -> R", "R -> R", "R ->"});
  EXPECT_NE(divides.find("sizes [8, 3] cannot have layout S(1)"), std::string::npos) << divides;
  const std::string few = message({"-> R", "-> R", "R -> R", "R -> R", "R -> R", "R ->"});
  EXPECT_NE(few.find("1 operand layouts"), std::string::npos) << few;
  const std::string back = message({"-> R", "-> R", "R R -> R", "R -> R", "R -> R", "P(sum) ->"});
  EXPECT_NE(back.find("no redistribution from R to P(sum)"), std::string::npos) << back;
  const std::string rank = message({"-> R", "-> R", "R R -> R", "R -> R", "R -> R", "R ->"}, "2", 2);
  EXPECT_NE(rank.find("rank 2 is not in mesh"), std::string::npos) << rank;
}

// Two placeholders alias one storage, which can have only one layout.
TEST(Apply, PlaceholdersOfOneMemoryLieAlike) {
  const Graph graph = samples::graph_of(R"(operator aten::sum(Tensor self, *, ScalarType? dtype=None) -> Tensor
s0 = 256 cpu input
s1 = 8 cpu temporary
s2 = 8 cpu temporary
n0: %0 = sg::input(name="x") : f64[4,8] @s0
n1: %1 = sg::input(name="y") : f64[4,8] @s0
n2: %2 = aten::sum(self=%0) : f64[] @s1
n3: %3 = aten::sum(self=%1) : f64[] @s2
n4: sg::output(values=[%2, %3])
)");
  const auto applied = [&](const std::string& x, const std::string& y) {
    return apply(graph, plan_of(graph, "2", {"-> " + x, "-> " + y, x + " -> P(sum)", y + " -> P(sum)", "R R ->"}), 0);
  };
  verify(applied("S(0)", "S(0)").graph);
  for (const auto& [x, y] : {std::pair("S(0)", "S(1)"), std::pair("R", "S(0)"), std::pair("S(0)", "R")}) {
    try {
      applied(x, y);
      ADD_FAILURE() << x << " and " << y << " are accepted";
    } catch (const UnsupportedError& error) {
      EXPECT_NE(std::string(error.what()).find("it shares its memory with"), std::string::npos) << error.what();
    }
  }
}

// One all-gather serves both products of the forward phase; backward gathers again.
TEST(Apply, CopiesAreSharedWithinAPhase) {
  const Graph graph = samples::graph_of(R"(operator aten::mm(Tensor self, Tensor mat2) -> Tensor
s0 = 128 cpu parameter
s1 = 128 cpu input
s2 = 128 cpu temporary
s3 = 128 cpu temporary
s4 = 128 cpu temporary
n0: %0 = sg::parameter(name="w") : f64[4,4] @s0
n1: %1 = sg::input(name="x") : f64[4,4] @s1
n2: %2 = aten::mm(self=%1, mat2=%0) : f64[4,4] @s2
n3: %3 = aten::mm(self=%2, mat2=%0) : f64[4,4] @s3 | free(s2)
n4: %4 = aten::mm(self=%3, mat2=%0) : f64[4,4] @s4 | backward free(s3)
n5: sg::output(values=[%4])
)");
  const GraphLayouts plan = plan_of(graph, "2", {"-> S(0)", "-> R", "R R -> R", "R R -> R", "R R -> R", "R ->"});
  const ShardedGraph rank = apply(graph, plan, 0);
  verify(rank.graph);
  const auto gathers = nodes_calling(rank.graph, "_c10d_functional::all_gather_into_tensor");
  ASSERT_EQ(gathers.size(), 2U);
  EXPECT_EQ(rank.graph.phase_name(rank.graph.node(gathers[1]).phase), "backward");
  // The redistributed copy is freed after the second product.
  const auto products = nodes_calling(rank.graph, "aten::mm");
  const StorageId copy = rank.graph.value(rank.graph.results(gathers[0])[0].ref.value).storage;
  EXPECT_EQ(rank.graph.storage(copy).freed_after, products[1]);
}

TEST(Apply, RandomPartsAreRefusedUnlessAllowed) {
  const Graph graph =
      samples::graph_of(R"(operator aten::native_dropout(Tensor input, float p, bool? train) -> (Tensor, Tensor)
s0 = 128 cpu input
s1 = 128 cpu temporary
s2 = 16 cpu temporary
n0: %0 = sg::input(name="x") : f64[4,4] @s0
n1: %1, %2 = aten::native_dropout(input=%0, p=0.5, train=true) : f64[4,4] @s1, bool[4,4] @s2
n2: sg::output(values=[%1])
)");
  const GraphLayouts plan = plan_of(graph, "2", {"-> S(0)", "S(0) -> S(0) S(0)", "S(0) ->"});
  EXPECT_THROW(apply(graph, plan, 0), UnsupportedError);
  verify(apply(graph, plan, 0, {.shard_random = true}).graph);
  // If the random tensor is replicated, every rank draws the same numbers as a single device.
  const GraphLayouts whole = plan_of(graph, "2", {"-> S(0)", "R -> R R", "R ->"});
  const at::Tensor x = at::ones({4, 4}, at::kDouble);
  at::manual_seed(5);
  const SimulatedRun run = simulate(apply_to_all(graph, whole), std::vector<at::Tensor>{x});
  const at::Tensor after = at::rand({1});
  at::manual_seed(5);
  Interpreter one(graph);
  const ReplayResult expected = one.run(Bindings().in_order({x}));
  EXPECT_TRUE(at::equal(run.outputs.at(0), expected.outputs.at(0)));
  EXPECT_TRUE(at::equal(at::rand({1}), after));
}

// Runs one rank with stub collectives and reads the allocator after each node. Keeps each storage until the point where
// the graph frees it.
class CountedRank final : public Interpreter {
 public:
  // `held` bytes are allocated before the run. Scalar tensors created by calls are not part of the program.
  CountedRank(const Graph& graph, CountingAllocator& allocator, int64_t held)
      : Interpreter(graph), allocator_(allocator), before_(allocator.live - held) {}
  std::vector<int64_t> live;

 protected:
  void run_node(NodeId node) override {
    Interpreter::run_node(node);
    graph().for_each_output(node, [&](ValueId v) {
      if (graph().value(v).kind == ValueKind::kTensor) held_[graph().value(v).storage] = value(v).toTensor().storage();
    });
    live.push_back(allocator_.live - before_);
    for (const StorageId storage : graph().frees(node)) held_[storage] = c10::Storage();
  }
  void call_function(NodeId node, const RegisteredFunction& function, torch::jit::Stack& stack) override {
    EXPECT_EQ(graph().target(node).name(), process_group_target().name());
    stack.clear();
  }
  void call_operator(NodeId node, const c10::OperatorHandle& op, torch::jit::Stack& stack) override {
    if (!graph().facts(node).collective) return Interpreter::call_operator(node, op, stack);
    if (graph().target(node).name() == "_c10d_functional::wait_tensor") return;
    const ValueId result = graph().results(node)[0].ref.value;
    const auto sizes = graph().sizes(result);
    const at::Tensor made = at::ones(c10::IntArrayRef(sizes.data(), sizes.size()), stack[0].toTensor().options());
    stack.clear();
    stack.emplace_back(made);
  }

 private:
  CountingAllocator& allocator_;
  int64_t before_;
  std::unordered_map<StorageId, c10::Storage> held_;
};

TEST(Apply, ARankHoldsWhatItsTimelineSaysAfterEveryNode) {
  CountingAllocator& allocator = CountingAllocator::install();
  for (const char* name : {"gpt2", "llama3_8b", "resnet18"}) {
    const CapturedStep step = capture_step(name, StepOptimizer::kAdamW, 4);
    PlanMaker maker(step.graph);
    const GraphLayouts plan = maker.random(DeviceMesh::parse("2x2"), 3, 0.7);
    const ShardedGraph rank = apply(step.graph, plan, 2);
    const MemoryTimeline timeline = MemoryTimeline::of(rank.graph);
    int64_t constants = 0;  // bytes of constants held by the graph
    std::set<StorageId> seen;
    for (const NodeId node : rank.graph.nodes()) {
      if (rank.graph.node(node).target != target_of(Builtin::kConstant)) continue;
      const StorageId storage = rank.graph.value(rank.graph.results(node)[0].ref.value).storage;
      if (seen.insert(storage).second) constants += rank.graph.storage(storage).bytes;
    }
    const int64_t before = allocator.live;
    std::vector<at::Tensor> inputs;
    for (size_t i = 0; i < step.inputs.size(); ++i) inputs.push_back(local_input(rank, i, step.inputs[i]));
    CountedRank counted(rank.graph, allocator, allocator.live - before + constants);
    counted.run(Bindings().in_order(inputs));
    ASSERT_EQ(counted.live.size(), timeline.steps());
    int64_t peak = 0;
    for (uint32_t i = 0; i < timeline.steps(); ++i) {
      ASSERT_EQ(counted.live[i], timeline.total(i)) << name << ": " << to_text(rank.graph, timeline.node(i));
      peak = std::max(peak, counted.live[i]);
    }
    EXPECT_EQ(peak, peak_of_live_bytes(rank.graph));
  }
}

// Partial gradients are freed after the reduction, even if the program keeps their storage until the end.
TEST(Apply, PartsOfWhatIsHeldDieWithTheirSum) {
  const Graph graph = samples::graph_of(R"(operator aten::mm(Tensor self, Tensor mat2) -> Tensor
operator aten::detach(Tensor(a) self) -> Tensor(a)
s0 = 192 cpu parameter
s1 = 256 cpu input
s2 = 96 cpu input
s3 = 192 cpu gradient
n0: %0 = sg::parameter(name="w") : f64[8,3] @s0 grad
n1: %1 = sg::input(name="x") : f64[8,4] @s1
n2: %2 = sg::input(name="dy") : f64[4,3] @s2
n3: %3 = aten::mm(self=%1, mat2=%2) : f64[8,3] @s3 | backward
n4: %4 = aten::detach(self=%3) : f64[8,3] @s3 | backward
n5: sg::gradient(parameter=%0, gradient=%4)
)");
  const GraphLayouts plan =
      plan_of(graph, "tp=2", {"-> R", "-> S(1)", "-> S(0)", "S(1) S(0) -> P(sum)", "R -> R", "R R ->"});
  const Graph rank = apply(graph, plan, 0).graph;
  const NodeId sum = nodes_calling(rank, "_c10d_functional::all_reduce").at(0);
  const StorageId parts = rank.value(rank.find_argument(sum, "input")->ref.value).storage;
  EXPECT_EQ(rank.storage(parts).freed_after, sum);
  const StorageId held = rank.value(rank.find_argument(rank.last(), "gradient")->ref.value).storage;
  EXPECT_NE(held, parts);
  EXPECT_FALSE(rank.storage(held).freed_after.valid());
}

// A redistributed copy is valid for one version of its source: after a write to the base, a view's copy is made again.
TEST(Apply, AViewThatIsReadBeforeAndAfterAWriteIsCopiedTwice) {
  const Graph graph = samples::graph_of(R"(operator aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)
operator aten::relu(Tensor self) -> Tensor
operator aten::relu_(Tensor(a!) self) -> Tensor(a!)
s0 = 128 cpu input
s1 = 128 cpu temporary
s2 = 128 cpu temporary
n0: %0 = sg::input(name="x") : f64[4,4] @s0
n1: %1 = aten::view(self=%0, size=[4, 4]) : f64[4,4] @s0
n2: %2 = aten::relu(self=%1) : f64[4,4] @s1
n3: %3 = aten::relu_(self=%0) : f64[4,4] @s0 | writes(s0@1)
n4: %4 = aten::relu(self=%1) : f64[4,4] @s2
n5: sg::output(values=[%2, %4])
)");
  const GraphLayouts plan =
      plan_of(graph, "2", {"-> S(0)", "S(0) -> S(0)", "R -> R", "S(0) -> S(0)", "R -> R", "R R ->"});
  const ShardedGraph rank = apply(graph, plan, 0);
  verify(rank.graph);
  const auto gathers = nodes_calling(rank.graph, "_c10d_functional::all_gather_into_tensor");
  ASSERT_EQ(gathers.size(), 2U) << to_text(rank.graph);
  EXPECT_TRUE(rank.graph.is_before(nodes_calling(rank.graph, "aten::relu_")[0], gathers[1]));
}

// Guards on the unsharded size are dropped, because the local size differs from the captured one.
TEST(Apply, SizesOfTensorsThatAreCutAreNotDependedOn) {
  const Graph graph = samples::graph_of(R"(operator aten::relu(Tensor self) -> Tensor
s0 = 128 cpu input
s1 = 128 cpu input
s2 = 128 cpu temporary
s3 = 128 cpu temporary
depends size(%0, 0) = "4"
depends sizes(%0) = "[4, 4]"
depends size(%1, 0) = "4"
depends sizes(%1) = "[4, 4]"
n0: %0 = sg::input(name="cut") : f64[4,4] @s0
n1: %1 = sg::input(name="whole") : f64[4,4] @s1
n2: %2 = aten::relu(self=%0) : f64[4,4] @s2
n3: %3 = aten::relu(self=%1) : f64[4,4] @s3
n4: sg::output(values=[%2, %3])
)");
  ASSERT_EQ(graph.guards.size(), 4U);
  const GraphLayouts plan = plan_of(graph, "2", {"-> S(0)", "-> R", "S(0) -> S(0)", "R -> R", "S(0) R ->"});
  const ShardedGraph rank = apply(graph, plan, 0);
  ASSERT_EQ(rank.graph.guards.size(), 2U) << to_text(rank.graph);
  for (const Guard& guard : rank.graph.guards) EXPECT_EQ(rank.graph.sizes(guard.value)[0], 4);
}

}  // namespace
}  // namespace shadowgraph
