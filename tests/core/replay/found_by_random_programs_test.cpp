// Regressions found by random programs, reduced to minimal programs, because a seed gives another program once an
// instruction is added. Each is replayed as captured and with every write rewriting; all must be bitwise equal to
// eager.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include "core/replay/body_function.h"
#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/replay.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/graph/verify.h"
#include "shadowgraph/passes/functional.h"
#include "shadowgraph/passes/pipeline.h"
#include "shadowgraph/passes/structure.h"
#include "tests/random/program.h"

namespace shadowgraph::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

struct Case {
  std::function<Tensors()> inputs;  // creates the same inputs each time
  std::function<Tensors(const Tensors&)> run;
  bool sizes_watched = true;  // captured with guards
};

Graph captured(const Case& program) {
  const c10::NoGradGuard no_grad;
  const Tensors inputs = program.inputs();
  Capture session({.saved_tensors = false, .guards = program.sizes_watched});
  Tensors fakes;
  for (size_t i = 0; i < inputs.size(); ++i) {
    session.name_input(inputs[i], "input" + std::to_string(i));
    fakes.push_back(session.mode().from_real(inputs[i]));
  }
  return session.finish(program.run(fakes));
}

Outcome run(const Case& program, const Graph* graph) {
  const c10::NoGradGuard no_grad;
  const Tensors inputs = program.inputs();
  Outcome outcome;
  for (const at::Tensor& input : inputs) outcome.inputs.push_back(input.detach());
  at::manual_seed(7);
  if (graph == nullptr) {
    outcome.outputs = program.run(inputs);
    return outcome;
  }
  Bindings bindings;
  for (const NodeId n : graph->nodes()) {
    if (graph->node(n).target != target_of(Builtin::kInput)) continue;
    const std::string& name = graph->text(graph->arguments(n)[0].string);
    bindings.bind(name, inputs.at(std::stoul(name.substr(std::string("input").size()))));
  }
  outcome.outputs = Interpreter(*graph, {.check_results = true}).run(bindings).outputs;
  return outcome;
}

void expect_same(const Case& program) {
  const Outcome eager = run(program, nullptr);
  const Graph graph = captured(program);
  for (const char* pipeline : {"", "functionalize", "reinplace", "functionalize,reinplace", "canonicalize,cse,dce"}) {
    SCOPED_TRACE(pipeline);
    Graph rewritten = clone(graph);
    if (*pipeline != '\0') Pipeline::parse(pipeline).run(rewritten, PipelineOptions::checked());
    verify(rewritten);
    const Outcome left = run(program, &rewritten);
    EXPECT_EQ(difference(eager, left), "") << to_text(rewritten);
  }
}

at::Tensor numbers(int64_t count) { return at::arange(1, count + 1, at::kFloat).div_(8); }
at::Tensor lazy(const at::Tensor& tensor) { return at::_neg_view(tensor); }

// ---- Lazy negatives and conjugates

// For `out=`, libtorch resizes the tensor without calling the dispatcher (core/fake/dispatch/call.h).
TEST(FoundByRandomPrograms, AnOutThatIsALazyNegativeIsResized) {
  for (const bool watched : {false, true}) {
    expect_same({.inputs =
                     [] {
                       return Tensors{numbers(4), at::empty({0})};
                     },
                 .run =
                     [](const Tensors& in) {
                       at::Tensor out = lazy(in[1]);
                       at::add_out(out, in[0], in[0]);
                       return Tensors{out, out.mul(2)};
                     },
                 .sizes_watched = watched});
  }
}

TEST(FoundByRandomPrograms, ALazyConjugateIsSqueezedInPlace) {
  for (const bool watched : {false, true}) {
    expect_same({.inputs =
                     [] {
                       return Tensors{at::complex(numbers(3), numbers(3)).view({3, 1})};
                     },
                 .run =
                     [](const Tensors& in) {
                       at::Tensor conjugate = in[0].conj();
                       conjugate.squeeze_(1);
                       conjugate.add_(1);
                       return Tensors{conjugate, in[0].mul(2)};
                     },
                 .sizes_watched = watched});
  }
}

