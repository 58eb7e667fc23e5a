// Partial replay: slices of a graph, and function calls that run by body, kernel or shape rule.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "core/replay/body_function.h"
#include "core/replay/replay_program.h"
#include "shadowgraph/capture/functions.h"
#include "shadowgraph/graph/text.h"
#include "tests/core/replay/interpreter_samples.h"

namespace shadowgraph {
namespace {

// ---- Slices

TEST(Slice, WritersOfWhatItReadsBelongToIt) {
  const Graph graph = captured({ones23(), ones23().clone()}, [](const Tensors& in) {
    const at::Tensor base = at::zeros({2, 3});
    base.select(0, 0).add_(in[0].select(0, 0));  // needed: writes the operand of clone
    const at::Tensor kept = base.clone();
    base.mul_(2);                          // not needed
    const at::Tensor other = in[1].neg();  // not needed
    return Tensors{kept, other};
  });
  const ValueId kept = result_of(graph, "aten::clone");
  const auto nodes = slice_for(graph, Effects::of(graph), std::vector<ValueId>{kept});
  std::vector<std::string> names;
  for (const NodeId node : nodes) names.push_back(graph.target(node).name());
  EXPECT_EQ(names, (std::vector<std::string>{"sg::input", "aten::zeros", "aten::select.int", "aten::select.int",
                                             "aten::add_.Tensor", "aten::clone"}));
  // y is not needed, but may be bound.
  Interpreter interpreter(graph, {.only = {kept}});
  const at::Tensor expected = at::tensor({1., 1., 1., 0., 0., 0.}).view({2, 3});
  EXPECT_TRUE(interpreter.run(Bindings().bind("x", ones23())).outputs[0].equal(expected));
  EXPECT_TRUE(interpreter.run(Bindings().in_order({ones23(), at::zeros({2, 3})})).outputs[0].equal(expected));
  EXPECT_TRUE(interpreter.run(Bindings().bind("x", ones23()).bind("y", ones23())).outputs[0].equal(expected));
}

TEST(Slice, AChosenValueIsItsTensorAtTheEnd) {
  const Graph graph = captured({}, [](const Tensors&) {
    const at::Tensor base = at::zeros({2, 3});
    base.view({6}).add_(4);
    return Tensors{base};
  });
  Interpreter interpreter(graph, {.only = {result_of(graph, "aten::zeros")}});
  EXPECT_TRUE(interpreter.run({}).outputs[0].equal(at::full({2, 3}, 4.0)));
}

TEST(Slice, RandomNumbersAreThoseOfTheWholeRun) {
  const auto program = [](const Tensors&) { return Tensors{at::rand({3}), at::randn({2}), at::rand({3})}; };
  const Graph graph = captured({}, program);
  at::manual_seed(3);
  const Tensors eager = program({});
  ValueId last;
  graph.for_each_input(graph.last(), [&](ValueId value) { last = value; });
  Interpreter interpreter(graph, {.only = {last}});
  at::manual_seed(3);
  EXPECT_TRUE(interpreter.run({}).outputs[0].equal(eager[2]));
}

TEST(Slice, OfAValueThatIsNotThere) {
  const Graph graph = captured({}, [](const Tensors&) { return Tensors{at::zeros({2})}; });
  EXPECT_THROW(Interpreter(graph, {.only = {ValueId(77)}}), Error);
}

// ---- Functions

constexpr const char* kFusedGraph = R"(shadowgraph 1 libtorch 2.13.0
function mine::scaled_sum(Tensor a, Tensor[] others, float scale=1.0) -> Tensor
s0 = 24 cpu input
s1 = 24 cpu temporary
%0 = sg::input(name="x") : f32[2,3] @s0
%1 = mine::scaled_sum(a=%0, others=[%0, %0], scale=3.0) : f32[2,3] @s1
sg::output(values=[%1])
)";
constexpr const char* kFusedSchema = "mine::scaled_sum(Tensor a, Tensor[] others, float scale=1.0) -> Tensor";

TEST(Functions, ACallThatCarriesItsBodyRunsIt) {
  Graph graph = parse(R"(shadowgraph 1 libtorch 2.13.0
function my::twice(Tensor(a!) x) -> Tensor(a)
s0 = 24 cpu input
%0 = sg::input(name="x") : f32[2,3] @s0
%1 = my::twice(x=%0) : f32[2,3] @s0 | writes(s0@1)
sg::output(values=[%1])
)");
  const at::Tensor x = ones23().clone();
  EXPECT_CONTAINS(error_of(graph, Bindings().in_order({x})), "not registered in this process");
  const std::string body = to_text(captured({ones23()}, [](const Tensors& in) { return Tensors{in[0].mul_(2)}; }));
  graph.set_note(node_called(graph, "my::twice"), kBodyNote, body);
  const Graph read = parse(to_text(graph));
  Interpreter interpreter(read, {.check_results = true});
  EXPECT_TRUE(interpreter.run(Bindings().in_order({x})).outputs[0].is_alias_of(x));
  interpreter.run(Bindings().in_order({x}));
  EXPECT_TRUE(x.equal(at::full({2, 3}, 4.0)));
  graph.set_note(node_called(graph, "my::twice"), kBodyNote, "no graph");
  EXPECT_THROW(Interpreter{graph}, ParseError);
  graph.set_note(
      node_called(graph, "my::twice"), kBodyNote,
      to_text(captured({ones23(), ones23().clone()}, [](const Tensors& in) { return Tensors{in[0] + in[1]}; })));
  EXPECT_CONTAINS(error_of(graph, Bindings().in_order({x})), "takes 2 tensors and returns 1");
}

TEST(Functions, RunTheirKernelOrTheirShapeRule) {
  const Graph graph = parse(kFusedGraph);
  const Bindings bindings = Bindings().bind("x", ones23());
  EXPECT_CONTAINS(error_of(graph, bindings), "call shadowgraph::register_function(\"mine::scaled_sum(Tensor a");

  const FunctionKernel shape = [](auto arguments) { return results(at::empty_like(arguments[0].toTensor())); };
  EXPECT_THROW(register_function(kFusedSchema, {}), Error);
  EXPECT_THROW(register_function("no schema", shape), ParseError);
  register_function(kFusedSchema, shape);
  EXPECT_CONTAINS(error_of(graph, bindings), "a shape rule but no kernel");

  register_function(kFusedSchema, shape, [](auto arguments) {
    at::Tensor sum = arguments[0].toTensor().clone();
    for (const at::Tensor& other : arguments[1].toTensorVector()) sum.add_(other, arguments[2].toDouble());
    return results(sum);
  });
  EXPECT_TRUE(Interpreter(graph).run(bindings).outputs[0].equal(at::full({2, 3}, 7.0)));
  {
    const FakeTensorMode mode;
    EXPECT_TRUE(is_fake(Interpreter(graph, {.check_results = true}).run(bindings).outputs[0]));
  }
  EXPECT_NE(find_function("mine::scaled_sum"), nullptr);

  std::string other(kFusedGraph);
  other.replace(other.find("scale=1.0"), 9, "scale=2.0");
  EXPECT_CONTAINS(error_of(parse(other), bindings), "not registered in this process with this schema");
}

}  // namespace
}  // namespace shadowgraph
