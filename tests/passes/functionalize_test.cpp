// Reports and refusals of functionalize; the rewriting itself is tested in tests/passes/functional and
// tests/core/replay.
#include <gtest/gtest.h>

#include "core/calls/functions.h"
#include "ir/operators/operator_forms.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/graph/verify.h"
#include "shadowgraph/passes/functional.h"
#include "shadowgraph/profile/profile.h"

namespace shadowgraph {
namespace {

Graph graph_of(const std::string& text) { return parse("shadowgraph 1 libtorch 2.13.0\n" + text); }

const char* const kAdd =
    "operator aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)\n"
    "operator aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)\n";

TEST(Functionalize, TheSignatureSaysWhatIsMutatedAndWhatIsAliased) {
  Graph graph = graph_of(std::string(kAdd) +
                         "s0 = 16 cpu input\ns1 = 16 cpu parameter\ns2 = 16 cpu input\n"
                         "%0 = sg::input(name=\"x\") : f32[4] @s0\n"
                         "%1 = sg::parameter(name=\"w\") : f32[4] @s1\n"
                         "%2 = sg::input(name=\"z\") : f32[4] @s2\n"
                         "%3 = aten::add_.Tensor(self=%1, other=%0) : f32[4] @s1\n"
                         "%4 = aten::view(self=%3, size=[2, 2]) : f32[2,2] @s1\n"
                         "%5 = aten::view(self=%2, size=[2, 2]) : f32[2,2] @s2\n"
                         "sg::output(values=[%4, %0, %5])\n");
  const FunctionalizeResult result = functionalize(graph);
  verify(graph);
  EXPECT_TRUE(result.changed);
  EXPECT_EQ(result.writes, 1);
  EXPECT_EQ(result.scatters, 0);
  ASSERT_EQ(result.mutated.size(), 1U);
  EXPECT_EQ(graph.text(graph.arguments(result.mutated[0].placeholder)[0].string), "w");
  EXPECT_EQ(graph.target(result.mutated[0].write_back).name(), "aten::copy_");
  ASSERT_EQ(result.aliased.size(), 3U);
  EXPECT_EQ(result.aliased[0].output, 0U);
  EXPECT_EQ(result.aliased[0].placeholder, result.mutated[0].placeholder);
  EXPECT_FALSE(first_mutation(graph).valid());

  const std::string once = to_text(graph);
  const FunctionalizeResult again = functionalize(graph);
  EXPECT_FALSE(again.changed);
  EXPECT_EQ(again.mutated.size(), 1U);
  EXPECT_EQ(to_text(graph), once);
}

TEST(Functionalize, FirstMutationNamesTheWrite) {
  const Graph graph = graph_of(std::string(kAdd) +
                               "s0 = 16 cpu input\ns1 = 16 cpu temporary\n"
                               "operator aten::relu(Tensor self) -> Tensor\n"
                               "%0 = sg::input(name=\"x\") : f32[4] @s0\n"
                               "%1 = aten::relu(self=%0) : f32[4] @s1\n"
                               "%2 = aten::add_.Tensor(self=%1, other=%0) : f32[4] @s1\n"
                               "sg::output(values=[%2])\n");
  const NodeId found = first_mutation(graph);
  ASSERT_TRUE(found.valid());
  EXPECT_EQ(graph.target(found).name(), "aten::add_.Tensor");
}

void expect_refused(Graph graph, const std::string& why) {
  const std::string before = to_text(graph);
  try {
    functionalize(graph);
    FAIL() << "not refused: " << why;
  } catch (const UnsupportedError& error) {
    EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    EXPECT_TRUE(error.node().valid());
  }
  EXPECT_EQ(to_text(graph), before) << "the graph was changed although the pass failed";
}

TEST(Functionalize, RefusesWhatItCannotKnow) {
  // A variadic operator may write to any of its arguments.
  expect_refused(graph_of(std::string(kAdd) + "operator other::anything(...) -> ...\n"
                                              "s0 = 16 cpu input\n"
                                              "%0 = sg::input(name=\"x\") : f32[4] @s0\n"
                                              "%1 = aten::add_.Tensor(self=%0, other=%0) : f32[4] @s0\n"
                                              "other::anything(%1)\n"),
                 "are unknown");
  // A user function that writes has no operator that could run on a copy.
  expect_refused(graph_of(std::string(kAdd) + "function mine::scale_(Tensor(a!) self) -> Tensor(a!)\n"
                                              "s0 = 16 cpu input\n"
                                              "%0 = sg::input(name=\"x\") : f32[4] @s0\n"
                                              "%1 = mine::scale_(self=%0) : f32[4] @s0\n"),
                 "no functional form");
}

TEST(Functionalize, AnOperatorThatThisProcessDoesNotHaveBecomesAFunctionalCall) {
  Graph graph = graph_of(
      "operator other::step_(Tensor(a!) self, Tensor[] gradients, float rate) -> Tensor(a!)\n"
      "operator aten::relu(Tensor self) -> Tensor\n"
      "s0 = 16 cpu input\ns1 = 16 cpu temporary\n"
      "%0 = sg::input(name=\"x\") : f32[4] @s0\n"
      "%1 = other::step_(self=%0, gradients=[%0], rate=0.5) : f32[4] @s0\n"
      "%2 = aten::relu(self=%0) : f32[4] @s1\n"
      "sg::output(values=[%2])\n");
  const FunctionalizeResult result = functionalize(graph);
  verify(graph);
  EXPECT_EQ(result.functional_calls, 1);
  const std::string text = to_text(graph);
  EXPECT_NE(text.find("function sg_functional::other__step_(Tensor self, Tensor[] gradients, float rate) -> Tensor"),
            std::string::npos)
      << text;
  EXPECT_EQ(to_text(parse(text)), text);
}

// The cost of an operator does not depend on whether it writes in place or returns its result.
TEST(Functionalize, FunctionalCallsCostWhatTheirOperatorsDo) {
  const std::string text =
      read_file(std::string(SHADOWGRAPH_SOURCE_DIR) + "/tests/passes/functional/functionalize_batch_norm.sg");
  const size_t begin = text.find("shadowgraph 1 ");
  Graph graph = parse(std::string_view(text).substr(begin, text.find("\n====") + 1 - begin));
  const auto cost_of = [&](const std::string& name) {
    const std::vector<NodeId> calls = nodes_calling(graph, name);
    EXPECT_FALSE(calls.empty()) << name;
    const Flops flops = Flops::of(graph);
    for (const UncoveredOperator& uncovered : flops.uncovered()) EXPECT_NE(uncovered.op, name);
    return calls.empty() ? NodeFlops() : flops.of(calls.front());
  };
  const NodeFlops before = cost_of("aten::cudnn_batch_norm");
  EXPECT_GT(before.elementwise, 0);
  functionalize(graph);
  EXPECT_EQ(cost_of("sg_functional::aten__cudnn_batch_norm"), before);
}

// The functional form returns the result of `out=` first, although it is the last argument.
TEST(Functionalize, WhatIsWrittenBesideAnOutGetsItsOwn) {
  Graph graph = graph_of(
      "operator aten::rrelu_with_noise.out(Tensor self, Tensor(b!) noise, Scalar lower=0.125, Scalar "
      "upper=0.33333333333333331, bool training=False, Generator? generator=None, *, Tensor(a!) out) -> Tensor(a!)\n"
      "s0 = 16 cpu input\ns1 = 16 cpu input\ns2 = 16 cpu input\n"
      "%0 = sg::input(name=\"x\") : f32[4] @s0\n"
      "%1 = sg::input(name=\"noise\") : f32[4] @s1\n"
      "%2 = sg::input(name=\"out\") : f32[4] @s2\n"
      "%3 = aten::rrelu_with_noise.out(self=%0, noise=%1, training=true, out=%2) : f32[4] @s2\n"
      "sg::output(values=[%3])\n");
  const FunctionalizeResult result = functionalize(graph);
  verify(graph);
  const std::vector<NodeId> calls = nodes_calling(graph, "aten::rrelu_with_noise_functional");
  ASSERT_EQ(calls.size(), 1U);
  ASSERT_EQ(result.mutated.size(), 2U);
  for (const auto& mutated : result.mutated) {
    const bool is_out = graph.text(graph.arguments(mutated.placeholder)[0].string) == "out";
    EXPECT_EQ(graph.arguments(mutated.write_back)[1].ref.value, graph.results(calls[0])[is_out ? 0 : 1].ref.value);
  }
}

TEST(FunctionalForm, IsFoundByNameAndSchema) {
  const auto form_of = [](const char* name, const char* overload) {
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
    const Target target(TargetKind::kOperator, op.schema());
    const FunctionalForm* form = functional_form(target);
    return form != nullptr ? form->target.name() : std::string("none");
  };
  EXPECT_EQ(form_of("aten::add_", "Tensor"), "aten::add.Tensor");
  EXPECT_EQ(form_of("aten::add", "out"), "aten::add.Tensor");
  EXPECT_EQ(form_of("aten::mm", "out"), "aten::mm");
  EXPECT_EQ(form_of("aten::t_", ""), "aten::t");
  EXPECT_EQ(form_of("aten::normal_", ""), "aten::normal_functional");
  EXPECT_EQ(form_of("aten::bernoulli_", "float"), "aten::bernoulli.p");
  EXPECT_EQ(form_of("aten::_foreach_add_", "List"), "aten::_foreach_add.List");
  EXPECT_EQ(form_of("aten::_fused_adamw_", ""), "aten::_fused_adamw");
  EXPECT_EQ(form_of("aten::native_batch_norm", ""), "aten::_native_batch_norm_legit_functional");
  EXPECT_EQ(form_of("aten::cudnn_batch_norm", ""), "none");
  EXPECT_EQ(form_of("aten::relu", ""), "none");
  const auto in_place = [](const char* name, const char* overload) {
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
    const Target target(TargetKind::kOperator, op.schema());
    const Target* form = in_place_form(target);
    return form != nullptr ? form->name() : std::string("none");
  };
  EXPECT_EQ(in_place("aten::add", "Tensor"), "aten::add_.Tensor");
  EXPECT_EQ(in_place("aten::normal_functional", ""), "aten::normal_");
  EXPECT_EQ(in_place("aten::_fused_adamw", ""), "aten::_fused_adamw_");
  EXPECT_EQ(in_place("aten::mm", ""), "none");
}

}  // namespace
}  // namespace shadowgraph