// The resize is recorded; otherwise the recorder would treat the tensor as a new input.
TEST(FoundByRandomPrograms, TheResizeOfALazyOutIsANodeOfTheGraph) {
  const Graph graph = captured({.inputs =
                                    [] {
                                      return Tensors{numbers(4), at::empty({0})};
                                    },
                                .run =
                                    [](const Tensors& in) {
                                      at::Tensor out = lazy(in[1]);
                                      at::add_out(out, in[0], in[0]);
                                      return Tensors{out};
                                    }});
  uint32_t inputs = 0;
  uint32_t resizes = 0;
  for (const NodeId n : graph.nodes()) {
    inputs += graph.node(n).target == target_of(Builtin::kInput);
    resizes += graph.target(n).name() == "aten::resize_";
  }
  EXPECT_EQ(inputs, 2U) << to_text(graph);
  EXPECT_EQ(resizes, 1U) << to_text(graph);
}

// The functional form returns the stored values, not their negatives.
TEST(FoundByRandomPrograms, AStorageGrowsThroughALazyNegative) {
  expect_same({.inputs = [] { return Tensors{numbers(2).clone()}; },
               .run =
                   [](const Tensors& in) {
                     at::Tensor negative = lazy(in[0]);
                     negative.resize_({4}).fill_(3);
                     in[0].add_(1);
                     return Tensors{negative.mul(1), in[0].mul(2)};
                   }});
}

TEST(FoundByRandomPrograms, SetKeepsTheLazyNegativeOfItsSelf) {
  expect_same({.inputs =
                   [] {
                     return Tensors{numbers(4), numbers(4).mul(3)};
                   },
               .run =
                   [](const Tensors& in) {
                     at::Tensor negative = lazy(in[0]);
                     negative.set_(in[1]);
                     negative.fill_(-2);
                     return Tensors{negative, in[1].mul(1)};
                   }});
}

// copy_ converts first, so imaginary parts become -0.
TEST(FoundByRandomPrograms, ALazyNegativeIsCopiedIntoComplexNumbers) {
  expect_same({.inputs =
                   [] {
                     return Tensors{numbers(3), at::complex(numbers(3), numbers(3))};
                   },
               .run =
                   [](const Tensors& in) {
                     in[1].copy_(lazy(in[0]));
                     return Tensors{in[1].mul(1)};
                   }});
}

TEST(FoundByRandomPrograms, ALazyNegativeIsCopiedIntoAnother) {
  expect_same({.inputs =
                   [] {
                     return Tensors{numbers(6).as_strided({1, 2}, {1, 1}), numbers(6).as_strided({1, 2}, {1, 3})};
                   },
               .run =
                   [](const Tensors& in) {
                     lazy(in[0]).copy_(lazy(in[1]));
                     return Tensors{in[0].mul(1)};
                   }});
}

// Written in place to a lazy negative, the result would be stored negated.
TEST(FoundByRandomPrograms, WhatIsComputedFromALazyNegativeIsNotStoredThere) {
  expect_same({.inputs = [] { return Tensors{numbers(4)}; },
               .run =
                   [](const Tensors& in) {
                     const at::Tensor base = in[0].mul(2);
                     at::Tensor part = lazy(base).select(0, 1);
                     part.copy_(part);
                     at::Tensor first = lazy(base).slice(0, 0, 2);
                     first.fill_(-5);
                     return Tensors{lazy(base), base.add(1)};
                   }});
}

// ---- Storages whose size is not a multiple of the element size

at::Tensor odd_floats() {  // five floats, viewed as complex numbers of two floats
  return at::empty({5}, at::kFloat).copy_(numbers(5)).slice(0, 2, 4);
}

TEST(FoundByRandomPrograms, ComplexNumbersAreWrittenIntoAnOddNumberOfFloats) {
  expect_same({.inputs = [] { return Tensors{odd_floats()}; },
               .run =
                   [](const Tensors& in) {
                     at::view_as_complex(in[0]).mul_(3);
                     return Tensors{in[0].add(1)};
                   }});
}

// The graph records only the final size.
TEST(FoundByRandomPrograms, ComplexNumbersAreWrittenIntoAnOddNumberOfFloatsThatIsResizedLater) {
  expect_same({.inputs = [] { return Tensors{odd_floats()}; },
               .run =
                   [](const Tensors& in) {
                     at::Tensor number = at::view_as_complex(in[0]);
                     number.mul_(3);
                     in[0].select(0, 0).copy_(in[0].select(0, 1));
                     number.resize_({3, 4}).fill_(-2.5);
                     return Tensors{in[0].add(1)};
                   }});
}

