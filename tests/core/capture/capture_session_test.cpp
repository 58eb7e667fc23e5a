// Captures of small programs: phases, regions, aliases, lifetimes, guards.
#include <ATen/ScalarOps.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "shadowgraph/capture/capture.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/graph/verify.h"

namespace shadowgraph {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::vector<std::string> operators_of(const Graph& graph) {
  std::vector<std::string> names;
  for (const NodeId node : graph.nodes()) {
    if (graph.target(node).kind() == TargetKind::kOperator) names.push_back(graph.target(node).name());
  }
  return names;
}

NodeId find_node(const Graph& graph, const std::string& name, int skip = 0) {
  for (const NodeId node : graph.nodes()) {
    if (graph.target(node).name() == name && skip-- == 0) return node;
  }
  throw std::runtime_error("no " + name + " in\n" + to_text(graph));
}

std::string module_of(const Graph& graph, NodeId node) {
  for (RegionId region = graph.node(node).region; region.valid(); region = graph.region(region).parent) {
    if (graph.region(region).kind == RegionKind::kModule) return graph.text(graph.region(region).name);
  }
  return "";
}

// The textbook example of guards: a branch on the rank of the input gives two graphs.
at::Tensor two_branches(const at::Tensor& x) { return x.dim() == 3 ? x * 2 + 1 : x - 5; }

Graph capture_two_branches(at::IntArrayRef sizes) {
  const FakeTensorMode mode;
  const at::Tensor x = at::empty(sizes);
  Capture session;
  session.name_input(x, "x");
  return session.finish({two_branches(x)});
}

TEST(Capture, TwoBranchesGiveTwoGraphsThatSayWhatTheyDependedOn) {
  const Graph three = capture_two_branches({2, 3, 4});
  EXPECT_THAT(operators_of(three), ElementsAre("aten::mul.Scalar", "aten::add.Scalar"));
  ASSERT_EQ(three.guards.size(), 1);
  EXPECT_EQ(three.guards[0].kind, Guard::Kind::kRank);
  EXPECT_EQ(three.guards[0].observed, "3");
  EXPECT_EQ(three.target(three.value(three.guards[0].value).producer).name(), "sg::input");

  const Graph two = capture_two_branches({2, 3});
  EXPECT_THAT(operators_of(two), ElementsAre("aten::sub.Scalar"));
  ASSERT_EQ(two.guards.size(), 1);
  EXPECT_EQ(two.guards[0].observed, "2");
}

TEST(Capture, ASizeAskedForIsADependency) {
  Capture session;
  const at::Tensor x = at::empty({4, 6});
  session.name_input(x, "x");
  at::Tensor sum = x.new_zeros({});
  for (int64_t i = 0; i < x.size(1); i += 3) sum = sum + x.select(1, i).sum();
  const Graph graph = session.finish({sum});
  ASSERT_EQ(graph.guards.size(), 1);
  EXPECT_EQ(graph.guards[0].kind, Guard::Kind::kSize);
  EXPECT_EQ(graph.guards[0].dimension, 1);
  EXPECT_EQ(graph.guards[0].observed, "6");
}

TEST(Capture, ASizeCountedFromTheEndIsThatDimension) {
  Capture session;
  const at::Tensor x = at::empty({4, 6, 8});
  session.name_input(x, "x");
  const at::Tensor sum = x.sum() * (x.size(-2) - x.size(-1));
  const Graph graph = session.finish({sum});
  ASSERT_EQ(graph.guards.size(), 2);
  EXPECT_EQ(graph.guards[0].dimension, 1);
  EXPECT_EQ(graph.guards[0].observed, "6");
  EXPECT_EQ(graph.guards[1].dimension, 2);
  EXPECT_EQ(graph.guards[1].observed, "8");
}

// Parameters belong to the model, so branches on their sizes need no guard.
TEST(Capture, ASizeOfAParameterIsNoDependency) {
  const FakeTensorMode mode;
  torch::nn::Linear linear(6, 4);
  const at::Tensor x = at::empty({2, 6});
  Capture session;
  session.name_module(*linear);
  session.name_input(x, "x");
  const at::Tensor y = x * linear->weight[0];
  const Graph graph = session.finish({y * linear->weight.size(1)});
  EXPECT_THAT(operators_of(graph), ElementsAre("aten::select.int", "aten::mul.Tensor", "aten::mul.Scalar"));
  EXPECT_TRUE(graph.guards.empty());
}

TEST(Capture, AStorageThatGrowsIsAsLargeAsItEverGets) {
  Capture session;
  const at::Tensor x = at::zeros({2});
  x.resize_({100});
  x.resize_({3});
  const Graph graph = session.finish({x});
  verify(graph);
  EXPECT_EQ(graph.storage(graph.value(graph.results(find_node(graph, "aten::resize_"))[0].ref.value).storage).bytes,
            400);
}

TEST(Capture, WrappedNumbersStayNumbers) {
  Capture session;
  const at::Tensor x = at::empty({2});
  const auto wrapped = [](const at::Scalar& number) { return at::native::wrapped_scalar_tensor(number); };
  const Graph graph = session.finish({at::mul(x, wrapped(2.5)), at::add(x, wrapped(3))});
  verify(graph);
  EXPECT_EQ(to_text(parse(to_text(graph))), to_text(graph));
  EXPECT_EQ(graph.find_argument(find_node(graph, "aten::mul.Tensor"), "other")->kind, ArgumentKind::kFloat);
  EXPECT_EQ(graph.find_argument(find_node(graph, "aten::mul.Tensor"), "other")->d, 2.5);
  EXPECT_EQ(graph.find_argument(find_node(graph, "aten::add.Tensor"), "other")->i, 3);
}

struct Block : torch::nn::Module {
  Block() {
    first = register_module("first", torch::nn::Linear(8, 8));
    second = register_module("second", torch::nn::Linear(8, 8));
  }
  at::Tensor forward(const at::Tensor& x) {
    ModuleScope scope(*this);
    // at::linear is composite; nn::Linear's forward calls addmm itself.
    return second(at::gelu(at::linear(x, first->weight, first->bias))) + x;
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
};

struct Net : torch::nn::Module {
  Net() {
    block = register_module("block", std::make_shared<Block>());
    head = register_module("head", torch::nn::Linear(8, 2));
  }
  at::Tensor forward(const at::Tensor& x) {
    ModuleScope scope(*this);
    return head(block->forward(block->forward(x)));
  }
  std::shared_ptr<Block> block;
  torch::nn::Linear head{nullptr};
};

Graph capture_net(c10::Device device = at::kCPU) {
  const FakeTensorMode mode({.device = device});
  auto net = std::make_shared<Net>();
  torch::optim::SGD sgd(net->parameters(), 0.1);
  return capture_training_step(
             *net, {at::empty({4, 8})}, [](const Tensors& outputs) { return outputs[0].sum(); }, sgd)
      .graph;
}

TEST(Capture, NodesKnowTheirModuleCompositeAndCall) {
  const Graph graph = capture_net();
  verify(graph);
  const NodeId first = find_node(graph, "aten::addmm", 0);
  const NodeId again = find_node(graph, "aten::addmm", 2);
  EXPECT_EQ(module_of(graph, first), "block.first");
  EXPECT_EQ(module_of(graph, find_node(graph, "aten::gelu")), "block");
  EXPECT_EQ(module_of(graph, again), "block.first");
  EXPECT_EQ(module_of(graph, find_node(graph, "aten::addmm", 4)), "head");

  const Region& composite = graph.region(graph.node(first).region);
  EXPECT_EQ(composite.kind, RegionKind::kComposite);
  EXPECT_EQ(graph.text(composite.name), "aten::linear");
  EXPECT_EQ(graph.region_arguments(graph.node(first).region).size(), 3);
  const Region& inferred = graph.region(composite.parent);
  EXPECT_TRUE(inferred.inferred);
  const Region& block = graph.region(inferred.parent);
  EXPECT_FALSE(block.inferred);
  EXPECT_EQ(graph.text(block.class_name), "Block");
  EXPECT_EQ(block.call, 0);
  const Region& block_again = graph.region(graph.region(graph.region(graph.node(again).region).parent).parent);
  EXPECT_EQ(block_again.call, 1);
}

// Two layers whose names share a prefix; the scope of one uses the weight of the other.
struct Borrower : torch::nn::Module {
  Borrower() {
    layer1 = register_module("layer1", torch::nn::Linear(4, 4));
    layer10 = register_module("layer10", torch::nn::Linear(4, 4));
  }
  at::Tensor forward(const at::Tensor& x) {
    const ModuleScope scope(*layer1);
    return x * layer10->weight;
  }
  torch::nn::Linear layer1{nullptr}, layer10{nullptr};
};

TEST(Capture, ALayerIsNotInsideAnotherWhoseNameItBeginsWith) {
  const FakeTensorMode mode;
  Borrower net;
  Capture session;
  session.name_module(net);
  const Graph graph = session.finish({net.forward(at::empty({4, 4}))});
  const NodeId mul = find_node(graph, "aten::mul.Tensor");
  EXPECT_EQ(module_of(graph, mul), "layer1");
  EXPECT_FALSE(graph.region(graph.node(mul).region).inferred);
}

TEST(Capture, WhatUsesOneModulesParametersInARowIsOneCallOfIt) {
  const FakeTensorMode mode;
  Net net;
  Capture session;
  session.name_module(net);
  const at::Tensor x = at::empty({8, 8});
  const auto& first = *net.block->first;
  const at::Tensor y = x * first.weight + first.bias;
  const Graph graph = session.finish({(y * net.block->second->weight) * first.weight});
  const auto region_of_mul = [&](int skip) { return graph.node(find_node(graph, "aten::mul.Tensor", skip)).region; };
  EXPECT_TRUE(graph.region(region_of_mul(0)).inferred);
  EXPECT_EQ(graph.node(find_node(graph, "aten::add.Tensor")).region, region_of_mul(0));
  EXPECT_NE(region_of_mul(2), region_of_mul(0));
  EXPECT_EQ(graph.region(region_of_mul(0)).call, 0);
  EXPECT_EQ(graph.region(region_of_mul(2)).call, 1);
}

TEST(Capture, BackwardNodesLinkToTheirForwardNodes) {
  const Graph graph = capture_net(c10::Device(at::kCUDA, 0));
  const NodeId backward = find_node(graph, "aten::gelu_backward");
  ASSERT_TRUE(backward.valid());
  EXPECT_EQ(graph.phase_name(graph.node(backward).phase), "backward");
  ASSERT_TRUE(graph.node(backward).forward.valid());
  // Backward visits nodes in reverse, so its first gelu_backward belongs to the last gelu.
  EXPECT_EQ(graph.node(backward).forward, find_node(graph, "aten::gelu", 1));
  EXPECT_EQ(graph.node(backward).region, graph.node(graph.node(backward).forward).region);
  const NodeId update = find_node(graph, "aten::add_.Tensor");
  ASSERT_TRUE(update.valid());
}

TEST(Capture, PhasesCoverTheStep) {
  const Graph graph = capture_net();
  std::map<std::string, int> phases;
  for (const NodeId node : graph.nodes()) {
    if (graph.target(node).kind() == TargetKind::kOperator) ++phases[graph.phase_name(graph.node(node).phase)];
  }
  EXPECT_GT(phases["forward"], 0);
  EXPECT_GT(phases["backward"], 0);
  // SGD without momentum: one add_ per parameter.
  EXPECT_EQ(phases["optimizer"], 6);
}

// A parameter used twice: the second gradient is accumulated in place exactly where eager does so.
TEST(Capture, GradientsAccumulateInPlaceAsInEager) {
  const FakeTensorMode mode;
  auto w = at::empty({3, 3}).set_requires_grad(true);
  Capture session;
  session.name_parameter(w, "w");
  const auto x = at::empty({2, 3});
  x.mm(w).sum().backward();
  x.mm(w).sum().backward();
  const Graph graph = session.finish({});
  EXPECT_THAT(operators_of(graph), ::testing::Contains("aten::add_.Tensor"));
  EXPECT_THAT(operators_of(graph), ::testing::Not(::testing::Contains("aten::add.Tensor")));
}

TEST(Capture, StoragesDieWhenTheProgramDropsThem) {
  Capture session;
  at::Tensor a = at::empty({256});
  at::Tensor b = a.exp();
  at::Tensor view = b.view({16, 16});
  b.reset();
  at::Tensor c = view.cos();
  view.reset();
  at::Tensor d = c.sin();
  const Graph graph = session.finish({d});
  const auto storage_of = [&](const std::string& name) {
    return graph.value(graph.results(find_node(graph, name))[0].ref.value).storage;
  };
  // The view keeps exp's storage alive until cos has run.
  EXPECT_EQ(graph.storage(storage_of("aten::exp")).freed_after, find_node(graph, "aten::cos"));
  EXPECT_EQ(storage_of("aten::view"), storage_of("aten::exp"));
  EXPECT_FALSE(graph.storage(storage_of("aten::sin")).freed_after.valid());
  EXPECT_EQ(graph.storage(storage_of("aten::exp")).bytes, 1024);
}

TEST(Capture, AnUnknownTensorOnAKnownStorageIsAnAlias) {
  const FakeTensorMode mode;
  at::Tensor p = at::empty({2, 3}).set_requires_grad(true);
  Capture session;
  session.name_parameter(p, "p");
  at::Tensor data = p.variable_data();  // not the result of an operator
  data.mul_(2);
  at::Tensor y = p.exp();
  const Graph graph = session.finish({y});
  verify(graph);
  const auto storage = [&](NodeId node) { return graph.value(graph.results(node)[0].ref.value).storage; };
  EXPECT_EQ(storage(find_node(graph, "aten::mul_.Scalar")), storage(find_node(graph, "sg::parameter")));
}

TEST(Capture, SavedTensorsSayWhichOperandOrResultTheyAre) {
  Capture session;
  const at::Tensor a = at::empty({4, 5}).set_requires_grad(true);
  const at::Tensor b = at::empty({5, 6}).set_requires_grad(true);
  const at::Tensor y = a.mm(b).exp();
  const Graph graph = session.finish({y});
  const auto of_mm = graph.saved(find_node(graph, "aten::mm"));
  ASSERT_EQ(of_mm.size(), 2);
  EXPECT_EQ(of_mm[0].role, SavedRole::kArgument);
  const auto of_exp = graph.saved(find_node(graph, "aten::exp"));
  ASSERT_EQ(of_exp.size(), 1);
  EXPECT_EQ(of_exp[0].role, SavedRole::kResult);
}

TEST(Capture, ASavedTensorChangedInPlaceIsRefusedInBackwardAsInEager) {
  const auto program = [] {
    const at::Tensor a = at::ones({4}).set_requires_grad(true);
    at::Tensor y = a.exp();
    y.mul_(2);
    y.sum().backward();
  };
  EXPECT_THROW(program(), c10::Error);
  Capture session;
  EXPECT_THROW(program(), c10::Error);
}

TEST(Capture, AutogradSavesNoInferenceTensorAsInEager) {
  const auto program = [] {
    const at::Tensor x = [] {
      const c10::InferenceMode inference;
      return at::ones({4});
    }();
    return x * at::ones({4}).set_requires_grad(true);
  };
  const auto refused = ThrowsMessage<c10::Error>(HasSubstr("Inference tensors cannot be saved for backward"));
  EXPECT_THAT(program, refused);
  Capture session;
  EXPECT_THAT(program, refused);
}

TEST(Capture, RealTensorsFromOutsideAreConstants) {
  const at::Tensor real = at::arange(4, at::kFloat);
  Capture session;
  const at::Tensor y = at::empty({4}) + real;
  const Graph graph = session.finish({y});
  const NodeId constant = find_node(graph, "sg::constant");
  const UnfakeGuard real_again;
  EXPECT_TRUE(graph.constant(graph.arguments(constant)[0].constant).equal(real));
}

TEST(Capture, InferenceModeRecordsTheParts) {
  Capture session;
  const c10::InferenceMode inference;
  const at::Tensor y = at::linear(at::empty({2, 3}), at::empty({4, 3}), at::empty({4}));
  const Graph graph = session.finish({y});
  EXPECT_TRUE(find_node(graph, "aten::addmm").valid()) << to_text(graph);
}

TEST(Capture, FinishedTwiceIsAnError) {
  Capture session;
  session.finish({});
  EXPECT_THROW(session.finish({}), Error);
}

}  // namespace
}  // namespace shadowgraph
