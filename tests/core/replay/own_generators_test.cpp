// User-created generators: replay draws from them and advances them as eager does.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "core/calls/program_generators.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/text.h"
#include "tests/core/replay/interpreter_samples.h"
#include "tests/core/replay/same_bits.h"

namespace shadowgraph {
namespace {

at::Generator seeded(uint64_t seed) { return at::detail::createCPUGenerator(seed); }

// Draws from many distributions, alternating with draws from the default generator.
Tensors many_draws(const at::Tensor& x, const at::Generator& generator) {
  Tensors made{at::rand({4}, generator), at::rand({3}), at::randn({5}, generator), at::randperm(6, generator)};
  made.push_back(at::empty({4}).uniform_(1, 2, generator));
  made.push_back(at::empty({4}).normal_(0, 1, generator));
  made.push_back(at::empty({4}).exponential_(1, generator));
  made.push_back(at::bernoulli(at::sigmoid(x), generator));
  made.push_back(at::multinomial(at::ones({9}), 4, false, generator));
  made.push_back(at::poisson(at::exp(x), generator));
  made.push_back(at::rand({2}));
  return made;
}

void expect_same(const Tensors& got, const Tensors& wanted, const std::string& what) {
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(same_bits(got[i], wanted[i])) << what << ": " << i;
}

TEST(OwnGenerators, RunsDrawFromThemAndMoveThem) {
  const at::Generator own = seeded(3);
  const Graph graph = captured({ones23()}, [&](const Tensors& in) { return many_draws(in[0], own); });
  EXPECT_TRUE(own.get_state().equal(seeded(3).get_state())) << "a capture draws nothing";
  const at::Generator reference = seeded(3);
  Tensors eager[2];
  at::manual_seed(1);
  for (Tensors& each : eager) each = many_draws(ones23(), reference);
  const at::Tensor left = at::detail::getDefaultCPUGenerator().get_state();
  Interpreter interpreter(graph);
  at::manual_seed(1);
  for (const Tensors& each : eager) expect_same(interpreter.run(Bindings().bind("x", ones23())).outputs, each, "run");
  EXPECT_TRUE(own.get_state().equal(reference.get_state()));
  EXPECT_TRUE(at::detail::getDefaultCPUGenerator().get_state().equal(left));
  // Copies share the generator's state.
  at::Generator(own).set_current_seed(3);
  at::manual_seed(1);
  const Graph copy = clone(graph);
  expect_same(Interpreter(copy).run(Bindings().bind("x", ones23())).outputs, eager[0], "copy");
}

TEST(OwnGenerators, TextKeepsTheState) {
  at::Generator own = seeded(3);
  at::randn({7}, own);  // leaves a cached normal sample
  const at::Tensor state = own.get_state();
  const Graph graph = captured({ones23()}, [&](const Tensors& in) { return many_draws(in[0], own); });
  const std::string text = to_text(graph);
  const Graph parsed = parse(text);
  EXPECT_EQ(to_text(parsed), text);
  at::rand({1000}, own);
  const at::Tensor moved = own.get_state();
  at::Generator reference = seeded(0);
  reference.set_state(state);
  at::manual_seed(1);
  const Tensors eager = many_draws(ones23(), reference);
  Interpreter interpreter(parsed);
  for (int i = 0; i < 2; ++i) {
    at::manual_seed(1);
    expect_same(interpreter.run(Bindings().bind("x", ones23())).outputs, eager, "parsed");
  }
  EXPECT_TRUE(own.get_state().equal(moved));
  const at::Generator given = seeded(21);
  at::manual_seed(1);
  const Tensors other = many_draws(ones23(), seeded(21));
  Interpreter with_given(parsed, {.generators = {{"g0", given}}});
  at::manual_seed(1);
  expect_same(with_given.run(Bindings().bind("x", ones23())).outputs, other, "given");
  EXPECT_FALSE(given.get_state().equal(seeded(21).get_state()));
}

TEST(OwnGenerators, OnesThatTheProgramMakesBeginAnew) {
  const auto program = [](const Tensors& in) { return Tensors{in[0] + at::rand({2, 3}, seeded(5))}; };
  const Graph graph = captured({ones23()}, program);
  Interpreter interpreter(graph);
  for (int i = 0; i < 2; ++i) {
    expect_same(interpreter.run(Bindings().bind("x", ones23())).outputs, program({ones23()}), "made inside");
  }
}

TEST(OwnGenerators, SlicesDrawWhatTheProgramDrewBefore) {
  const at::Generator own = seeded(3);
  const Graph graph = captured({ones23()}, [&](const Tensors&) {
    return Tensors{at::rand({4}, own), at::rand({4}, own)};
  });
  ValueId second;
  for (const NodeId node : nodes_calling(graph, "aten::rand")) second = graph.results(node)[0].ref.value;
  const at::Generator reference = seeded(3);
  at::rand({4}, reference);
  const at::Tensor wanted = at::rand({4}, reference);
  Interpreter slice(graph, {.only = {second}});
  EXPECT_TRUE(same_bits(slice.run(Bindings().bind("x", ones23())).outputs[0], wanted));
}

TEST(OwnGenerators, DefaultOnesHaveNoName) {
  const Graph graph =
      captured({ones23()}, [](const Tensors&) { return Tensors{at::rand({4}, at::detail::getDefaultCPUGenerator())}; });
  for (const NodeId node : graph.nodes()) EXPECT_EQ(graph.note(node, kGeneratorNote), "");
  EXPECT_TRUE(graph.metadata.other.empty());
}

TEST(OwnGenerators, StatesThatCannotBeReadAreRefused) {
  const at::Generator own = seeded(3);
  const Graph graph = captured({ones23()}, [&](const Tensors&) { return Tensors{at::rand({4}, own)}; });
  for (const char* damaged :
       {"cpu", "cpu seed -1", "cpu seed", "cpu 0g", "cpu 012", "cpu 0123", "cuda:0 seed 3", "", "x y"}) {
    Graph copy = clone(graph);
    copy.metadata.other["generator g0"] = damaged;
    const Graph parsed = parse(to_text(copy));
    EXPECT_THROW(Interpreter(parsed).run(Bindings().bind("x", ones23())), ReplayError) << damaged;
  }
}

}  // namespace
}  // namespace shadowgraph