TEST(FoundByRandomPrograms, AnElementOfComplexNumbersIsWrittenIntoAnOddNumberOfFloats) {
  expect_same({.inputs = [] { return Tensors{at::empty({7}, at::kFloat).copy_(numbers(7)).slice(0, 2, 6)}; },
               .run =
                   [](const Tensors& in) {
                     const at::Tensor complex = at::view_as_complex(in[0].view({2, 2}));
                     complex.select(0, -1).fill_(2);
                     return Tensors{in[0].add(1)};
                   }});
}

// ---- Bits

// sigmoid's vectorized and scalar loops differ in the last bit.
TEST(FoundByRandomPrograms, APointwiseOperatorIntoATensorWithGapsLeavesTheBitsOfThatLoop) {
  expect_same({.inputs =
                   [] {
                     return Tensors{numbers(400).sub_(25), at::zeros({800}).slice(0, 0, 800, 2)};
                   },
               .run =
                   [](const Tensors& in) {
                     at::Tensor out = in[1];
                     at::sigmoid_out(out, in[0]);
                     return Tensors{out.add(0)};
                   }});
}

// ---- Identity

// A dead conjugate or dtype view blocks a rewrite until it is removed; the first run must already find that rewrite.
TEST(FoundByRandomPrograms, CanonicalizingAgainChangesNothing) {
  Graph graph = captured({.inputs = [] { return Tensors{numbers(4)}; },
                          .run =
                              [](const Tensors& in) {
                                const at::Tensor sum = in[0].add(1);
                                at::Tensor same = sum.detach();
                                same.zero_();
                                const at::Tensor unused = at::view_as_complex(same.view({2, 2}));
                                return Tensors{sum.mul(2)};
                              }});
  Pipeline::parse("canonicalize").run(graph, PipelineOptions::checked());
  EXPECT_FALSE(Pipeline::parse("canonicalize").run(graph, PipelineOptions::checked()).changed()) << to_text(graph);
}

// Two empty tensors with one value: eager allows one to be written and the other read.
TEST(FoundByRandomPrograms, AnEmptyOutMayBeAnOperandAsWell) {
  expect_same({.inputs =
                   [] {
                     return Tensors{at::empty({0, 2}), at::empty({0, 2}), numbers(2)};
                   },
               .run =
                   [](const Tensors& in) {
                     at::Tensor out = in[2];
                     out.set_data(in[1]);
                     at::cat_out(out, {in[0], in[1]}, 0);
                     return Tensors{out};
                   }});
}

// Seed 642051 of PiecesOfPrograms.
TEST(FoundByRandomPrograms, AnOutWithGapsMayBeAnOperandAsWell) {
  expect_same({.inputs =
                   [] {
                     return Tensors{numbers(4).reshape({2, 2}).slice(1, 0, 1), at::empty({0, 1}), numbers(2)};
                   },
               .run =
                   [](const Tensors& in) {
                     at::Tensor operand = in[2];
                     operand.set_data(in[0]);
                     at::Tensor out = in[0];
                     at::cat_out(out, {operand, in[1]}, 0);
                     return Tensors{out};
                   }});
}

// A piece returns both an operand and the result of an in-place operator on it, which are one tensor; a later piece
// changes its geometry.
TEST(FoundByRandomPrograms, OutputsOfAPieceAreTensorsOfTheirOwn) {
  const Case program{.inputs =
                         [] {
                           return Tensors{numbers(8).view({2, 4})};
                         },
                     .run =
                         [](const Tensors& in) {
                           at::Tensor sum = in[0].add(1);
                           const at::Tensor same = sum.variable_data();
                           sum.mul_(2);
                           sum.t_();
                           return Tensors{same.div(2), sum.sub(3)};
                         }};
  const Outcome eager = run(program, nullptr);
  const Graph graph = captured(program);
  PartOf parts(-1);
  for (const NodeId n : graph.nodes()) {
    const std::string& name = graph.target(n).name();
    if (name == "aten::add.Scalar" || name == "aten::mul_.Scalar") parts[n] = 0;
  }
  PartitionedGraph cut = split(graph, parts);
  for (const PartitionedGraph::Part& piece : cut.parts) {
    for (const NodeId n : cut.parent.nodes()) {
      if (cut.parent.target(n).name() == piece.function) cut.parent.set_note(n, kBodyNote, to_text(piece.graph));
    }
  }
  EXPECT_EQ(difference(eager, run(program, &cut.parent)), "") << to_text(cut.parent);
}

}  // namespace
}  // namespace shadowgraph::testing
