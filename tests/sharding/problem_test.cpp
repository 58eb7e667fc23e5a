// Sharding as an assignment problem: nodes that share a variable, choices that edges forbid, and costs.
#include "shadowgraph/shard/problem.h"

#include <ATen/Functions.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/nn/module.h>
#include <torch/optim/adamw.h>

#include <map>

#include "models/program.h"
#include "models/registry.h"
#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/shard/apply.h"
#include "shadowgraph/shard/solver.h"
#include "sharding/plan/problem_builder.h"
#include "sharding/plan/problem_nodes.h"
#include "sharding/rules/factor_analysis.h"

namespace shadowgraph {
namespace {

using ::testing::HasSubstr;

Graph training_step(const char* name) {
  const FakeTensorMode mode({.device = at::kCUDA});
  models::BuiltModel model = models::build(name, {.tiny = true});
  torch::optim::AdamW optimizer(model.module->parameters(), torch::optim::AdamWOptions());
  return capture_training_step(models::program_of(model, &optimizer)).graph;
}

class ShardingProblems : public ::testing::Test {
 protected:
  ShardingOptions options(const char* mesh) const {
    return {.mesh = DeviceMesh::parse(mesh), .device = &device_, .interconnect = &links_};
  }
  template <class F>
  static std::string error_of(F&& f) {
    try {
      f();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
  DeviceSpec device_ = DeviceSpec::named("h100");
  Interconnect links_ = Interconnect::named("h100");
};

// Megatron's layers: column-parallel with its bias, then row-parallel with a replicated bias. GPT-2 stores weights
// transposed.
TEST_F(ShardingProblems, TensorParallelPinsCutColumnsWithTheirBias) {
  const Graph graph = training_step("gpt2");
  const ShardingProblem problem = ShardingProblem::of(graph, options("2"));
  std::map<std::string, std::string> layouts;
  for (const ShardingPin& pin : pins_of(Parallelism::kTensorParallel, graph, problem, DeviceMesh::parse("2"))) {
    layouts[pin.name] = to_string(pin.layout);
  }
  const std::string layer = "transformer.h.0.";
  EXPECT_EQ(layouts[layer + "mlp.c_fc.weight"], "S(1)");
  EXPECT_EQ(layouts[layer + "mlp.c_fc.bias"], "S(0)");
  EXPECT_EQ(layouts[layer + "mlp.c_proj.weight"], "S(0)");
  EXPECT_EQ(layouts[layer + "mlp.c_proj.bias"], "R");
  EXPECT_EQ(layouts[layer + "ln_1.weight"], "R");
}

TEST(NodeClasses, PathsWithoutNumbers) {
  EXPECT_EQ(without_numbers("layers.12.mlp.0"), "layers.#.mlp.#");
  EXPECT_EQ(without_numbers("layer1.conv2"), "layer1.conv2");
  EXPECT_EQ(without_numbers(""), "");
}

// Every node of a layer has a counterpart in the other layer, or is adjacent to the model's ends.
TEST(NodeClasses, LayersFold) {
  const Graph graph = training_step("gpt2");
  const NodeClasses folded = NodeClasses::of(graph, true);
  const NodeClasses each = NodeClasses::of(graph, false);
  EXPECT_EQ(each.count, graph.node_count());
  EXPECT_LT(folded.count, 0.65 * graph.node_count());
  IdMap<NodeId, int> seen;
  std::map<uint32_t, NodeId> first;
  for (const NodeId node : graph.nodes()) {
    const auto [at, is_new] = first.try_emplace(folded.class_of[node], node);
    if (is_new) continue;
    EXPECT_EQ(graph.node(at->second).target, graph.node(node).target);
    EXPECT_EQ(graph.node(at->second).phase, graph.node(node).phase);
    EXPECT_EQ(graph.results(at->second).size(), graph.results(node).size());
  }
}

// In a foreach operator, each parameter's layout is chosen independently of the others.
TEST_F(ShardingProblems, PlacesOfListsAreDecidedOneByOne) {
  Graph graph;
  {
    const FakeTensorMode mode({.device = at::kCUDA});
    const std::vector<at::Tensor> parameters{at::ones({64, 6}), at::ones({6, 64}), at::ones({1})};
    Capture session({.mode = {.device = at::kCUDA}});
    const std::vector<at::Tensor> gradients{parameters[0] * 2, parameters[1] * 3, parameters[2] * 4};
    at::_foreach_add_(parameters, gradients);
    graph = session.finish(at::_foreach_sqrt(parameters));
  }
  const ShardingProblem problem = ShardingProblem::of(graph, options("4"));
  problem.assignment().check();
  EXPECT_EQ(problem.coverage().nodes, problem.tensor_nodes());
  // Three layouts at once: the first parameter sharded by rows, the second by columns, the last replicated.
  const AssignmentProblem pinned = problem.pinned(std::vector<ShardingPin>{
      {"input0", Layout::parse("S(0)")}, {"input1", Layout::parse("S(1)")}, {"input2", Layout::parse("R")}});
  const AssignmentSolution solution = solve(pinned);
  ASSERT_TRUE(solution.feasible) << solution.why_infeasible;
  const GraphLayouts plan = problem.plan(solution.choice);
  const std::vector<Layout> wanted{Layout::parse("S(0)"), Layout::parse("S(1)"), Layout::parse("R")};
  for (const char* name : {"aten::_foreach_add_", "aten::_foreach_sqrt"}) {
    for (const NodeId node : nodes_calling(graph, name)) {
      const std::vector<Layout>& operands = plan.nodes[node].operands;
      ASSERT_GE(operands.size(), 3U);
      for (size_t i = 0; i < operands.size(); ++i) EXPECT_EQ(operands[i], wanted[i % 3]) << name << " " << i;
      for (size_t i = 0; i < plan.nodes[node].results.size(); ++i) EXPECT_EQ(plan.nodes[node].results[i], wanted[i]);
    }
  }
  // The plan can be applied.
  EXPECT_EQ(apply(graph, plan, 0).graph.node_count() > 0, true);
}

// The cost of a foreach operator is divided among its tensors by size; no tensor is charged for all of it.
TEST_F(ShardingProblems, PlacesOfAListShareItsTime) {
  Graph graph;
  {
    const FakeTensorMode mode({.device = at::kCUDA});
    const std::vector<at::Tensor> parameters{at::ones({1000000}), at::ones({1}), at::ones({2}), at::ones({3})};
    Capture session({.mode = {.device = at::kCUDA}});
    graph = session.finish(at::_foreach_exp(parameters));
  }
  const ShardingProblem problem = ShardingProblem::of(graph, options("4"));
  const std::vector<uint32_t> first(problem.assignment().nodes.size(), 0);
  const StepTime time = StepTime::of(graph, device_);
  double seconds = 0;
  for (const NodeId node : graph.nodes()) seconds += time.of(node).seconds;
  EXPECT_GT(time.of(nodes_calling(graph, "aten::_foreach_exp").at(0)).compute, 1e-10);
  EXPECT_NEAR(static_cast<double>(problem.cost(first).compute) * 1e-12, seconds, 1e-11);
}

// Lists of thousands of tensors: the strategies grow with the number of tensors, not with its square.
TEST_F(ShardingProblems, StrategiesOfListsAreLinearInTheirLength) {
  const auto step = [](size_t count) {
    const FakeTensorMode mode({.device = at::kCUDA});
    std::vector<at::Tensor> parameters;
    for (size_t i = 0; i < count; ++i) parameters.push_back(at::ones({8, 6}));
    Capture session({.mode = {.device = at::kCUDA}});
    at::_foreach_mul_(parameters, 2);
    return session.finish(at::_foreach_sqrt(parameters));
  };
  const auto entries = [](const Graph& graph, const char* name) {
    const auto of_axis = [](const std::vector<AxisStrategy>& axis) {
      size_t sum = 0;
      for (const AxisStrategy& strategy : axis) sum += strategy.operands.size() + strategy.results.size();
      return sum;
    };
    const ShardingRules rules;
    const FactorAnalysis analysis = FactorAnalysis::run(graph, rules);
    const NodeStrategies found = rules.strategies(graph, nodes_calling(graph, name).at(0), analysis);
    size_t sum = of_axis(found.axis);
    for (const PlaceStrategies& place : found.places) sum += place.operands.size() + of_axis(place.axis);
    return sum;
  };
  const Graph small = step(1000);
  const Graph large = step(4000);
  for (const char* name : {"aten::_foreach_mul_", "aten::_foreach_sqrt"}) {
    EXPECT_GT(entries(small, name), 4000U) << name;
    EXPECT_EQ(entries(large, name), 4 * entries(small, name)) << name;
  }
  const ShardingProblem problem = ShardingProblem::of(large, options("2"));
  const AssignmentProblem& assignment = problem.assignment();
  EXPECT_LE(assignment.nodes.size(), 8U * 4000);
  EXPECT_LE(assignment.edges.size(), 16U * 4000);
  const std::vector<uint32_t> first(assignment.nodes.size(), 0);
  EXPECT_EQ(problem.plan(first).nodes[nodes_calling(large, "aten::_foreach_sqrt").at(0)].operands.size(), 4000U);
}

// More factors than 16 bits can number: the last tensor has its own.
TEST_F(ShardingProblems, ListsMayHaveMoreThan65536Factors) {
  constexpr size_t kTensors = 40'000;
  Graph graph;
  {
    const FakeTensorMode mode({.device = at::kCUDA});
    std::vector<at::Tensor> tensors;
    for (size_t i = 0; i < kTensors; ++i) tensors.push_back(at::ones({8, 6}));
    Capture session({.mode = {.device = at::kCUDA}});
    graph = session.finish(at::_foreach_sqrt(tensors));
  }
  const NodeId node = nodes_calling(graph, "aten::_foreach_sqrt").at(0);
  const ShardingRules rules;
  const NodeStrategies strategies = rules.strategies(graph, node);
  ASSERT_EQ(strategies.places.size(), kTensors);
  for (const size_t i : {size_t{0}, size_t{32'768}, kTensors - 1}) {
    const PlaceStrategies& place = strategies.places[i];
    EXPECT_EQ(place.operands, std::vector<uint32_t>{static_cast<uint32_t>(i)});
    EXPECT_EQ(place.results, place.operands);
    ASSERT_EQ(place.axis.size(), 3U);
    EXPECT_EQ(place.axis[2].name, fmt::format("t{}.1", i));
    EXPECT_EQ(place.axis[2].extent, 6);
    EXPECT_EQ(to_string(place.axis[2].operands.at(0)), "S(1)");
  }
  // Each tensor is sharded independently, and a result as its operand.
  std::vector<Layout> layouts(kTensors, Layout::parse("S(0)"));
  layouts.back() = Layout::parse("S(1)");
  const DeviceMesh mesh = DeviceMesh::parse("2");
  EXPECT_EQ(rules.local_arguments(graph, node, layouts, layouts, mesh).size(), graph.arguments(node).size());
  std::vector<Layout> others = layouts;
  others.back() = Layout::parse("S(0)");
  EXPECT_THROW(rules.local_arguments(graph, node, layouts, others, mesh), Error);
}

TEST_F(ShardingProblems, APlanIsAChoice) {
  const Graph graph = training_step("llama3_8b");
  const ShardingProblem problem = ShardingProblem::of(graph, options("2x2"));
  const AssignmentSolution solution = solve(problem.assignment());
  const auto choice = problem.choice_of(problem.plan(solution.choice));
  ASSERT_TRUE(choice.has_value());
  EXPECT_EQ(problem.cost(*choice).total(), solution.cost);
  GraphLayouts other = problem.plan(solution.choice);
  for (const NodeId node : nodes_calling(graph, "aten::embedding"))
    other.nodes[node].results[0] = Layout::parse("S(0,3),R");
  EXPECT_FALSE(problem.choice_of(other).has_value());
}

TEST_F(ShardingProblems, TheFirstStrategiesAreOneDevicesProgram) {
  for (const char* name : {"gpt2", "llama3_8b", "bert_base", "resnet18"}) {
    const Graph graph = training_step(name);
    const ShardingProblem problem = ShardingProblem::of(graph, options("2x2"));
    problem.assignment().check();
    const std::vector<uint32_t> first(problem.assignment().nodes.size(), 0);
    const AssignmentCost cost = evaluate(problem.assignment(), first);
    EXPECT_TRUE(cost.allowed) << name;
    EXPECT_EQ(problem.cost(first).communication, 0) << name;
    // Single-device time: the kernels' times, each rounded to a picosecond.
    const StepTime time = StepTime::of(graph, device_);
    double seconds = 0;
    for (const NodeId node : graph.nodes()) seconds += time.of(node).seconds;
    EXPECT_NEAR(static_cast<double>(problem.cost(first).compute) * 1e-12, seconds, 1e-12 * graph.node_count()) << name;
    EXPECT_EQ(cost.cost, problem.cost(first).total()) << name;
    const GraphLayouts plan = problem.plan(first);
    for (const NodeId node : graph.nodes()) {
      for (const Layout& layout : plan.nodes[node].results) EXPECT_TRUE(layout.is_replicated());
    }
    EXPECT_TRUE(layout_changes(graph, plan, problem.planner()).empty());
  }
}

// Folding identical layers into one variable does not change the cost of a choice.
TEST_F(ShardingProblems, FoldedAndUnfoldedAgree) {
  const Graph graph = training_step("gpt2");
  ShardingOptions whole = options("2");
  const ShardingProblem folded = ShardingProblem::of(graph, whole);
  whole.unfold = true;
  const ShardingProblem unfolded = ShardingProblem::of(graph, whole);
  EXPECT_LT(folded.assignment().nodes.size(), unfolded.assignment().nodes.size());
  // Picks every variable's last allowed strategy that is compatible with its edges to itself.
  std::vector<uint32_t> choice;
  for (const AssignmentNode& node : folded.assignment().nodes) choice.push_back(node.costs.size() - 1);
  std::vector<uint32_t> each(unfolded.assignment().nodes.size());
  for (const NodeId node : graph.nodes()) {
    const auto variable = folded.variable_of(node);
    if (!variable) continue;
    each[*unfolded.variable_of(node)] = choice[*variable];
  }
  EXPECT_EQ(folded.cost(choice).compute, unfolded.cost(each).compute);
}

// Plan costs equal solver costs, including repeated layers and the nodes between them.
TEST_F(ShardingProblems, CostsAreTheSolvers) {
  ShardingOptions asked = options("4");
  asked.pins = {{"model.layers.*.mlp.up_proj.weight", Layout{Placement::shard(0)}},
                {"model.layers.*.self_attn.q_proj.weight", Layout{Placement::shard(1)}}};
  const ShardingProblem problem = ShardingProblem::of(training_step("llama3_8b"), asked);
  const AssignmentSolution solution = solve(problem.assignment());
  const ShardingProblem::Cost cost = problem.cost(solution.choice);
  EXPECT_GT(cost.communication, 0);
  EXPECT_EQ(cost.compute + cost.communication, solution.cost);
}

// In-place operands cannot be copied, so the optimizer uses its parameter's layout.
TEST_F(ShardingProblems, WrittenOperandsAreTied) {
  const Graph graph = training_step("gpt2");
  const MemoryUse memory = MemoryUse::of(graph);
  int64_t in_place = 0;
  for (const NodeId node : nodes_calling(graph, "aten::addcdiv_")) {
    const NodeTensors tensors = NodeTensors::of(graph, node);
    EXPECT_TRUE(memory.is_tied(graph, node, tensors.operands[0]));
    EXPECT_FALSE(memory.is_tied(graph, node, tensors.operands[2]));
    ++in_place;
  }
  EXPECT_GT(in_place, 0);
  // The transpose is a view of the weight, which the optimizer writes, but only after the last read of the view.
  for (const NodeId node : nodes_calling(graph, "aten::t")) {
    if (graph.is_placeholder(graph.value(NodeTensors::of(graph, node).operands[0]).producer)) {
      EXPECT_FALSE(memory.is_tied(graph, node, NodeTensors::of(graph, node).operands[0]));
    }
  }
}

TEST_F(ShardingProblems, PinsAreObeyedOrRefused) {
  const Graph graph = training_step("gpt2");
  ShardingOptions pinned = options("2");
  pinned.pins = {{"transformer.h.*.mlp.c_fc.weight", Layout{Placement::shard(1)}}};
  const ShardingProblem problem = ShardingProblem::of(graph, pinned);
  int found = 0;
  for (const NodeId node : graph.nodes()) {
    if (!graph.is_placeholder(node)) break;
    const std::string& name = problem.assignment().nodes[*problem.variable_of(node)].name;
    if (name.find("mlp.c_fc.weight") == std::string::npos) continue;
    ++found;
    const AssignmentNode& variable = problem.assignment().nodes[*problem.variable_of(node)];
    for (size_t s = 0; s < variable.costs.size(); ++s) {
      EXPECT_EQ(variable.costs[s] == kForbidden, variable.strategies[s] != "-> S(1)") << variable.strategies[s];
    }
  }
  EXPECT_GT(found, 0);

  pinned.pins = {{"nothing.of.this.name", Layout{Placement::shard(0)}}};
  EXPECT_THAT(error_of([&] { ShardingProblem::of(graph, pinned); }), HasSubstr("nothing.of.this.name"));
  pinned.pins = {{"transformer.wte.weight", Layout{Placement::shard(7)}}};
  EXPECT_THAT(error_of([&] { ShardingProblem::of(graph, pinned); }), HasSubstr("is not possible"));
  pinned.pins = {{"transformer.wte.weight", Layout{Placement::shard(0), Placement::replicate()}}};
  EXPECT_THAT(error_of([&] { ShardingProblem::of(graph, pinned); }), HasSubstr("does not match mesh x=2"));
  // Options can pin one of two folded layers, which unfolds them; pins given afterwards cannot.
  const ShardingPin one{"transformer.h.0.mlp.c_fc.weight", Layout{Placement::shard(1)}};
  pinned.pins = {one};
  ShardingProblem::of(graph, pinned).assignment().check();
  EXPECT_THAT(error_of([&] { ShardingProblem::of(graph, options("2")).pinned({{one}}); }), HasSubstr("2 nodes"));
}

TEST_F(ShardingProblems, MissingOptionsAreNamed) {
  const Graph graph = training_step("gpt2");
  ShardingOptions incomplete = options("2");
  incomplete.device = nullptr;
  EXPECT_THAT(error_of([&] { ShardingProblem::of(graph, incomplete); }), HasSubstr("device"));
  incomplete = options("2");
  incomplete.interconnect = nullptr;
  EXPECT_THAT(error_of([&] { ShardingProblem::of(graph, incomplete); }), HasSubstr("interconnect"));
  incomplete = options("2");
  incomplete.mesh = {};
  EXPECT_THAT(error_of([&] { ShardingProblem::of(graph, incomplete); }), HasSubstr("mesh"));
}

TEST_F(ShardingProblems, PlansReadBackFromJson) {
  const Graph graph = training_step("bert_base");
  const ShardingProblem problem = ShardingProblem::of(graph, options("2x2"));
  std::vector<uint32_t> choice;
  for (const AssignmentNode& node : problem.assignment().nodes) choice.push_back(node.costs.size() / 2);
  const GraphLayouts plan = problem.plan(choice);
  const nlohmann::json json = to_json(plan, graph);
  const GraphLayouts again = graph_layouts_from_json(nlohmann::json::parse(json.dump()), graph);
  EXPECT_EQ(to_json(again, graph), json);

  const Graph other = training_step("gpt2");
  EXPECT_THAT(error_of([&] { graph_layouts_from_json(json, other); }), HasSubstr("in this graph"));
  for (const auto& [path, value] :
       std::vector<std::pair<std::string, nlohmann::json>>{{"/version", 2},
                                                           {"/format", "x"},
                                                           {"/mesh", 3},
                                                           {"/mesh/0/size", 0},
                                                           {"/mesh/0/size", "2"},
                                                           {"/nodes/0/node", -1},
                                                           {"/nodes/0/node", 1e9},
                                                           {"/nodes/3/results/0", "S(0)"},
                                                           {"/nodes/3/results/0", "Q,R"},
                                                           {"/nodes/3/results", nlohmann::json::array()},
                                                           {"/nodes/3/results", nullptr}}) {
    nlohmann::json broken = json;
    broken[nlohmann::json::json_pointer(path)] = value;
    EXPECT_THROW(graph_layouts_from_json(broken, graph), Error) << path << " " << value;
  }
  nlohmann::json missing = json;
  missing["nodes"].erase(5);
  EXPECT_THAT(error_of([&] { graph_layouts_from_json(missing, graph); }), HasSubstr("nodes lacks n"));
}

}  // namespace
}  // namespace shadowgraph
