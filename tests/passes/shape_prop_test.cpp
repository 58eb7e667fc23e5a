// Shape propagation on every built-in model: recorded inputs change nothing, other inputs give the result of a capture
// with them, and sizes baked into constants are reported.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional.h>

#include "core/calls/calls_on_fakes.h"
#include "models/registry.h"
#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/capture/functions.h"
#include "shadowgraph/capture/replay.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/graph/verify.h"
#include "shadowgraph/passes/shapes.h"
#include "tests/passes/model_captures.h"

namespace shadowgraph {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class BuiltInModel : public ::testing::TestWithParam<std::string> {};
std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const auto& info : models::available()) names.push_back(info.name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(All, BuiltInModel, ::testing::ValuesIn(model_names()),
                         [](const auto& info) { return info.param; });

TEST_P(BuiltInModel, IsByteEqualWithTheRecordedInputs) {
  for (const c10::DeviceType device : {c10::kCPU, c10::kCUDA}) {
    for (const bool train : {true, false}) {
      Graph graph = capture_tiny(GetParam(), {.train = train, .device = device});
      const std::string before = to_text(graph);
      const ShapePropagation shapes = ShapePropagation::of(graph);
      EXPECT_THAT(shapes.baked(), IsEmpty());
      EXPECT_FALSE(shapes.apply(graph));
      EXPECT_EQ(to_text(graph), before);
      // A parsed graph has other ids, pools and tensor constants.
      Graph read = parse(before);
      EXPECT_FALSE(ShapePropagation::of(read).apply(read));
    }
  }
}

// A convolutional net without views: every size is derived from operands.
Tensors small_net(const Tensors& in) {
  const at::Tensor x = at::relu(at::conv2d(in[0], in[1], {}, /*stride=*/2));
  at::Tensor y = at::max_pool2d(x, 2);
  y.mul_(2);
  return {y.mean({2, 3}).mm(in[2].t()), x};
}

Graph capture_small_net(at::IntArrayRef image) {
  const FakeTensorMode mode;
  return capture_forward(ProgramToCapture{
                             .inputs = {at::empty(image), at::empty({5, 3, 3, 3}), at::empty({7, 5})},
                             .input_names = {"x", "kernel", "weight"},
                             .forward = small_net,
                         })
      .graph;
}

TEST(ShapePropagation, GivesWhatACaptureWithTheNewInputsGives) {
  Graph graph = capture_small_net({2, 3, 19, 17});
  const auto shapes = ShapePropagation::of(graph, {.inputs = {{"x", InputGeometry::of_text("f32[4,3,40,33]")}}});
  EXPECT_THAT(shapes.baked(), IsEmpty());
  EXPECT_TRUE(shapes.apply(graph));
  verify(graph);
  const Graph expected = capture_small_net({4, 3, 40, 33});
  EXPECT_EQ(first_difference(graph, expected), std::nullopt);
  EXPECT_FALSE(ShapePropagation::of(graph).apply(graph));
}

TEST(ShapePropagation, TakesRealFakeAndMetaTensors) {
  const Graph expected = capture_small_net({4, 3, 9, 9});
  const FakeTensorMode mode;
  const at::Tensor fake = at::empty({4, 3, 9, 9});
  for (const at::Tensor& x : {[] {
                                const UnfakeGuard real;
                                return at::empty({4, 3, 9, 9});
                              }(),
                              fake, at::empty({4, 3, 9, 9}, at::kMeta)}) {
    Graph graph = capture_small_net({2, 3, 19, 17});
    const auto shapes = ShapePropagation::of(graph, {.inputs = {{"x", InputGeometry::of(x)}}});
    EXPECT_TRUE(shapes.apply(graph));
    EXPECT_EQ(first_difference(graph, expected), std::nullopt);
  }
}

TEST(ShapePropagation, GivesEveryValueItsTensor) {
  const Graph graph = capture_small_net({2, 3, 19, 17});
  const auto shapes = ShapePropagation::of(graph, {.inputs = {{"x", InputGeometry::of_text("f64[3,3,8,8]")},
                                                              {"kernel", InputGeometry::of_text("f64[5,3,3,3]")},
                                                              {"weight", InputGeometry::of_text("f64[7,5]")}}});
  uint32_t values = 0;
  for (const NodeId node : graph.nodes()) {
    graph.for_each_output(node, [&](ValueId value) {
      ++values;
      ASSERT_TRUE(shapes.tensor(value).defined());
      EXPECT_TRUE(is_fake(shapes.tensor(value)));
      // Values that share a storage in the graph also share one here.
      graph.for_each_input(node, [&](ValueId operand) {
        EXPECT_EQ(shapes.tensor(operand).storage().is_alias_of(shapes.tensor(value).storage()),
                  graph.value(operand).storage == graph.value(value).storage);
      });
    });
  }
  EXPECT_GE(values, 9U);
  const Argument& output = graph.list(graph.arguments(graph.last())[0])[0];
  EXPECT_EQ(shapes.tensor(output.ref.value).sizes(), (at::IntArrayRef{3, 7}));
  EXPECT_EQ(shapes.tensor(output.ref.value).scalar_type(), at::kDouble);
}

TEST(ShapePropagation, ChangedAliasingGivesAStorageOfItsOwn) {
  // expanding one row is an alias; its consumer is not, and clone's strides follow.
  const FakeTensorMode mode;
  const auto program = [](const Tensors& in) { return Tensors{in[0].t().clone().relu_(), in[0].t()}; };
  const auto capture = [&](at::IntArrayRef sizes) {
    return capture_forward(ProgramToCapture{.inputs = {at::empty(sizes)}, .input_names = {"x"}, .forward = program})
        .graph;
  };
  Graph graph = capture({3, 4});
  EXPECT_TRUE(ShapePropagation::of(graph, {.inputs = {{"x", InputGeometry::of_text("f32[6,5]")}}}).apply(graph));
  verify(graph);
  EXPECT_EQ(first_difference(graph, capture({6, 5})), std::nullopt);
}

TEST(ShapePropagation, MetadataChangesInPlaceLeaveTheValueBefore) {
  const FakeTensorMode mode;
  const auto program = [](const Tensors& in) {
    at::Tensor y = in[0] + 1;
    at::Tensor z = y.mul(2);
    y.t_();
    y.add_(1);
    y.unsqueeze_(0);
    at::Tensor out = at::empty({0});
    at::mul_out(out, z, z);
    return Tensors{y, z, out};
  };
  const auto capture = [&](at::IntArrayRef sizes) {
    return capture_forward(ProgramToCapture{.inputs = {at::empty(sizes)}, .input_names = {"x"}, .forward = program})
        .graph;
  };
  Graph graph = capture({3, 4});
  const std::string before = to_text(graph);
  EXPECT_FALSE(ShapePropagation::of(graph).apply(graph));
  EXPECT_EQ(to_text(graph), before);
  EXPECT_TRUE(ShapePropagation::of(graph, {.inputs = {{"x", InputGeometry::of_text("f32[6,5]")}}}).apply(graph));
  EXPECT_EQ(first_difference(graph, capture({6, 5})), std::nullopt);
}

Graph capture_view(int64_t batch) {
  const FakeTensorMode mode;
  return capture_forward(ProgramToCapture{.inputs = {at::empty({batch, 6})},
                                          .input_names = {"x"},
                                          .forward =
                                              [](const Tensors& in) {
                                                return Tensors{in[0].view({in[0].size(0), 2, 3})};
                                              }})
      .graph;
}

TEST(ShapePropagation, NamesTheNodeAndTheArgumentThatIsBakedIn) {
  const Graph graph = capture_view(8);
  try {
    ShapePropagation::of(graph, {.inputs = {{"x", InputGeometry::of_text("f32[16,6]")}}});
    FAIL() << "a view of 96 elements as [8, 2, 3]";
  } catch (const UnsupportedError& error) {
    EXPECT_THAT(error.what(), HasSubstr("n1 aten::view"));
    EXPECT_THAT(error.what(), HasSubstr("size[0] = 8 is size 0 of 'x' as recorded, now 16"));
    EXPECT_THAT(error.what(), HasSubstr("invalid for input of size 96"));
  }
}

TEST(ShapePropagation, FindsWhatIsBakedInAboveTheNodeThatFails) {
  const FakeTensorMode mode;
  const Graph graph =
      capture_forward(ProgramToCapture{.inputs = {at::empty({8, 6})},
                                       .input_names = {"x"},
                                       .forward =
                                           [](const Tensors& in) {
                                             const at::Tensor mask = at::ones({in[0].size(0), 1}).mul(2);
                                             return Tensors{in[0].relu() + mask.neg()};
                                           }})
          .graph;
  try {
    ShapePropagation::of(graph, {.inputs = {{"x", InputGeometry::of_text("f32[16,6]")}}});
    FAIL() << "sizes 16 and 8 do not broadcast";
  } catch (const UnsupportedError& error) {
    EXPECT_EQ(graph.target(error.node()).name(), "aten::add.Tensor");
    EXPECT_THAT(error.what(), HasSubstr("aten::ones: size[0] = 8 is size 0 of 'x' as recorded, now 16"));
  }
}

TEST(ShapePropagation, ListsWhatIsBakedInAndFitsNevertheless) {
  const FakeTensorMode mode;
  Graph graph =
      capture_forward(ProgramToCapture{
                          .inputs = {at::empty({8, 6})},
                          .input_names = {"x"},
                          .forward =
                              [](const Tensors& in) {
                                return Tensors{in[0].relu(), at::arange(in[0].size(0)), at::zeros({in[0].size(0) * 6})};
                              }})
          .graph;
  const auto shapes = ShapePropagation::of(graph, {.inputs = {{"x", InputGeometry::of_text("f32[16,6]")}}});
  ASSERT_EQ(shapes.baked().size(), 2U);
  EXPECT_EQ(shapes.baked()[0].argument, "end");
  EXPECT_EQ(shapes.baked()[0].now, 16);
  EXPECT_EQ(shapes.baked()[1].dimension, "sizes 0 to 1 of 'x'");
  EXPECT_EQ(shapes.baked()[1].now, 96);
  const Pass* pass = find_pass("shape-prop");
  ASSERT_NE(pass, nullptr);
  EXPECT_THROW(pass->run(graph, {{"inputs", "x=f32[16,6]"}, {"baked", "error"}}), UnsupportedError);
  EXPECT_EQ(graph.sizes(ValueId(0))[0], 8) << "a failed pass changed the graph";
  const PassResult result = pass->run(graph, {{"inputs", "x=f32[16,6]"}, {"baked", "report"}});
  EXPECT_TRUE(result.changed);
  EXPECT_THAT(result.report, HasSubstr("aten::arange"));
  EXPECT_THAT(result.report, HasSubstr("the program read size 0 = 8, now 16"));
  EXPECT_FALSE(pass->run(graph, {{"inputs", ""}, {"baked", "report"}}).changed);
}

TEST(ShapePropagation, BuiltInLanguageModelSaysWhereItsBatchIsBakedIn) {
  const Graph graph = capture_tiny("gpt2", {.train = true, .batch = 3});
  std::map<std::string, InputGeometry> inputs;
  for (const NodeId node : graph.nodes()) {
    if (graph.node(node).target != target_of(Builtin::kInput)) continue;
    const ValueId value = graph.results(node)[0].ref.value;
    InputGeometry geometry;
    geometry.dtype = graph.value(value).dtype;
    geometry.sizes.assign(graph.sizes(value).begin(), graph.sizes(value).end());
    geometry.sizes[0] = 7;
    inputs.emplace(graph.text(graph.arguments(node)[0].string), geometry);
  }
  EXPECT_THAT([&] { ShapePropagation::of(graph, {.inputs = inputs}); },
              ::testing::ThrowsMessage<UnsupportedError>(HasSubstr("of 'input_ids' as recorded, now ")));
}

TEST(ShapePropagation, RefusesNamesAndTextsThatMeanNothing) {
  Graph graph = capture_view(8);
  EXPECT_THAT(
      [&] {
        ShapePropagation::of(graph, {.inputs = {{"y", InputGeometry::of_text("f32[2]")}}});
      },
      ::testing::ThrowsMessage<Error>(HasSubstr("its inputs are: x")));
  const Pass* pass = find_pass("shape-prop");
  EXPECT_THROW(pass->run(graph, {{"inputs", "x"}, {"baked", "report"}}), Error);
  EXPECT_THROW(pass->run(graph, {{"inputs", "x=q7[3]"}, {"baked", "report"}}), Error);
  EXPECT_THROW(pass->run(graph, {{"inputs", ""}, {"baked", "perhaps"}}), Error);
}

TEST(ShapePropagation, RunsShapeRulesOfFunctionsAndNamesThoseItLacks) {
  register_function("test::twice(Tensor x) -> Tensor", [](auto arguments) {
    return results(at::cat({arguments[0].toTensor(), arguments[0].toTensor()}));
  });
  Graph graph = parse(
      "shadowgraph 1 libtorch 2.13.0\nfunction test::twice(Tensor x) -> Tensor\ns0 = 8 cpu input\ns1 = 16 cpu "
      "temporary\n"
      "%0 = sg::input(name=\"x\") : f32[2] @s0\n%1 = test::twice(x=%0) : f32[4] @s1\nsg::output(values=[%1])\n");
  EXPECT_FALSE(ShapePropagation::of(graph).apply(graph));
  EXPECT_TRUE(ShapePropagation::of(graph, {.inputs = {{"x", InputGeometry::of_text("f32[5]")}}}).apply(graph));
  EXPECT_EQ(graph.sizes(ValueId(1))[0], 10);
  EXPECT_EQ(graph.storage(StorageId(1)).bytes, 40);
  Graph unknown = parse(
      "shadowgraph 1 libtorch 2.13.0\noperator nobody::knows(Tensor x) -> Tensor\ns0 = 8 cpu input\ns1 = 8 cpu "
      "temporary\n"
      "%0 = sg::input(name=\"x\") : f32[2] @s0\n%1 = nobody::knows(x=%0) : f32[2] @s1\nsg::output(values=[%1])\n");
  EXPECT_THAT([&] { ShapePropagation::of(unknown); }, ::testing::ThrowsMessage<Error>(HasSubstr("nobody::knows")));
}

TEST(FakeOf, HasTheValuesGeometryAndSharesStorages) {
  const Graph graph = capture_small_net({2, 3, 19, 17});
  FakeValues fakes(graph);
  for (const NodeId node : graph.nodes()) {
    graph.for_each_output(node, [&](ValueId value) {
      const at::Tensor fake = fake_of(graph, value);
      EXPECT_EQ(fake.sizes(), at::IntArrayRef(graph.sizes(value).data(), graph.sizes(value).size()));
      EXPECT_EQ(fake.strides(), at::IntArrayRef(graph.strides(value).data(), graph.strides(value).size()));
      EXPECT_EQ(static_cast<int64_t>(fake.storage().nbytes()), graph.storage(graph.value(value).storage).bytes);
      graph.for_each_input(node, [&](ValueId operand) {
        EXPECT_EQ(fakes.of(operand).storage().is_alias_of(fakes.of(value).storage()),
                  graph.value(operand).storage == graph.value(value).storage);
      });
    });
  }
}

// The schema declares eps as float. A graph may contain the int 1, as Python programs do, but the operator refuses an
// int.
TEST(ShapeProp, AnIntegerStandsForAFloat) {
  Graph graph = parse(R"(shadowgraph 1 libtorch 2.13.0
operator aten::native_layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, float eps) -> (Tensor, Tensor, Tensor)
s0 = 32 cpu input
s1 = 32 cpu temporary
s2 = 16 cpu temporary
s3 = 16 cpu temporary
n0: %0 = sg::input(name="x") : f32[4,2] @s0
n1: %1, %2, %3 = aten::native_layer_norm(input=%0, normalized_shape=[2], weight=None, bias=None, eps=1) : f32[4,2] @s1, f32[4,1] @s2, f32[4,1] @s3
n2: sg::output(values=[%1])
)");
  const auto shapes = ShapePropagation::of(graph, {.inputs = {{"x", InputGeometry::of_text("f32[6,2]")}}});
  EXPECT_EQ(shapes.tensor(ValueId(1)).sizes(), at::IntArrayRef({6, 2}));
  // The interpreter converts it, too.
  const at::Tensor x = at::randn({4, 2});
  EXPECT_TRUE(at::equal(Interpreter(graph).run(Bindings().bind("x", x)).outputs[0], at::layer_norm(x, {2}, {}, {}, 1)));
}

TEST(ShapeProp, OptionsAreTextAndBack) {
  const auto inputs = ShapePropagationOptions::inputs_of("y=i64[8]; x=f32[8,3,64,64]");
  EXPECT_EQ(ShapePropagationOptions::text_of(inputs), "x=f32[8,3,64,64];y=i64[8]");
  EXPECT_THROW(ShapePropagationOptions::inputs_of("f32[8]"), Error);
}

}  // namespace
}  // namespace shadowgraph
