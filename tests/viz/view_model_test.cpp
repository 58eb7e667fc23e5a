// What the pictures show: folding, collapsing, plumbing, phases, limits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <set>

#include "shadowgraph/draw.h"
#include "tests/profiler/test_graph.h"

namespace shadowgraph {
namespace {

using shadowgraph::testing::TestGraph;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// encoder.layer.0..n-1, each: fc (Linear: t, addmm), relu, add with the layer's input.
struct Encoder {
  TestGraph t;
  explicit Encoder(int layers, int odd_one = -1) {
    auto x = t.input("tokens", {4, 8});
    std::vector<TestGraph::Call> weights, biases;
    for (int i = 0; i < layers; ++i) {
      const std::string path = "encoder.layer." + std::to_string(i) + ".fc.";
      weights.push_back(t.parameter(path + "weight", {8, 8}));
      biases.push_back(t.parameter(path + "bias", {8}));
    }
    for (int i = 0; i < layers; ++i) {
      const std::string path = "encoder.layer." + std::to_string(i);
      auto layer = t.module(path, "Layer");
      TestGraph::Call y;
      {
        auto fc = t.module(path + ".fc", "Linear");
        const auto& weight = weights[static_cast<size_t>(i)];
        const auto transposed = t.view("aten::t", {weight}, weight.value(), {8, 8});
        y = t.call("aten::addmm", {biases[static_cast<size_t>(i)], x, transposed}, {{4, 8}});
      }
      y = t.call(i == odd_one ? "aten::gelu" : "aten::relu", {y}, {{4, 8}});
      x = t.call("aten::add.Tensor", {y, x, Argument::of_int(1)}, {{4, 8}});
    }
    t.output({x});
  }
};

std::vector<std::string> labels(const ViewModel& model) {
  std::vector<std::string> result;
  for (const ViewBox& box : model.boxes) {
    std::string text;
    for (const std::string& line : box.lines) text += (text.empty() ? "" : "|") + line;
    result.push_back(text);
  }
  return result;
}
std::vector<std::string> titles(const ViewModel& model) {
  std::vector<std::string> result;
  for (size_t c = 1; c < model.clusters.size(); ++c) result.push_back(model.clusters[c].title);
  return result;
}
// "relu->add f32[4,8]"
std::vector<std::string> edges(const ViewModel& model) {
  std::vector<std::string> result;
  for (const ViewEdge& edge : model.edges) {
    const auto name = [&](uint32_t box) { return model.boxes[box].lines.front(); };
    result.push_back(name(edge.from) + (edge.to_next_copy ? "~>" : "->") + name(edge.to) + " " + edge.label);
  }
  return result;
}

TEST(ViewModel, EqualLayersAreDrawnOnce) {
  const Encoder encoder(12);
  const ViewModel model = ViewModel::of(encoder.t.graph);
  EXPECT_THAT(titles(model), ElementsAre("encoder.layer.{0..11} x12"));
  EXPECT_EQ(model.clusters[1].subtitle, "Layer: 3 operators, 512 FLOPs each");
  EXPECT_THAT(labels(model),
              ElementsAre("tokens|f32[4,8]", "fc|addmm|bias f32[8]|weight f32[8,8]", "relu", "add", "output"));
  // The input enters the first copy, the last copy leaves, and what goes on to the next copy is marked.
  EXPECT_THAT(edges(model),
              ElementsAre("tokens->fc f32[4,8]", "fc->relu f32[4,8]", "relu->add f32[4,8]", "tokens->add f32[4,8]",
                          "add~>fc f32[4,8]", "add~>add f32[4,8]", "add->output f32[4,8]"));
  EXPECT_THAT(model.notes, Contains("33 operators are in repeated layers drawn once"));
}

TEST(ViewModel, LongLabelsAreCutToWhatFits) {
  TestGraph t;
  const std::string forty(40, 'n');
  t.output({t.input(forty, {1}), t.input(forty + "n", {1})});
  EXPECT_THAT(labels(ViewModel::of(t.graph)),
              ElementsAre(forty + "|f32[1]", std::string(37, 'n') + "...|f32[1]", "output"));
}

TEST(OperatorCategory, WhatTheOptimizerDoesIsItsOwnButViews) {
  TestGraph t;
  const auto w = t.parameter("w", {2, 3});
  t.phase = Graph::kOptimizer;
  const auto view = t.view("aten::t", {w}, w.value(), {3, 2});
  const auto step = t.call("aten::relu", {view}, {{3, 2}});
  EXPECT_EQ(category_of(t.graph, w.node), OperatorCategory::kPlaceholder);
  EXPECT_EQ(category_of(t.graph, view.node), OperatorCategory::kView);
  EXPECT_EQ(category_of(t.graph, step.node), OperatorCategory::kOptimizer);
}

TEST(ViewModel, ADifferentLayerEndsTheRun) {
  const Encoder encoder(6, 3);
  const ViewModel model = ViewModel::of(encoder.t.graph);
  EXPECT_THAT(titles(model), ElementsAre("encoder.layer", "{0..2} x3", "3", "{4..5} x2"));
  EXPECT_THAT(titles(ViewModel::of(encoder.t.graph, {.fold_repeats = false})),
              ElementsAre("encoder.layer", "0", "1", "2", "3", "4", "5"));
}

TEST(ViewModel, SameOperatorsWiredDifferentlyAreNotEqual) {
  TestGraph t;
  auto x = t.input("x", {4});
  for (int i = 0; i < 3; ++i) {
    auto scope = t.module("block." + std::to_string(i), "Block");
    const auto a = t.call("aten::relu", {x}, {{4}});
    const auto b = t.call("aten::neg", {a}, {{4}});
    // The last block subtracts the other way round.
    x = i == 2 ? t.call("aten::sub.Tensor", {b, a, Argument::of_int(1)}, {{4}})
               : t.call("aten::sub.Tensor", {a, b, Argument::of_int(1)}, {{4}});
  }
  t.output({x});
  EXPECT_THAT(titles(ViewModel::of(t.graph)), ElementsAre("block", "{0..1} x2", "2"));
}

TEST(ViewModel, ShapesAndConstantsAreStructure) {
  for (const bool shape : {true, false}) {
    TestGraph t;
    for (int i = 0; i < 2; ++i) {
      const auto x = t.input("x" + std::to_string(i), {shape && i == 1 ? 5 : 4});
      auto scope = t.module("block." + std::to_string(i), "Block");
      const auto y = t.call("aten::leaky_relu", {x, Argument::of_float(!shape && i == 1 ? 0.5 : 0.1)}, {{4}});
      t.call("aten::neg", {y}, {{4}});
    }
    EXPECT_THAT(titles(ViewModel::of(t.graph)), ElementsAre("block", "0", "1")) << shape;
  }
}

TEST(ViewModel, StridesAreStructure) {
  for (const bool transposed : {true, false}) {
    TestGraph t;
    for (int i = 0; i < 2; ++i) {
      const auto x = t.input("x" + std::to_string(i), {4, 4});
      auto scope = t.module("block." + std::to_string(i), "Block");
      const auto y = t.call("aten::relu", {x}, {{4, 4}});
      const auto z = t.append(t.graph.node(y.node).target, {y});
      const std::vector<int64_t> sizes{4, 4};
      const std::vector<int64_t> strides{transposed && i == 1 ? 1 : 4, transposed && i == 1 ? 4 : 1};
      const StorageId storage = t.graph.add_storage({.bytes = 64, .born = z.node});
      t.graph.add_tensor_result(z.node, {.sizes = sizes, .strides = strides, .storage = storage});
    }
    EXPECT_EQ(titles(ViewModel::of(t.graph)).size(), transposed ? 3U : 1U);
  }
}

TEST(ViewModel, RepeatedCallsOfOneModule) {
  TestGraph t;
  auto x = t.input("x", {4});
  for (uint32_t i = 0; i < 5; ++i) {
    auto scope = t.module("cell", "Cell", i);
    x = t.call("aten::relu", {t.call("aten::neg", {x}, {{4}})}, {{4}});
  }
  t.output({x});
  const ViewModel model = ViewModel::of(t.graph);
  EXPECT_THAT(titles(model), ElementsAre("cell (calls 0..4) x5"));
  EXPECT_EQ(model.boxes.size(), 4U);
}

TEST(ViewModel, RepeatsWithinRepeats) {
  TestGraph t;
  auto x = t.input("x", {4});
  for (int i = 0; i < 3; ++i) {
    auto outer = t.module("stage." + std::to_string(i), "Stage");
    for (int j = 0; j < 2; ++j) {
      auto inner = t.module("stage." + std::to_string(i) + ".block." + std::to_string(j), "Block");
      x = t.call("aten::relu", {t.call("aten::neg", {x}, {{4}})}, {{4}});
    }
  }
  t.output({x});
  const ViewModel model = ViewModel::of(t.graph);
  EXPECT_EQ(model.boxes.size(), 4U) << write_dot(model);
  EXPECT_THAT(titles(model), ElementsAre("stage.{0..2} x3", "block.{0..1} x2"));
}

TEST(ViewModel, Depth) {
  const Encoder encoder(3, 1);
  const ViewModel closed = ViewModel::of(encoder.t.graph, {.depth = 0});
  ASSERT_EQ(closed.boxes.size(), 3U);
  EXPECT_THAT(closed.boxes[1].lines, ElementsAre("encoder", "9 operators, 1.54 KFLOPs", "1.12 KiB allocated"));
  EXPECT_EQ(closed.boxes[1].category, OperatorCategory::kModule);
  EXPECT_THAT(edges(closed), ElementsAre("tokens->encoder f32[4,8]", "encoder->output f32[4,8]"));
  const ViewModel layers = ViewModel::of(encoder.t.graph, {.depth = 2});
  EXPECT_EQ(layers.boxes.size(), 5U);
  EXPECT_THAT(titles(layers), ElementsAre("encoder.layer"));
  EXPECT_EQ(ViewModel::of(encoder.t.graph, {.depth = 99}).boxes.size(), 2U + 3 * 3);
}

TEST(ViewModel, DepthIsChosenForReadability) {
  const Encoder encoder(100);
  ViewOptions options{.fold_repeats = false, .comfortable_boxes = 150};
  const ViewModel model = ViewModel::of(encoder.t.graph, options);
  EXPECT_EQ(model.depth, 2);
  EXPECT_EQ(model.boxes.size(), 102U);
  EXPECT_THAT(model.notes, Contains("modules below level 2 are collapsed"));
  // As many as are comfortable still are.
  options.comfortable_boxes = 102;
  EXPECT_EQ(ViewModel::of(encoder.t.graph, options).depth, 2);
  options.comfortable_boxes = 101;
  EXPECT_EQ(ViewModel::of(encoder.t.graph, options).depth, 1);
}

TEST(ViewModel, LimitsAreKeptAndSaid) {
  const Encoder encoder(100);
  const ViewModel deep = ViewModel::of(encoder.t.graph, {.depth = 4, .fold_repeats = false, .most_boxes = 120});
  EXPECT_EQ(deep.boxes.size(), 102U);
  EXPECT_THAT(deep.notes, Contains(HasSubstr("depth 2 instead of 4")));
  const ViewModel crowd = ViewModel::of(encoder.t.graph, {.depth = 4, .fold_repeats = false, .most_children = 50});
  EXPECT_EQ(crowd.boxes.size(), 3U);
  EXPECT_THAT(crowd.notes, Contains("1 modules with more than 50 boxes are collapsed"));

  TestGraph flat;  // no modules to collapse
  auto x = flat.input("x", {4});
  for (int i = 0; i < 10'000; ++i) x = flat.call("aten::relu", {x}, {{4}});
  flat.output({x});
  const ViewModel joined = ViewModel::of(flat.graph, {.phases = {"forward"}});
  EXPECT_LE(joined.boxes.size(), 3000U);
  EXPECT_THAT(joined.notes, Contains(HasSubstr("are joined")));
}

TEST(ViewModel, PlumbingAndParametersOnRequest) {
  const Encoder encoder(1);
  const ViewModel model = ViewModel::of(encoder.t.graph, {.show_views = true, .show_parameters = true});
  EXPECT_THAT(labels(model), ElementsAre("tokens|f32[4,8]", "encoder.layer.0.fc.weight|f32[8,8]",
                                         "encoder.layer.0.fc.bias|f32[8]", "t", "addmm", "relu", "add", "output"));
  EXPECT_THAT(edges(model), Contains("encoder.layer.0.fc.weight->t f32[8,8]"));
}

TEST(ViewModel, Phases) {
  TestGraph t;
  const auto x = t.input("x", {4});
  const auto w = t.parameter("fc.weight", {4});
  TestGraph::Call y;
  {
    auto fc = t.module("fc", "Scale");
    y = t.call("aten::mul.Tensor", {x, w}, {{4}});
    y = t.call("aten::relu", {y}, {{4}});
  }
  t.phase = Graph::kBackward;
  const auto g = t.call("aten::threshold_backward", {y, y, Argument::of_int(0)}, {{4}}, y.node);
  const auto gw = t.call("aten::mul.Tensor", {g, x}, {{4}}, y.node);
  t.gradient(w, gw);
  t.phase = Graph::kOptimizer;
  t.view("aten::add_.Tensor", {w, gw, Argument::of_float(-0.1)}, w.value(), {4});
  t.output({y});
  const ViewModel all = ViewModel::of(t.graph);
  EXPECT_THAT(titles(all), ElementsAre("fc", "backward", "fc", "optimizer"));
  EXPECT_EQ(all.boxes[all.boxes.size() - 2].category, OperatorCategory::kOptimizer);
  const ViewModel forward = ViewModel::of(t.graph, {.phases = {"forward"}});
  EXPECT_THAT(labels(forward), ElementsAre("x|f32[4]", "mul|weight f32[4]", "relu", "output"));
  EXPECT_THAT(forward.notes, Contains("3 operators of phases not shown: backward, optimizer"));
  EXPECT_THROW(ViewModel::of(t.graph, {.phases = {"sideways"}}), Error);
}

TEST(ViewModel, LargeTrainingGraphsShowForwardOnly) {
  TestGraph t;
  auto x = t.input("x", {4});
  for (int i = 0; i < 200; ++i) x = t.call("aten::relu", {x}, {{4}});
  t.phase = Graph::kBackward;
  for (int i = 0; i < 200; ++i) x = t.call("aten::neg", {x}, {{4}});
  t.output({x});
  const ViewModel model = ViewModel::of(t.graph);
  EXPECT_EQ(model.boxes.size(), 202U);
  EXPECT_THAT(model.notes, Contains("200 operators of phases not shown: backward"));
}

TEST(ViewModel, Categories) {
  const auto of = [](const char* name) {
    return category_of(
        Target(TargetKind::kOperator, c10::Dispatcher::singleton().findSchemaOrThrow(name, "").schema()));
  };
  EXPECT_EQ(of("aten::mm"), OperatorCategory::kMatmul);
  EXPECT_EQ(of("aten::convolution_backward"), OperatorCategory::kMatmul);
  EXPECT_EQ(of("aten::_scaled_dot_product_flash_attention"), OperatorCategory::kAttention);
  EXPECT_EQ(of("aten::native_layer_norm_backward"), OperatorCategory::kNorm);
  EXPECT_EQ(of("aten::relu_"), OperatorCategory::kActivation);
  EXPECT_EQ(of("aten::gelu_backward"), OperatorCategory::kActivation);
  EXPECT_EQ(of("aten::_softmax"), OperatorCategory::kActivation);
  EXPECT_EQ(of("aten::max_pool2d_with_indices"), OperatorCategory::kPooling);
  EXPECT_EQ(of("aten::t"), OperatorCategory::kView);
  EXPECT_EQ(of("aten::exp"), OperatorCategory::kElementwise);
  EXPECT_EQ(of("aten::nll_loss_forward"), OperatorCategory::kReduction);
  EXPECT_EQ(of("aten::native_dropout"), OperatorCategory::kRandom);
  EXPECT_EQ(of("aten::cat"), OperatorCategory::kCopy);
  EXPECT_EQ(of("aten::fft_fft"), OperatorCategory::kOther);
  for (size_t i = 0; i < category_styles().size(); ++i) {
    EXPECT_EQ(category_styles()[i].category, static_cast<OperatorCategory>(i));
  }
}

TEST(ViewModel, EmptyGraph) {
  const ViewModel model = ViewModel::of(Graph());
  EXPECT_TRUE(model.boxes.empty());
  EXPECT_NO_THROW(write_dot(model));
}

}  // namespace
}  // namespace shadowgraph
