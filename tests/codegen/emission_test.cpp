// Code that emit_cpp and emit_python generate, without compiling it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/replay/body_function.h"
#include "shadowgraph/codegen/codegen.h"
#include "shadowgraph/graph/text.h"

namespace shadowgraph {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kTwice = R"(shadowgraph 1 libtorch 2.13.0
operator aten::relu(Tensor self) -> Tensor
function my::twice(Tensor x) -> Tensor
s0 = 16 cpu input
s1 = 16 cpu temporary
s2 = 16 cpu temporary
%0 = sg::input(name="x") : f32[4] @s0
%1 = aten::relu(self=%0) : f32[4] @s1
%2 = my::twice(x=%1) : f32[4] @s2
sg::output(values=[%2])
)";

constexpr const char* kBody = R"(shadowgraph 1 libtorch 2.13.0
operator aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
s0 = 16 cpu input
s1 = 16 cpu temporary
%0 = sg::input(name="x") : f32[4] @s0
%1 = aten::add.Tensor(self=%0, other=%0) : f32[4] @s1
sg::output(values=[%1])
)";

NodeId call_in(const Graph& graph) {
  for (const NodeId node : graph.nodes()) {
    if (graph.target(node).name() == "my::twice") return node;
  }
  return {};
}

std::string refusal(const Graph& graph, const std::function<GeneratedCode(const Graph&, const CodegenOptions&)>& emit) {
  try {
    emit(graph, {});
  } catch (const UnsupportedError& error) {
    EXPECT_EQ(error.node(), call_in(graph));
    return error.what();
  }
  return "nothing";
}

TEST(Emission, RefusesFunctionsWhoseOperatorsAreNotKnown) {
  const Graph graph = parse(kTwice);
  for (const std::string& text : {refusal(graph, emit_cpp), refusal(graph, emit_python)}) {
    EXPECT_THAT(text, HasSubstr("my::twice(x=%1)"));
    EXPECT_THAT(text, HasSubstr("CodegenOptions::functions"));
  }
}

std::string all_files(const GeneratedCode& code) {
  std::string files;
  for (const auto& [name, file] : code.files) files += file;
  return files;
}

// A graph with relu of an input called `name`, spelled as in the text form.
Graph graph_of_input(const std::string& name) {
  std::string text = kTwice;
  text.replace(text.find("\"x\""), 3, name);
  text.replace(text.find("%2 = my::twice(x=%1)"), 20, "%2 = aten::relu(self=%1)");
  return parse(text);
}

// In C++, a hexadecimal escape would absorb following digits.
TEST(Emission, EndsEscapesInStrings) {
  const Graph graph = graph_of_input(R"("a\x01f")");
  EXPECT_THAT(all_files(emit_cpp(graph)), HasSubstr(R"("a\001f")"));
  EXPECT_THAT(all_files(emit_python(graph)), HasSubstr(R"("a\x01f")"));
}

