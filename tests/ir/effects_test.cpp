// Versions, reads and writes.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "shadowgraph/graph/analysis.h"
#include "tests/ir/samples.h"

namespace shadowgraph {
namespace {

std::string describe(const Effects& effects, NodeId n) {
  std::string text;
  for (const StorageVersion& r : effects.reads(n)) {
    text += (effects.is_generator(r.storage) ? "rng@" : "s" + std::to_string(r.storage.index) + "@") +
            std::to_string(r.version) + " ";
  }
  text += "->";
  for (const StorageWrite& w : effects.writes(n)) {
    text += (effects.is_generator(w.storage) ? " rng:" : " s" + std::to_string(w.storage.index) + ":") +
            std::to_string(w.before) + "-" + std::to_string(w.after);
  }
  return text;
}

TEST(IrEffects, WritesThroughAViewMakeAVersionForAll) {
  const Graph graph = samples::graph_of(
      "operator aten::t(Tensor(a) self) -> Tensor(a)\n"
      "operator aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)\n"
      "operator aten::relu(Tensor self) -> Tensor\n"
      "operator aten::_foreach_zero_(Tensor(a!)[] self) -> ()\n"
      "s0 = 16 cpu input\ns1 = 16 cpu temporary\n"
      "%0 = sg::input(name=\"x\") : f32[2,2] @s0\n"
      "%1 = aten::t(self=%0) : f32[2,2]{1,2} @s0\n"
      "%2 = aten::add_.Tensor(self=%1, other=%0) : f32[2,2]{1,2} @s0\n"
      "%3 = aten::relu(self=%0) : f32[2,2] @s1\n"
      "%4 = aten::add_.Tensor(self=%0, other=%3) : f32[2,2] @s0\n"
      "aten::_foreach_zero_(self=[%3, %1, %0])\n"
      "sg::output(values=[%1])\n");
  const Effects effects = Effects::of(graph);
  EXPECT_EQ(describe(effects, NodeId(0)), "->");
  EXPECT_EQ(describe(effects, NodeId(1)), "s0@0 ->");
  EXPECT_EQ(describe(effects, NodeId(2)), "s0@0 -> s0:0-1");
  EXPECT_EQ(describe(effects, NodeId(3)), "s0@1 ->");
  EXPECT_EQ(describe(effects, NodeId(4)), "s0@1 s1@0 -> s0:1-2");
  EXPECT_EQ(describe(effects, NodeId(5)), "s1@0 s0@2 -> s1:0-1 s0:2-3");
  EXPECT_EQ(describe(effects, NodeId(6)), "s0@3 ->");
  EXPECT_EQ(effects.final_version(StorageId(0)), 3U);
  const bool pure[] = {true, true, false, true, false, false, false};
  for (uint32_t i = 0; i < 7; ++i) EXPECT_EQ(effects.is_pure(NodeId(i)), pure[i]) << i;
  EXPECT_NE(to_text(graph).find("aten::_foreach_zero_(self=[%3, %1, %0]) | writes(s1@1, s0@3)\n"), std::string::npos);
  samples::expect_round_trip(graph);
}

TEST(IrEffects, ViewsAndEmptyLikeLookAtGeometryOnly) {
  const Graph graph = samples::graph_of(
      "operator aten::t(Tensor(a) self) -> Tensor(a)\n"
      "operator aten::contiguous(Tensor(a) self, *, MemoryFormat memory_format=0) -> Tensor(a)\n"
      "operator aten::zeros_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, "
      "bool? "
      "pin_memory=None, MemoryFormat? memory_format=None) -> Tensor\n"
      "operator aten::relu(Tensor self) -> Tensor\n"
      "s0 = 16 cpu input\ns1 = 16 cpu temporary\ns2 = 16 cpu temporary\ns3 = 16 cpu temporary\n"
      "%0 = sg::input(name=\"x\") : f32[2,2] @s0\n"
      "%1 = aten::t(self=%0) : f32[2,2]{1,2} @s0\n"
      "%2 = sg::alias(source=%0) : f32[4] @s0\n"
      "%3 = aten::zeros_like(self=%0) : f32[2,2] @s1\n"
      "%4 = aten::contiguous(self=%1) : f32[2,2] @s2\n"
      "%5 = aten::relu(self=%0) : f32[2,2] @s3\n");
  const Effects effects = Effects::of(graph);
  const bool geometry_only[] = {false, true, true, true, false, false};
  for (uint32_t i = 0; i < 6; ++i) EXPECT_EQ(effects.geometry_only(NodeId(i)), geometry_only[i]) << i;
  EXPECT_EQ(effects.reads(NodeId(1)).size(), 1U);  // the storage must be allocated
}

// An argument that the graph cannot represent makes the call opaque, including its effects on operands.
TEST(IrEffects, AViewThatIsGivenSomethingOpaqueReadsContents) {
  const Graph graph = samples::graph_of(
      "operator aten::select.int(Tensor(a) self, int dim, SymInt index) -> Tensor(a)\n"
      "s0 = 16 cpu input\n"
      "%0 = sg::input(name=\"x\") : f32[2,2] @s0\n"
      "%1 = aten::select.int(self=%0, dim=0, index=0) : f32[2] @s0\n"
      "%2 = aten::select.int(self=%0, dim=0, index=opaque(\"SymInt\")) : f32[2] @s0\n");
  const Effects effects = Effects::of(graph);
  EXPECT_TRUE(effects.geometry_only(NodeId(1)));
  EXPECT_FALSE(effects.geometry_only(NodeId(2)));
  EXPECT_EQ(describe(effects, NodeId(1)), "s0@0 ->");
  EXPECT_EQ(describe(effects, NodeId(2)), "s0@0 -> s0:0-1");
}

TEST(IrEffects, CollectivesKeepTheirOrder) {
  const Graph graph = samples::graph_of(
      "operator _c10d_functional::all_reduce(Tensor input, str reduce_op, str group_name) -> Tensor\n"
      "operator _c10d_functional::wait_tensor(Tensor(a) tensor) -> Tensor(a)\n"
      "s0 = 16 cpu input\ns1 = 16 cpu temporary\n"
      "%0 = sg::input(name=\"x\") : f32[2,2] @s0\n"
      "%1 = _c10d_functional::all_reduce(input=%0, reduce_op=\"sum\", group_name=\"0\") : f32[2,2] @s1\n"
      "%2 = _c10d_functional::wait_tensor(tensor=%1) : f32[2,2] @s1\n");
  const Effects effects = Effects::of(graph);
  ASSERT_TRUE(effects.collectives().valid());
  EXPECT_EQ(effects.final_version(effects.collectives()), 2U);
  EXPECT_EQ(effects.pseudo_storage_count(), 1U);
  EXPECT_TRUE(effects.collective(NodeId(1)));
  EXPECT_FALSE(effects.is_pure(NodeId(1)));
  EXPECT_FALSE(effects.is_pure(NodeId(2)));
  EXPECT_TRUE(effects.is_pure(NodeId(0)));
}

TEST(IrEffects, BatchNormWritesItsStatisticsInTrainingOnly) {
  const auto effects_with = [](const char* training, const char* mean) {
    const Graph graph = samples::graph_of(
        "operator aten::native_batch_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? "
        "running_var, bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor)\n"
        "s0 = 8 cpu input\ns1 = 8 cpu buffer\ns2 = 8 cpu buffer\ns3 = 24 cpu temporary\n"
        "%0 = sg::input(name=\"x\") : f32[1,2] @s0\n%1 = sg::buffer(name=\"m\") : f32[2] @s1\n"
        "%2 = sg::buffer(name=\"v\") : f32[2] @s2\n"
        "%3, %4, %5 = aten::native_batch_norm(input=%0, weight=None, bias=None, running_mean=" +
        std::string(mean) + ", running_var=%2, training=" + training +
        ", momentum=0.1, eps=1e-05) : f32[1,2] @s3, f32[2] @s3, f32[2] @s3\n");
    return describe(Effects::of(graph), NodeId(3));
  };
  EXPECT_EQ(effects_with("true", "%1"), "s0@0 s1@0 s2@0 -> s1:0-1 s2:0-1");
  EXPECT_EQ(effects_with("true", "None"), "s0@0 s2@0 -> s2:0-1");
  EXPECT_EQ(effects_with("false", "%1"), "s0@0 s1@0 s2@0 ->");
}

// A fused optimizer step writes gradients only if a grad scaler's factor is divided out; compared with the kernel.
TEST(IrEffects, FusedStepsWriteGradientsForAScalerOnly) {
  const auto effects_with = [](const char* scale) {
    const Graph graph = samples::graph_of(
        "operator aten::_fused_sgd_(Tensor(a!)[] self, Tensor(b!)[] grads, Tensor(c!)[] momentum_buffer_list, *, float "
        "weight_decay, float momentum, float lr, float dampening, bool nesterov, bool maximize, bool is_first_step, "
        "Tensor? grad_scale=None, Tensor? found_inf=None) -> ()\n"
        "s0 = 8 cpu input\ns1 = 8 cpu input\ns2 = 4 cpu input\n"
        "%0 = sg::input(name=\"p\") : f32[2] @s0\n%1 = sg::input(name=\"g\") : f32[2] @s1\n"
        "%2 = sg::input(name=\"scale\") : f32[] @s2\n"
        "aten::_fused_sgd_(self=[%0], grads=[%1], momentum_buffer_list=[], weight_decay=0.0, momentum=0.0, lr=0.1, "
        "dampening=0.0, nesterov=false, maximize=false, is_first_step=false, grad_scale=" +
        std::string(scale) + ", found_inf=None)\n");
    return describe(Effects::of(graph), NodeId(3));
  };
  EXPECT_EQ(effects_with("None"), "s0@0 s1@0 -> s0:0-1");
  EXPECT_EQ(effects_with("%2"), "s0@0 s1@0 s2@0 -> s0:0-1 s1:0-1");
  for (const bool scaled : {false, true}) {
    const at::Tensor before = at::rand({3});
    const at::Tensor gradient = before.clone();
    const auto scale = scaled ? std::optional<at::Tensor>(at::full({}, 2.0)) : std::nullopt;
    const auto no_overflow = scaled ? std::optional<at::Tensor>(at::zeros({})) : std::nullopt;
    at::_fused_sgd_({at::rand({3})}, {gradient}, {at::rand({3})}, 0.1, 0.9, 0.1, 0, false, true, false, scale,
                    no_overflow);
    EXPECT_EQ(at::equal(gradient, before), !scaled);
    const at::Tensor again = before.clone();
    at::_fused_adamw_({at::rand({3})}, {again}, {at::rand({3})}, {at::rand({3})}, {}, {at::ones({})}, 0.1, 0.9, 0.99,
                      0.01, 1e-8, false, true, scale, no_overflow);
    EXPECT_EQ(at::equal(again, before), !scaled);
  }
}

TEST(IrEffects, RandomNodesWriteTheGeneratorOfTheirDevice) {
  Graph graph = parse(samples::kTraining);
  const TargetId rand = graph.intern_operator("aten::rand.generator");
  const auto with_generator = [&](c10::Device device) {
    return graph.insert_before(NodeId(6), rand,
                               std::vector{graph.int_list({}), Argument::of_device(device, ArgumentKind::kGenerator),
                                           Argument::none(), Argument::none(), Argument::none(), Argument::none()});
  };
  const NodeId cpu = with_generator(c10::Device(c10::kCPU));
  const NodeId cpu0 = with_generator(c10::Device(c10::kCPU, 0));
  const NodeId cuda = with_generator(c10::Device(c10::kCUDA, 0));
  const Effects effects = Effects::of(graph);
  ASSERT_EQ(effects.generators().size(), 2U);
  EXPECT_EQ(describe(effects, cpu), "rng@0 -> rng:0-1");
  EXPECT_EQ(describe(effects, cpu0), "rng@1 -> rng:1-2");
  EXPECT_EQ(describe(effects, cuda), "rng@0 -> rng:0-1");
  EXPECT_EQ(describe(effects, NodeId(6)), "s3@1 rng@1 -> rng:1-2");  // native_dropout on cuda:0
  EXPECT_EQ(effects.generators()[1].device, c10::Device(c10::kCUDA, 0));
  EXPECT_TRUE(effects.random(cpu));
  EXPECT_FALSE(effects.is_pure(cpu));
}

TEST(IrEffects, HostReadsAndUnknownTargets) {
  const Graph graph = samples::graph_of(
      "operator aten::item(Tensor self) -> Scalar\nfunction my::leaf(...) -> ...\nfunction my::seen(Any x, Tensor? y) "
      "-> "
      "()\nfunction my::told(Tensor(a!) x, Tensor y) -> ()\n"
      "s0 = 4 cpu input\ns1 = 4 cpu input\n"
      "%0 = sg::input(name=\"x\") : f32[] @s0\n%1 = sg::input(name=\"y\") : f32[] @s1\n"
      "%2 = aten::item(self=%0) : float\nmy::leaf(%0, [%1], 3)\nmy::leaf()\nmy::seen(x=opaque(\"Thing\"), y=%1)\n"
      "my::told(x=%0, y=%1)\n");
  const Effects effects = Effects::of(graph);
  EXPECT_TRUE(effects.host_read(NodeId(2)));
  EXPECT_FALSE(effects.is_pure(NodeId(2)));
  EXPECT_EQ(describe(effects, NodeId(3)), "s0@0 s1@0 -> s0:0-1 s1:0-1");
  EXPECT_EQ(describe(effects, NodeId(4)), "->");
  EXPECT_FALSE(effects.is_pure(NodeId(4)));
  EXPECT_EQ(describe(effects, NodeId(5)), "s1@1 -> s1:1-2");
  EXPECT_EQ(describe(effects, NodeId(6)), "s0@1 s1@2 -> s0:1-2");
  for (uint32_t i = 0; i < 7; ++i) EXPECT_EQ(effects.unknown(NodeId(i)), i >= 3 && i <= 5) << i;
  samples::expect_round_trip(graph);
}

}  // namespace
}  // namespace shadowgraph
