// The contents of diagrams: folding, collapsing, hidden nodes, phases, limits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shadowgraph/draw/draw.h"
#include "shadowgraph/profile/profile.h"
#include "tests/profiler/test_graph.h"
#include "tests/viz/view_samples.h"

namespace shadowgraph {
namespace {

using shadowgraph::testing::TestGraph;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ViewModel, EqualLayersAreDrawnOnce) {
  const Encoder encoder(12);
  const ViewModel model = ViewModel::of(encoder.t.graph);
  EXPECT_THAT(titles(model), ElementsAre("encoder.layer.{0..11} x12"));
  EXPECT_EQ(model.clusters[1].subtitle, "Layer: 3 operators, 512 FLOPs each");
  EXPECT_THAT(labels(model),
              ElementsAre("tokens|f32[4,8]", "fc|addmm|bias f32[8]|weight f32[8,8]", "relu", "add", "output"));
  // The input enters the first copy and the output leaves the last; edges to the next copy are marked.
  EXPECT_THAT(edges(model),
              ElementsAre("tokens->fc f32[4,8]", "fc->relu f32[4,8]", "relu->add f32[4,8]", "tokens->add f32[4,8]",
                          "add~>fc f32[4,8]", "add~>add f32[4,8]", "add->output f32[4,8]"));
  EXPECT_THAT(model.notes, Contains("33 operators in repeated layers are folded"));
}

TEST(ViewModel, LongLabelsAreCutToWhatFits) {
  TestGraph t;
  const std::string forty(40, 'n');
  t.output({t.input(forty, {1}), t.input(forty + "n", {1})});
  EXPECT_THAT(labels(ViewModel::of(t.graph)),
              ElementsAre(forty + "|f32[1]", std::string(37, 'n') + "...|f32[1]", "output"));
}

TEST(ViewModel, PlaceholdersSayWhatTheyAreAPartOf) {
  TestGraph t;
  const auto x = t.input("x", {2, 4});
  const auto weight = t.parameter("weight", {4, 4});
  const auto scale = t.parameter("scale", {4, 4});
  t.graph.set_note(x.node, "layout", "S(0)");
  t.graph.set_note(x.node, "whole_sizes", "4,4");
  t.graph.set_note(weight.node, "layout", "S(1),R");
  t.graph.set_note(weight.node, "whole_sizes", "4,16");
  t.output(
      {t.call("aten::add.Tensor", {t.call("aten::mm", {x, weight}, {{2, 4}}), scale, Argument::of_int(1)}, {{2, 4}})});
  const ViewModel model = ViewModel::of(t.graph);
  EXPECT_THAT(labels(model), ElementsAre("x|f32[2,4]|S(0) of [4,4]", "mm|weight f32[4,4], S(1),R of [4,16]",
                                         "add|scale f32[4,4]", "output"));
  EXPECT_THAT(write_dot(model), HasSubstr("S(1),R of [4,16]"));
  const ViewModel boxes = ViewModel::of(t.graph, {.show_parameters = true});
  EXPECT_THAT(labels(boxes), Contains("weight|f32[4,4]|S(1),R of [4,16]"));
  EXPECT_THAT(boxes.boxes[0].tooltip, HasSubstr("S(0) of [4,4]"));
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
    // The last block subtracts in the opposite order.
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
  ViewOptions options{.fold_repeats = false, .comfortable_boxes = 150, .max_rows = 0};
  const ViewModel model = ViewModel::of(encoder.t.graph, options);
  EXPECT_EQ(model.depth, 2);
  EXPECT_EQ(model.boxes.size(), 102U);
  EXPECT_THAT(model.notes, Contains("modules below level 2 are collapsed"));
  // Exactly the comfortable number of boxes is still accepted.
  options.comfortable_boxes = 102;
  EXPECT_EQ(ViewModel::of(encoder.t.graph, options).depth, 2);
  options.comfortable_boxes = 101;
  EXPECT_EQ(ViewModel::of(encoder.t.graph, options).depth, 1);
}

TEST(ViewModel, LimitsAreKeptAndSaid) {
  const Encoder encoder(100);
  const ViewModel deep = ViewModel::of(encoder.t.graph, {.depth = 4, .fold_repeats = false, .max_boxes = 120});
  EXPECT_EQ(deep.boxes.size(), 102U);
  EXPECT_THAT(deep.notes, Contains(HasSubstr("depth 2 instead of 4")));
  const ViewModel crowd = ViewModel::of(encoder.t.graph, {.depth = 4, .fold_repeats = false, .max_children = 50});
  EXPECT_EQ(crowd.boxes.size(), 3U);
  EXPECT_THAT(crowd.notes, Contains("1 modules with more than 50 boxes are collapsed"));

  TestGraph flat;  // no modules to collapse
  auto x = flat.input("x", {4});
  for (int i = 0; i < 10'000; ++i) x = flat.call("aten::relu", {x}, {{4}});
  flat.output({x});
  const ViewModel joined = ViewModel::of(flat.graph, {.phases = {"forward"}});
  EXPECT_LE(joined.boxes.size(), 3000U);
  EXPECT_THAT(joined.notes, Contains(HasSubstr("are merged")));
}

TEST(ViewModel, PlumbingAndParametersOnRequest) {
  const Encoder encoder(1);
  const ViewModel model = ViewModel::of(encoder.t.graph, {.show_views = true, .show_parameters = true});
  EXPECT_THAT(labels(model), ElementsAre("tokens|f32[4,8]", "encoder.layer.0.fc.weight|f32[8,8]",
                                         "encoder.layer.0.fc.bias|f32[8]", "t", "addmm", "relu", "add", "output"));
  EXPECT_THAT(edges(model), Contains("encoder.layer.0.fc.weight->t f32[8,8]"));
}

TEST(ViewModel, AnEdgeOfSeveralTensorsSaysHowManyMore) {
  TestGraph t;
  const auto x = t.input("x", {4, 4});
  const auto norm = t.call("aten::native_layer_norm", {x}, {{4, 4}, {4, 1}, {4, 1}});
  std::vector<Argument> all;
  for (const ValueId value : norm.values) all.push_back(Argument::of_value(value));
  t.output({t.call("aten::mul.Tensor", {all[0], all[0]}, {{4, 4}}), t.call("aten::add.Tensor", {all[1], all[2]}, {{4}}),
            t.call("aten::addcmul", all, {{4, 4}})});
  EXPECT_THAT(edges(ViewModel::of(t.graph)),
              ::testing::IsSupersetOf({"native_layer_norm->mul f32[4,4]", "native_layer_norm->add f32[4,1] +1",
                                       "native_layer_norm->addcmul f32[4,4] +2"}));
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
  EXPECT_THAT(forward.notes, Contains("3 operators in hidden phases: backward, optimizer"));
  EXPECT_THROW(ViewModel::of(t.graph, {.phases = {"sideways"}}), Error);
}

TEST(ViewModel, LargeTrainingGraphsShowForwardOnly) {
  TestGraph t;
  auto x = t.input("x", {4});
  for (int i = 0; i < 200; ++i) x = t.call("aten::relu", {x}, {{4}});
  t.phase = Graph::kBackward;
  for (int i = 0; i < 200; ++i) x = t.call("aten::neg", {x}, {{4}});
  t.output({x});
  const ViewModel model = ViewModel::of(t.graph, {.max_rows = 0});
  EXPECT_EQ(model.boxes.size(), 202U);
  EXPECT_THAT(model.notes, Contains("200 operators in hidden phases: backward"));
}

TEST(ViewModel, FoldsFurtherWhereItIsTooTall) {
  const Encoder encoder(12, 5);
  // 0..4 folded, 5, 6..11 folded: nine boxes and two ends in a column.
  const ViewOptions tall{.max_rows = 0};
  EXPECT_EQ(ViewModel::of(encoder.t.graph, tall).boxes.size(), 11U);
  const ViewModel joined = ViewModel::of(encoder.t.graph, {.max_rows = 8});
  EXPECT_LE(joined.boxes.size(), 8U);
  EXPECT_THAT(joined.notes, Contains(HasSubstr("up to 2 consecutive boxes are merged: 11 were stacked vertically")));
  TestGraph t;
  auto x = t.input("x", {4});
  for (int i = 0; i < 10; ++i) {
    auto block = t.module("block" + std::to_string(i), "Block");
    for (int k = 0; k <= i; ++k) x = t.call("aten::relu", {x}, {{4}});
    x = t.call("aten::neg", {x}, {{4}});
  }
  t.output({x});
  EXPECT_EQ(ViewModel::of(t.graph, {.max_rows = 0}).boxes.size(), 67U);
  const ViewModel folded = ViewModel::of(t.graph, {.max_rows = 20});
  EXPECT_EQ(folded.boxes.size(), 12U);
  EXPECT_EQ(folded.depth, 0);
  EXPECT_THAT(folded.notes,
              Contains("folded from 67 vertically stacked boxes to 12; --depth 1 opens more, --rows 0 all"));
  // An explicit depth takes precedence over limits.
  EXPECT_EQ(ViewModel::of(t.graph, {.depth = 1, .max_rows = 20}).boxes.size(), 67U);
}

TEST(ViewModel, Differences) {
  const auto network = [](bool changed) {
    TestGraph t;
    auto x = t.input("x", {4});
    {
      auto fc = t.module("fc", "Block");
      x = t.call("aten::relu", {x}, {{4}});
      if (!changed) x = t.call("aten::neg", {x}, {{4}});
      x = t.call("aten::exp", {x}, {{4}});
    }
    if (changed) x = t.call("aten::abs", {x}, {{4}});
    t.output({x});
    return t;
  };
  const TestGraph before = network(false);
  const TestGraph after = network(true);
  const ViewModel model = ViewModel::of(after.graph, {.before = &before.graph});
  std::vector<std::string> marks;
  for (const ViewBox& box : model.boxes) {
    marks.push_back(box.id + " " + box.lines.front() + " " + std::to_string(static_cast<int>(box.mark)));
  }
  // exp and output (now of abs) read other tensors. neg is shown at its old place, in its module.
  EXPECT_THAT(marks, ElementsAre("n0 x 0", "n1 relu 0", "before_n2 neg 3", "n2 exp 4", "n3 abs 2", "n4 output 4"));
  EXPECT_EQ(model.boxes[2].cluster, model.boxes[1].cluster);
  EXPECT_THAT(edges(model), ElementsAre("x->relu f32[4]", "relu->neg f32[4]", "relu->exp f32[4]", "exp->abs f32[4]",
                                        "abs->output f32[4]", "neg->exp f32[4]"));
  EXPECT_TRUE(model.edges[1].removed && model.edges[5].removed);
  EXPECT_FALSE(model.edges[2].removed);
  EXPECT_THAT(model.notes, Contains("1 nodes added, 1 removed, 2 changed"));
  // Closed modules show changes inside them.
  const ViewModel closed = ViewModel::of(after.graph, {.depth = 0, .before = &before.graph});
  EXPECT_THAT(closed.boxes[1].lines, Contains("1 removed, 1 changed"));
  EXPECT_EQ(closed.boxes[1].mark, ViewMark::kChanged);
  EXPECT_THAT(ViewModel::of(after.graph, {.before = &after.graph}).notes, Contains("the graphs are identical"));
  EXPECT_NE(write_dot(model).find("removed</TD>"), std::string::npos);
}

TEST(ViewModel, DifferencesOfEveryKindOfArgument) {
  TestGraph before;
  const auto x = before.input("x", {2, 2});
  const std::vector<Argument> twice{x, x};
  const auto cat = before.call("aten::cat", {before.graph.make_list(twice), Argument::of_int(0)}, {{4, 2}});
  const auto view = before.view("aten::reshape", {cat, before.ints({2, 4})}, cat.value(), {2, 4});
  before.call("aten::div.Tensor_mode", {view, view, before.graph.string_argument("floor")}, {{2, 4}});
  before.call("aten::add.Tensor", {x, x, before.graph.complex_argument(1, 2)}, {{2, 2}});
  before.output({x});
  TestGraph after;
  const auto only = after.input("x", {2, 2});
  after.output({only});
  const ViewModel model = ViewModel::of(after.graph, {.before = &before.graph});
  EXPECT_THAT(labels(model), ElementsAre("x|f32[2,2]", "cat", "div", "add", "output"));
  EXPECT_THAT(edges(model), Contains("cat->div f32[2,4]"));
}

TEST(NodeColors, AmountsHaveAScaleAndKindsHaveNames) {
  TestGraph t;
  const auto x = t.input("x", {64, 64});
  TestGraph::Call y;
  {
    auto block = t.module("block", "Block");
    y = t.call("aten::mm", {x, x}, {{64, 64}});
    y = t.call("aten::relu", {y}, {{64, 64}});
    y = t.call("aten::mm", {y, t.call("aten::neg", {x}, {{64, 64}})}, {{64, 64}});
  }
  t.output({y});
  const Profile costs = profile(t.graph);
  const NodeColors flops = NodeColors::of(costs, ColorBy::kFlops);
  const ViewModel model = ViewModel::of(t.graph, {.colors = &flops});
  EXPECT_EQ(model.legend_title, "matmul FLOPs, logarithmic");
  // Both products have the maximum: one color step, and gray for nodes without a value. 2 * 64^3 = 524,288.
  EXPECT_THAT(model.legend,
              ElementsAre(LegendEntry{"524.29 KFLOPs", "#fee838", false}, LegendEntry{"none", "#e6e6e6", false}));
  EXPECT_EQ(model.boxes[1].fill, "#fee838");
  EXPECT_EQ(model.boxes[2].fill, "#e6e6e6");
  // A closed module has the sum of its nodes.
  const ViewModel closed = ViewModel::of(t.graph, {.depth = 0, .colors = &flops});
  EXPECT_EQ(closed.legend.front().label, "1.05 MFLOPs");

  const NodeColors bytes = NodeColors::of(costs, ColorBy::kBytes);
  const ViewModel moved = ViewModel::of(t.graph, {.colors = &bytes});
  EXPECT_EQ(moved.legend.size(), 6U);                  // five steps and none
  EXPECT_EQ(moved.legend.front().label, "48.00 KiB");  // 3 * 64 * 64 * 4 of a product
  EXPECT_EQ(moved.legend[4].label, "32.00 KiB");       // one in, one out
  EXPECT_TRUE(moved.legend[4].light_text);
  const NodeColors module = NodeColors::of(costs, ColorBy::kModule);
  const ViewModel modules = ViewModel::of(t.graph, {.colors = &module});
  EXPECT_EQ(modules.legend.size(), 2U);
  EXPECT_EQ(modules.legend[1].label, "Block");
  const std::string dot = write_dot(modules);
  EXPECT_NE(dot.find("color: module class"), std::string::npos);
  EXPECT_THROW(NodeColors::of(costs, ColorBy::kTime), Error);  // no device was given
  EXPECT_THROW(color_by("beauty"), Error);
  for (const char* name : {"operator", "flops", "bytes", "allocated", "memory", "time", "device", "phase", "module"}) {
    EXPECT_EQ(to_string(color_by(name)), name);
  }
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