TEST(Emission, EscapesQuotesAndBackslashes) {
  const Graph graph = graph_of_input(R"("a\"b\\c")");
  EXPECT_THAT(all_files(emit_cpp(graph)), HasSubstr(R"("a\"b\\c")"));
  EXPECT_THAT(all_files(emit_python(graph)), HasSubstr(R"("a\"b\\c")"));
}

// neg, in region r1, was captured with gradients disabled.
constexpr const char* kGradientsOff = R"(shadowgraph 1 libtorch 2.13.0
operator aten::relu(Tensor self) -> Tensor
operator aten::neg(Tensor self) -> Tensor
s0 = 16 cpu input
s1 = 16 cpu temporary
s2 = 16 cpu temporary
r1 = checkpoint "block" in r0
%0 = sg::input(name="x") : f32[4] @s0
%1 = aten::relu(self=%0) : f32[4] @s1 | grad_mode
%2 = aten::neg(self=%1) : f32[4] @s2 | r1
sg::output(values=[%2])
)";

// A checkpointed function runs with gradients disabled first and enabled in the recomputation, so it must not set the
// grad mode itself.
TEST(Emission, ACheckpointedFunctionLeavesTheGradModeToItsCaller) {
  const CodegenOptions options{.autograd = true};
  const Graph checkpoint = parse(kGradientsOff);
  EXPECT_THAT(all_files(emit_cpp(checkpoint, options)), HasSubstr("at::Tensor run_block(at::Tensor relu) {\n"
                                                                  "  at::Tensor neg = at::neg(relu);\n"
                                                                  "  return neg;\n"
                                                                  "}\n"));
  EXPECT_THAT(all_files(emit_python(checkpoint, options)), Not(HasSubstr("set_grad_enabled(False)")));

  std::string text = kGradientsOff;
  text.replace(text.find("checkpoint"), 10, "scope");
  const Graph scope = parse(text);
  EXPECT_THAT(all_files(emit_cpp(scope, options)), HasSubstr("  c10::GradMode::set_enabled(false);\n"));
  EXPECT_THAT(all_files(emit_python(scope, options)), HasSubstr("set_grad_enabled(False)"));
}

// A block with gradients follows a statement without. The block's function sets no mode, so the caller must restore the
// mode in which `run` was called.
TEST(Emission, GradientsAreOnAgainBeforeABlockThatHadThem) {
  std::string text = kGradientsOff;
  text.replace(text.find("checkpoint"), 10, "scope");
  text.replace(text.find(" | grad_mode"), 12, "");
  text.replace(text.find(" | r1"), 5, " | r1 grad_mode");
  const std::string code = all_files(emit_cpp(parse(text), {.autograd = true, .min_function_nodes = 1}));
  EXPECT_THAT(code, HasSubstr("  c10::GradMode::set_enabled(false);\n"
                              "  at::Tensor relu = at::relu(x);\n"
                              "  drop(x);\n"
                              "  c10::GradMode::set_enabled(with_gradients);\n"));
}

TEST(Emission, RefusesBodiesThatDoNotFit) {
  Graph graph = parse(kTwice);
  graph.set_note(call_in(graph), kBodyNote, "no graph");
  EXPECT_THAT(refusal(graph, emit_cpp), HasSubstr("its body cannot be inlined"));
  std::string body = kBody;
  body.replace(body.find("values=[%1]"), 11, "values=[%1, %0]");
  graph.set_note(call_in(graph), kBodyNote, body);
  EXPECT_THAT(refusal(graph, emit_python), HasSubstr("returns 2 values, but the call has 1"));
  body = kBody;
  for (size_t at = body.find("f32[4]"); at != body.npos; at = body.find("f32[4]")) body.replace(at, 6, "f32[2,2]");
  graph.set_note(call_in(graph), kBodyNote, body);
  EXPECT_THAT(refusal(graph, emit_cpp), HasSubstr("its body cannot be inlined"));
}

TEST(Emission, WritesBodiesAsFunctionsHoweverSmall) {
  Graph graph = parse(kTwice);
  graph.set_note(call_in(graph), kBodyNote, kBody);
  EXPECT_THAT(emit_cpp(graph).files.at("graph.cpp"), HasSubstr("at::Tensor run_my_twice(at::Tensor "));
  EXPECT_THAT(emit_python(graph).files.at("graph.py"), HasSubstr("def run_my_twice("));
  // Values of the graph before inlining can still be selected.
  const ValueId result = graph.results(call_in(graph))[0].ref.value;
  EXPECT_THAT(emit_cpp(graph, {.only = {result}}).files.at("graph.cpp"), HasSubstr("run_my_twice(std::move("));
}

TEST(Emission, FunctionsThatAreNamedGoBeforeBodies) {
  Graph graph = parse(kTwice);
  graph.set_note(call_in(graph), kBodyNote, kBody);
  const std::string cpp =
      emit_cpp(graph, {.functions = {{"my::twice", {"mine::twice", "mine/twice.h"}}}}).files.at("graph.cpp");
  EXPECT_THAT(cpp, HasSubstr("mine::twice(relu)"));
  EXPECT_THAT(cpp, HasSubstr("#include <mine/twice.h>"));
  const std::string python =
      emit_python(graph, {.functions = {{"my::twice", {"twice", "mine.fast"}}}}).files.at("graph.py");
  EXPECT_THAT(python, HasSubstr("mine.fast.twice(relu)"));
  EXPECT_THAT(python, HasSubstr("import mine.fast"));
  // A variable must not shadow the module.
  EXPECT_THAT(emit_python(graph, {.functions = {{"my::twice", {"twice", "relu"}}}}).files.at("graph.py"),
              HasSubstr("relu.twice(relu_2)"));
}

TEST(Emission, RefusesBackwardUnderAutograd) {
  for (const std::string phase : {"backward", "optimizer"}) {
    std::string text = kTwice;
    text.replace(text.find("@s1\n%2"), 3, "@s1 | " + phase);
    const Graph graph = parse(text);
    EXPECT_THROW(emit_cpp(graph, {.autograd = true}), UnsupportedError) << phase;
    EXPECT_THROW(emit_python(graph, {.autograd = true}), UnsupportedError) << phase;
  }
}

}  // namespace
}  // namespace shadowgraph
