// The interpreter's contract, one guarantee per test. Whole programs are tested in random_program_test and
// models_replay_test.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/DefaultDtype.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/variable.h>

#include "core/replay/body_function.h"
#include "shadowgraph/capture/functions.h"
#include "shadowgraph/graph/text.h"
#include "tests/core/replay/interpreter_samples.h"
#include "tests/this_libtorch.h"

namespace shadowgraph {
namespace {

// A factory without a dtype uses the default dtype at capture time.
TEST(Interpreter, FactoriesKeepTheDefaultDtypeOfTheCapture) {
  const auto with_default = [](caffe2::TypeMeta dtype, auto&& run) {
    const caffe2::TypeMeta before = c10::get_default_dtype();
    c10::set_default_dtype(dtype);
    auto result = run();
    c10::set_default_dtype(before);
    return result;
  };
  const auto factories = [](const Tensors&) {
    return Tensors{at::ones({2}), at::arange(3.0), at::scalar_tensor(1.5), at::full({2}, 0.5), at::rand({2})};
  };
  const Graph graph = with_default(caffe2::TypeMeta::Make<double>(), [&] { return captured({}, factories); });
  for (const at::Tensor& output : Interpreter(graph).run({}).outputs) EXPECT_EQ(output.scalar_type(), at::kDouble);
  const Graph floats = captured({}, factories);
  const ReplayResult result =
      with_default(caffe2::TypeMeta::Make<double>(), [&] { return Interpreter(floats).run({}); });
  for (const at::Tensor& output : result.outputs) EXPECT_EQ(output.scalar_type(), at::kFloat);
}

// ---- Bindings

TEST(Bindings, ByNameAndInOrder) {
  const Graph graph = captured({ones23(), ones23().clone()}, [](const Tensors& in) { return Tensors{in[0] - in[1]}; });
  Interpreter interpreter(graph);
  const at::Tensor three = at::full({2, 3}, 3.0);
  EXPECT_TRUE(
      interpreter.run(Bindings().bind("y", three).bind("x", ones23())).outputs[0].equal(at::full({2, 3}, -2.0)));
  EXPECT_TRUE(interpreter.run(Bindings().in_order({three, ones23()})).outputs[0].equal(at::full({2, 3}, 2.0)));
}

TEST(Bindings, WhatDoesNotFitIsRefusedBeforeAnythingRuns) {
  const Graph graph = captured({ones23()}, [](const Tensors& in) {
    in[0].zero_();
    return Tensors{in[0]};
  });
  EXPECT_CONTAINS(error_of(graph, Bindings()), "no tensor is bound to it; call Bindings::bind(\"x\", tensor)");
  EXPECT_CONTAINS(error_of(graph, Bindings().bind("x", at::ones({3, 2}))),
                  "Float [3, 2] with strides [2, 1], expected Float [2, 3]");
  EXPECT_CONTAINS(error_of(graph, Bindings().bind("x", at::ones({2, 3}, at::kDouble))),
                  "the tensor bound to it is Double");
  EXPECT_CONTAINS(error_of(graph, Bindings().bind("x", at::ones({3, 2}).t())), "with strides [1, 2], expected");
  EXPECT_CONTAINS(error_of(graph, Bindings().in_order({ones23(), ones23()})),
                  "the graph has 1 parameters, buffers and inputs, but 2");
  const at::Tensor x = at::ones({2, 3});
  EXPECT_CONTAINS(error_of(graph, Bindings().bind("x", x).bind("q", x)), "the graph has no placeholder named 'q'");
  EXPECT_TRUE(x.equal(ones23()));
  EXPECT_EQ(error_of(graph, Bindings().bind("x", at::ones({7})), {.check_bindings = false}), "");
}

// The stride of a dimension of size 1 is ignored.
TEST(Bindings, StridesOfSingleElementsDoNotCount) {
  const Graph graph = captured({at::ones({2, 1, 3})}, [](const Tensors& in) { return Tensors{in[0] * 2}; });
  const at::Tensor x = at::ones({6}).as_strided({2, 1, 3}, {3, 17, 1});
  EXPECT_TRUE(Interpreter(graph).run(Bindings().bind("x", x)).outputs[0].equal(x * 2));
}

TEST(Bindings, WritesReachTheBoundTensorUnlessCopiesAreAskedFor) {
  const Graph graph = captured({ones23()}, [](const Tensors& in) {
    in[0].select(0, 1).add_(1);
    return Tensors{in[0] * 2};
  });
  const at::Tensor expected = at::tensor({1., 1., 1., 2., 2., 2.}).view({2, 3});
  const at::Tensor kept = at::ones({2, 3});
  Interpreter copying(graph, {.copy_inputs = true});
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(copying.run(Bindings().bind("x", kept)).outputs[0].equal(expected * 2));
  EXPECT_TRUE(kept.equal(ones23()));

  const at::Tensor x = at::ones({2, 3});
  const auto version = x._version();
  EXPECT_TRUE(Interpreter(graph).run(Bindings().bind("x", x)).outputs[0].equal(expected * 2));
  EXPECT_TRUE(x.equal(expected));
  EXPECT_GT(x._version(), version) << "autograd would not detect the write";
}

TEST(Bindings, TheirGeometryIsTheCallers) {
  const Graph graph = captured({ones23()}, [](const Tensors& in) {
    in[0].t_();
    in[0].add_(1);
    return Tensors{in[0]};
  });
  const at::Tensor x = at::ones({2, 3});
  EXPECT_EQ(Interpreter(graph).run(Bindings().bind("x", x)).outputs[0].sizes(), (at::IntArrayRef{3, 2}));
  EXPECT_EQ(x.sizes(), (at::IntArrayRef{2, 3}));
  EXPECT_TRUE(x.equal(at::full({2, 3}, 2.0)));
}

// ---- Running

TEST(Interpreter, NumbersKeepTheirWeight) {
  const Graph graph = captured({at::ones({2}, at::kInt)}, [](const Tensors& in) {
    return Tensors{in[0] * 2, in[0] * 2.5};
  });
  const auto outputs = Interpreter(graph).run(Bindings().bind("x", at::ones({2}, at::kInt))).outputs;
  EXPECT_EQ(outputs[0].scalar_type(), at::kInt);
  EXPECT_EQ(outputs[1].scalar_type(), at::kFloat);
}

TEST(Interpreter, ParametersThatRequireGradAreRunBelowAutograd) {
  const Graph graph = captured({ones23()}, [](const Tensors& in) {
    in[0].add_(1);
    return Tensors{in[0].view({6}).mul(2)};
  });
  const at::Tensor leaf = at::ones({2, 3}).set_requires_grad(true);
  const auto outputs = Interpreter(graph).run(Bindings().bind("x", leaf)).outputs;
  EXPECT_FALSE(outputs[0].requires_grad());
  EXPECT_TRUE(leaf.detach().equal(at::full({2, 3}, 2.0)));
}

TEST(Interpreter, OldValuesKeepTheirGeometry) {
  // %x is used after t_ and set_ have changed its tensor in place.
  const Graph graph = parse(R"(shadowgraph 1 libtorch 2.13.0
operator aten::t_(Tensor(a!) self) -> Tensor(a!)
operator aten::set_.source_Tensor(Tensor(a!) self, Tensor source) -> Tensor(a!)
operator aten::clone(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor
s0 = 24 cpu input
s1 = 8 cpu input
s2 = 24 cpu temporary
%0 = sg::input(name="x") : f32[2,3] @s0
%1 = sg::input(name="y") : f32[2] @s1
%2 = aten::t_(self=%0) : f32[3,2]{1,3} @s0
%3 = aten::set_.source_Tensor(self=%2, source=%1) : f32[2] @s1
%4 = aten::clone(self=%0) : f32[2,3] @s2
%5 = sg::alias(source=%2) : f32[6] @s0
sg::output(values=[%0, %2, %3, %4, %5])
)");
  const auto outputs =
      Interpreter(graph, {.check_results = true}).run(Bindings().in_order({ones23(), at::zeros({2})})).outputs;
  const std::vector<std::vector<int64_t>> sizes{{2, 3}, {3, 2}, {2}, {2, 3}, {6}};
  for (size_t i = 0; i < sizes.size(); ++i) EXPECT_EQ(outputs[i].sizes(), at::IntArrayRef(sizes[i])) << i;
  EXPECT_TRUE(outputs[2].equal(at::zeros({2})));
  EXPECT_TRUE(outputs[4].is_alias_of(outputs[0]));
}

TEST(Interpreter, SetToAStorageIsAnAliasOfIt) {
  const auto program = [](const Tensors& in) {
    at::Tensor x = in[0].detach();
    x.set_(in[1].storage(), 1, {2, 2}, {1, 2});
    x.mul_(2);
    return Tensors{x, in[1]};
  };
  const Tensors inputs{ones23(), at::arange(6, at::kFloat)};
  const Graph graph = captured(inputs, program);
  const NodeId set = node_called(graph, "aten::set_.source_Tensor");
  ASSERT_TRUE(set.valid()) << to_text(graph);
  EXPECT_EQ(graph.node(graph.value(graph.arguments(set)[1].ref.value).producer).target, target_of(Builtin::kAlias));
  const Tensors replayed{ones23(), inputs[1].clone()};
  const auto outputs = Interpreter(graph, {.check_results = true}).run(Bindings().in_order(replayed)).outputs;
  EXPECT_TRUE(outputs[0].equal(at::tensor({2, 6, 4, 8}, at::kFloat).view({2, 2})));
  EXPECT_TRUE(replayed[1].equal(at::tensor({0, 2, 4, 6, 8, 5}, at::kFloat)));
  EXPECT_TRUE(outputs[0].is_alias_of(replayed[1]));
}

TEST(Interpreter, SetToAStorageOfNoTensorIsRefused) {
  const Graph graph = captured({ones23()}, [](const Tensors& in) {
    at::Tensor x = in[0].detach();
    const c10::Device meta(at::kMeta);
    x.set_(c10::Storage(c10::Storage::use_byte_size_t(), 24, c10::DataPtr(nullptr, meta), c10::GetAllocator(at::kMeta),
                        /*resizable=*/true),
           0, {6}, {1});
    return Tensors{x};
  });
  EXPECT_CONTAINS(error_of(graph, Bindings().in_order({ones23()})), "an object that a graph cannot hold (Storage)");
}

// `x.data = y` records no node. The tensor bound to x keeps its data.
TEST(Interpreter, DataOfAnInputExchanged) {
  const auto program = [](const Tensors& in) {
    at::Tensor x = in[0];
    x.set_data(in[1]);
    x.add_(1);
    return Tensors{x, in[1]};
  };
  const Graph graph = captured({ones23(), at::zeros({2})}, program);
  const Tensors bound{ones23().clone(), at::zeros({2})};
  const auto outputs = Interpreter(graph, {.check_results = true}).run(Bindings().in_order(bound)).outputs;
  EXPECT_TRUE(outputs[0].equal(at::ones({2})));
  EXPECT_TRUE(bound[0].equal(ones23()));
  EXPECT_TRUE(bound[1].equal(at::ones({2}))) << "overwritten through x";
  EXPECT_TRUE(outputs[0].is_alias_of(bound[1]));
}

TEST(Interpreter, SetToWhatItIsAlreadyGivesTheSameTensor) {
  // %4 is the tensor of %0 and %3, although set_ aliases its source: when it moves on, %2 must not change.
  const Graph graph = parse(R"(shadowgraph 1 libtorch 2.13.0
operator aten::neg_(Tensor(a!) self) -> Tensor(a!)
operator aten::set_.source_Tensor(Tensor(a!) self, Tensor source) -> Tensor(a!)
operator aten::mul_.Scalar(Tensor(a!) self, Scalar other) -> Tensor(a!)
s0 = 4 cpu input
s1 = 12 cpu input
%0 = sg::input(name="x") : f32[1] @s0
%1 = sg::input(name="y") : f32[3] @s1
%2 = aten::neg_(self=%0) : f32[1] @s0 | writes(s0@1)
%3 = sg::alias(source=%0) : f32[1] @s0
%4 = aten::set_.source_Tensor(self=%0, source=%3) : f32[1] @s0 | writes(s0@2)
%5 = aten::set_.source_Tensor(self=%4, source=%1) : f32[3] @s1 | writes(s0@3)
%6 = aten::mul_.Scalar(self=%2, other=-2.0) : f32[1] @s0 | writes(s0@4)
sg::output(values=[%6, %5])
)");
  const auto outputs =
      Interpreter(graph, {.check_results = true}).run(Bindings().in_order({at::ones({1}), at::zeros({3})})).outputs;
  EXPECT_TRUE(outputs[0].equal(at::full({1}, 2.0)));
  EXPECT_TRUE(outputs[1].equal(at::zeros({3})));
}

TEST(Interpreter, ConstantsThatAreWrittenAreTheSameInEveryRun) {
  const at::Tensor real = at::arange(4, at::kFloat);
  const Graph graph = captured({}, [&](const Tensors&) {
    const at::Tensor fake = Capture::current()->mode().from_real(real);
    fake.narrow(0, 1, 2).add_(1);
    return Tensors{fake.clone()};
  });
  Interpreter interpreter(graph);
  const at::Tensor expected = at::tensor({0., 2., 3., 3.});
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(interpreter.run({}).outputs[0].equal(expected));
  EXPECT_TRUE(real.equal(at::arange(4, at::kFloat)));
}

TEST(Interpreter, DrawsWhatEagerDraws) {
  const auto program = [](const Tensors& in) {
    return Tensors{at::dropout(in[0], 0.5, true), at::rand_like(in[0]), at::randn({3})};
  };
  const Graph graph = captured({ones23()}, program);
  at::manual_seed(7);
  const Tensors eager = program({ones23()});
  const at::Tensor next = at::rand({1});
  Interpreter interpreter(graph);
  at::manual_seed(7);
  const Tensors replayed = interpreter.run(Bindings().bind("x", ones23())).outputs;
  for (size_t i = 0; i < eager.size(); ++i) EXPECT_TRUE(eager[i].equal(replayed[i])) << i;
  EXPECT_TRUE(next.equal(at::rand({1})));

  // The same with a separate generator; the default generator does not advance.
  at::Generator own = at::detail::createCPUGenerator(7);
  at::manual_seed(99);
  const at::Tensor untouched = at::rand({1});
  at::manual_seed(99);
  Interpreter with_own(graph, {.generator = own});
  const Tensors drawn = with_own.run(Bindings().bind("x", ones23())).outputs;
  for (size_t i = 0; i < eager.size(); ++i) EXPECT_TRUE(eager[i].equal(drawn[i])) << i;
  EXPECT_TRUE(untouched.equal(at::rand({1})));
  EXPECT_TRUE(next.equal(at::rand({1}, own)));
}

TEST(Interpreter, FakeTensorsGiveFakeTensors) {
  const Graph graph = captured({ones23()}, [](const Tensors& in) {
    return Tensors{at::ones({1000, 3}).mm(in[0].t())};
  });
  const FakeTensorMode mode;
  Interpreter interpreter(graph, {.check_results = true});
  for (const at::Tensor& x : {at::ones({2, 3}), ones23()}) {  // a fake tensor, and a real one that is converted
    const auto outputs = interpreter.run(Bindings().bind("x", x)).outputs;
    EXPECT_TRUE(is_fake(outputs[0]));
    EXPECT_EQ(outputs[0].sizes(), (at::IntArrayRef{1000, 2}));
  }
}

TEST(Interpreter, CapturesOnAPretendedGpuRunOnTheCpu) {
  const auto program = [](const Tensors& in) {
    return Tensors{in[0] + at::ones({2, 3}, at::Device("cuda:0")), at::full({2}, 5.0)};
  };
  const Graph graph = captured({ones23()}, program, at::Device(at::kCUDA, 0));
  const Bindings bindings = Bindings().bind("x", ones23());
  if (!at::hasCUDA()) {
    EXPECT_CONTAINS(error_of(graph, bindings),
                    "device cuda:0 is not available in this process; set InterpreterOptions::device");
  }
  Interpreter interpreter(graph, {.device = at::Device(at::kCPU)});
  const auto outputs = interpreter.run(bindings).outputs;
  EXPECT_TRUE(outputs[0].equal(at::full({2, 3}, 2.0)));
  EXPECT_TRUE(outputs[1].equal(at::full({2}, 5.0)));
}

TEST(Interpreter, AnOperatorsErrorNamesTheNode) {
  const Graph graph = captured({ones23()}, [](const Tensors& in) { return Tensors{in[0].relu().view({6})}; });
  const std::string error = error_of(graph, Bindings().bind("x", at::ones({4})), {.check_bindings = false});
  EXPECT_CONTAINS(error, "while running n2: %2 = aten::view(self=%1, size=[6])");
  EXPECT_CONTAINS(error, "shape '[6]' is invalid for input of size 4");
}

TEST(Interpreter, AnAliasOutsideItsStorageIsRefused) {
  const Graph graph = parse(R"(shadowgraph 1 libtorch 2.13.0
s0 = 24 cpu input
%0 = sg::input(name="x") : f32[2] @s0
%1 = sg::alias(source=%0) : f32[6] @s0
sg::output(values=[%1])
)");
  EXPECT_CONTAINS(error_of(graph, Bindings().bind("x", at::ones({2}))),
                  "it covers bytes 0 to 24 of a storage of 8 bytes");
  // At a different offset in its storage than the captured tensor: the alias moves with it.
  const at::Tensor flat = at::arange(8, at::kFloat);
  const auto outputs = Interpreter(graph).run(Bindings().bind("x", flat.narrow(0, 2, 2))).outputs;
  EXPECT_TRUE(outputs[0].equal(flat.narrow(0, 2, 6)));
}

// ---- Graphs that cannot run

constexpr const char* kUnknownOperator = R"(shadowgraph 1 libtorch 2.13.0
operator nobodys::op(Tensor self) -> Tensor
s0 = 24 cpu input
s1 = 24 cpu temporary
%0 = sg::input(name="x") : f32[2,3] @s0
%1 = nobodys::op(self=%0) : f32[2,3] @s1
sg::output(values=[%1])
)";

TEST(Interpreter, UnknownOperatorsAreNamed) {
  const Graph graph = parse(kUnknownOperator);
  EXPECT_CONTAINS(error_of(graph, Bindings().bind("x", ones23())), "cannot run n1: %1 = nobodys::op(self=%0)");
  EXPECT_CONTAINS(error_of(graph, Bindings().bind("x", ones23())),
                  "not registered in this process; load the library that registers nobodys::op");

  std::string other = of_this_libtorch(kUnknownOperator);  // another version's operator might have a different meaning
  for (size_t at = other.find("nobodys::op"); at != std::string::npos; at = other.find("nobodys::op")) {
    other.replace(at, 11, "aten::relu");
  }
  other.replace(other.find("Tensor self"), 11, "Tensor self, int q=1");
  EXPECT_CONTAINS(error_of(parse(other), Bindings().bind("x", ones23())),
                  "the operator has a different schema in this process");
}

TEST(Interpreter, OpaqueArgumentsAreNamed) {
  const Graph graph = parse(R"(shadowgraph 1 libtorch 2.13.0
operator aten::set_.source_Storage(Tensor(a!) self, Storage source) -> Tensor(a!)
s0 = 24 cpu input
s1 = 24 cpu temporary
%0 = sg::input(name="x") : f32[2,3] @s0
%1 = aten::set_.source_Storage(self=%0, source=opaque("Storage")) : f32[6] @s1
sg::output(values=[%1])
)");
  EXPECT_CONTAINS(error_of(graph, Bindings().bind("x", ones23())), "an object that a graph cannot hold (Storage)");
}

TEST(Interpreter, ADerivedOneRunsWhatThisProcessDoesNotHave) {
  class Mine final : public Interpreter {
   public:
    using Interpreter::Interpreter;
    int nodes = 0;

   protected:
    void run_node(NodeId node) override {
      ++nodes;
      if (graph().target(node).name() == "nobodys::op") {
        const at::Tensor x = value(graph().arguments(node)[0].ref.value).toTensor();
        set_value(graph().results(node)[0].ref.value, x * 5);
      } else {
        Interpreter::run_node(node);
      }
    }
  };
  const Graph graph = parse(kUnknownOperator);
  Mine mine(graph, {.defer_errors = true});
  EXPECT_TRUE(mine.run(Bindings().bind("x", ones23())).outputs[0].equal(at::full({2, 3}, 5.0)));
  EXPECT_EQ(mine.nodes, 3);
  EXPECT_CONTAINS(error_of(graph, Bindings().bind("x", ones23()), {.defer_errors = true}), "not registered");
}

TEST(Interpreter, SingleCallsCanBeReplaced) {
  class Doubled final : public Interpreter {
   public:
    using Interpreter::Interpreter;

   protected:
    void call_operator(NodeId node, const c10::OperatorHandle& op, torch::jit::Stack& stack) override {
      Interpreter::call_operator(node, op, stack);
      if (op.schema().name() == "aten::relu") stack[0] = stack[0].toTensor() * 2;
    }
  };
  const Graph graph = captured({ones23()}, [](const Tensors& in) { return Tensors{in[0].relu().neg()}; });
  EXPECT_TRUE(Doubled(graph).run(Bindings().bind("x", ones23())).outputs[0].equal(at::full({2, 3}, -2.0)));
}

TEST(Interpreter, ValuesAreFreedAtTheirLastUse) {
  class Watching final : public Interpreter {
   public:
    using Interpreter::Interpreter;
    std::vector<ValueId> made;
    size_t most = 0;

   protected:
    void run_node(NodeId node) override {
      Interpreter::run_node(node);
      graph().for_each_output(node, [&](ValueId value) { made.push_back(value); });
      size_t alive = 0;
      for (const ValueId id : made) {
        try {
          alive += value(id).isTensor() ? 1 : 0;
        } catch (const ReplayError&) {}
      }
      most = std::max(most, alive);
    }
  };
  const Graph graph = captured({ones23()}, [](const Tensors& in) {
    at::Tensor x = in[0];
    for (int i = 0; i < 50; ++i) x = x + 1;
    return Tensors{x};
  });
  Watching watching(graph);
  EXPECT_TRUE(watching.run(Bindings().bind("x", ones23())).outputs[0].equal(at::full({2, 3}, 51.0)));
  EXPECT_EQ(watching.most, 2U);
}

TEST(Interpreter, AFailedRunLeavesNothingBehind) {
  const Graph graph = captured({ones23()}, [](const Tensors& in) { return Tensors{in[0].relu().view({6})}; });
  Interpreter interpreter(graph, {.check_bindings = false});
  const at::Tensor wrong = at::ones({4});
  EXPECT_THROW(interpreter.run(Bindings().bind("x", wrong)), ReplayError);
  EXPECT_EQ(wrong.use_count(), 1);
  EXPECT_EQ(wrong.storage().use_count(), 1);
  EXPECT_TRUE(interpreter.run(Bindings().bind("x", ones23())).outputs[0].equal(at::ones({6})));
}

TEST(Interpreter, ResultsThatAreNotWhatTheGraphSays) {
  std::string text = to_text(captured({ones23()}, [](const Tensors& in) { return Tensors{in[0].relu()}; }));
  text.replace(text.rfind("f32[2,3]"), 8, "f32[3,2]");
  const Graph graph = parse(text);
  EXPECT_EQ(error_of(graph, Bindings().bind("x", ones23())), "");
  EXPECT_CONTAINS(error_of(graph, Bindings().bind("x", ones23()), {.check_results = true}), "it returned Float [2, 3]");
}

}  // namespace
}  // namespace shadowgraph
