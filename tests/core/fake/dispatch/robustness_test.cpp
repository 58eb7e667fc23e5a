// Failures neither hang, crash nor leak state, and programs on real tensors are unaffected.
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <thread>

#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/capture/shape_rules.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/graph/verify.h"

namespace shadowgraph {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

at::Tensor no_rule_cpu(const at::Tensor& x) { return x.clone(); }
TORCH_LIBRARY(sg_test, library) {
  library.def("no_rule(Tensor x) -> Tensor");
  library.def("late_rule(Tensor x, int k) -> Tensor");
}
TORCH_LIBRARY_IMPL(sg_test, CPU, library) { library.impl("no_rule", no_rule_cpu); }

at::Tensor call_no_rule(const at::Tensor& x) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("sg_test::no_rule", "").typed<at::Tensor(const at::Tensor&)>();
  return op.call(x);
}

// A capture succeeds, which shows that no state was left behind.
void expect_capture_works() {
  Capture session({.mode = {.device = at::kCUDA}});
  const at::Tensor x = at::empty({2, 3}).set_requires_grad(true);
  x.exp().sum().backward();
  const Graph graph = session.finish({x.grad()});
  EXPECT_NO_THROW(verify(graph));
  EXPECT_GE(graph.node_count(), 4);
}

TEST(Robustness, AnOperatorWithoutARuleIsATypedErrorThatSaysWhatToDo) {
  EXPECT_THAT(
      [] {
        Capture session;
        call_no_rule(at::empty({2}));
      },
      ThrowsMessage<NoRuleError>(::testing::AllOf(HasSubstr("sg_test::no_rule"), HasSubstr("register_rule"))));
  expect_capture_works();
}

TEST(Robustness, ARuleCanBeAddedLate) {
  const auto call = [](const at::Tensor& x) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("sg_test::late_rule", "")
                               .typed<at::Tensor(const at::Tensor&, int64_t)>();
    return op.call(x, 7);
  };
  const FakeTensorMode mode({.device = at::kCUDA});
  EXPECT_THROW(call(at::empty({2})), NoRuleError);
  register_rule(
      "sg_test::late_rule", +[](const at::Tensor& x, int64_t k) -> at::Tensor {
        return at::empty({x.size(0), k}, x.options());
      });
  const at::Tensor y = call(at::empty({2}));
  EXPECT_EQ(y.sizes(), at::IntArrayRef({2, 7}));
  EXPECT_TRUE(y.is_cuda());
}

TORCH_LIBRARY(sg_devices, library) {
  library.def("by_device(Tensor x) -> Tensor");
  library.def("lookup(Tensor keys, Tensor table) -> (Tensor, Tensor)");
}

// The program runs on CUDA, so the rule must see CUDA tensors.
TEST(Robustness, ARuleSeesThePretendedDevice) {
  register_rule(
      "sg_devices::by_device", +[](const at::Tensor& x) -> at::Tensor {
        return at::empty({x.is_cuda() ? 7 : 3}, x.options().device(at::kCPU));
      });
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("sg_devices::by_device", "")
                             .typed<at::Tensor(const at::Tensor&)>();
  const FakeTensorMode mode;
  const at::Tensor of_cuda = op.call(at::empty({2}, at::kCUDA));
  EXPECT_EQ(of_cuda.sizes(), at::IntArrayRef({7}));
  EXPECT_TRUE(of_cuda.is_cpu()) << "a result is on the device on which the rule creates it";
  EXPECT_EQ(op.call(at::empty({2})).sizes(), at::IntArrayRef({3}));
}

TEST(Robustness, DevicesOfAnOperatorAreRegistered) {
  register_rule(
      "sg_devices::lookup", +[](const at::Tensor& keys, const at::Tensor& table) -> std::tuple<at::Tensor, at::Tensor> {
        return {rules::empty({keys.size(0), table.size(1)}, table), rules::empty({1}, keys)};
      });
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("sg_devices::lookup", "")
                             .typed<std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&)>();
  const FakeTensorMode mode;
  const at::Tensor keys = at::empty({5}, at::kLong);
  const at::Tensor table = at::empty({9, 4}, at::kCUDA);
  EXPECT_THROW(op.call(keys, table), Error);
  register_devices("sg_devices::lookup",
                   {.operands = OperandPlaces::kAnywhere, .results = {"table", at::Device(at::kCPU)}});
  const auto [values, count] = op.call(keys, table);
  EXPECT_TRUE(values.is_cuda());
  EXPECT_TRUE(count.is_cpu());
  register_devices("sg_devices::lookup",
                   {.operands = OperandPlaces::kAnywhere, .results = {"table", at::Device(at::kCUDA, 9)}});
  EXPECT_THROW(op.call(keys, table), Error);
  EXPECT_THROW(register_devices("sg_devices::lookup", {.results = {"nobody", "table"}}), Error);
  EXPECT_THROW(register_devices("aten::mm", {}), Error);
}

// The dispatcher may reuse the slot of a deregistered operator.
TEST(Robustness, AnOperatorThatLeftIsForgotten) {
  const FakeTensorMode mode;
  const at::Tensor x = at::empty({2, 3}, at::kCUDA);
  for (int i = 0; i < 8; ++i) {
    torch::Library library(torch::Library::DEF, "sg_leaving", std::nullopt, __FILE__, __LINE__);
    const bool two = i % 2 == 1;
    library.def(two ? "two(Tensor x) -> (Tensor, Tensor)" : "one(Tensor x) -> Tensor");
    if (two) {
      library.impl("two", c10::DispatchKey::Meta,
                   [](const at::Tensor& t) { return std::tuple(at::empty_like(t), t.new_empty({5})); });
    } else {
      library.impl("one", c10::DispatchKey::Meta, [](const at::Tensor& t) { return t.new_empty({7}); });
    }
    torch::jit::Stack stack{x};
    c10::Dispatcher::singleton().findSchemaOrThrow(two ? "sg_leaving::two" : "sg_leaving::one", "").callBoxed(&stack);
    ASSERT_EQ(stack.size(), two ? 2U : 1U);
    for (const c10::IValue& result : stack) {
      EXPECT_TRUE(is_fake(result.toTensor()) && result.toTensor().is_cuda()) << "operator " << i;
    }
  }
}

// Rules stay registered until the process ends, so this operator is used by no other test.
TEST(Robustness, ARuleWithTheWrongSignatureIsRefused) {
  register_rule(
      "aten::heaviside", +[](const at::Tensor& x) -> at::Tensor { return x; });
  const FakeTensorMode mode;
  EXPECT_THROW(at::heaviside(at::empty({2}), at::empty({2})), Error);
  register_rule(
      "aten::heaviside", +[](const at::Tensor& x, const at::Tensor&) -> at::Tensor { return at::empty_like(x); });
  EXPECT_NO_THROW(at::heaviside(at::empty({2}), at::empty({2})));
}

TEST(Robustness, ShapeMismatchesRaiseAsInEager) {
  const auto program = [] { at::empty({2, 3}).mm(at::empty({4, 5})); };
  std::string eager;
  try {
    program();
  } catch (const c10::Error& error) {
    eager = error.what_without_backtrace();
  }
  Capture session;
  try {
    program();
    FAIL() << "no error";
  } catch (const c10::Error& error) {
    EXPECT_EQ(error.what_without_backtrace(), eager);
  }
}

TEST(Robustness, DevicesDoNotMix) {
  const FakeTensorMode mode;
  const at::Tensor cpu = at::empty({2}, at::kCPU);
  const at::Tensor cuda = at::empty({2}, at::kCUDA);
  const at::Tensor other = at::empty({2}, at::Device(at::kCUDA, 1));
  EXPECT_THAT([&] { cpu + cuda; }, ThrowsMessage<Error>(HasSubstr("cuda:0")));
  EXPECT_THROW(cuda + other, Error);
  const at::Tensor scalar = at::empty({}, at::kCPU);
  EXPECT_EQ((cuda * scalar).device(), cuda.device());
  EXPECT_EQ((scalar * cuda).device(), cuda.device());
  EXPECT_EQ(cuda.cpu().device(), cpu.device());
  cuda.copy_(cpu);
}

TEST(Robustness, ReadingDataIsATypedError) {
  const FakeTensorMode mode({.device = at::kCUDA});
  const at::Tensor x = at::empty({1});
  EXPECT_THAT([&] { x.item(); }, ThrowsMessage<DataDependentError>(HasSubstr("_local_scalar_dense")));
  EXPECT_THROW((void)x.is_nonzero(), DataDependentError);
  EXPECT_THROW(at::nonzero(at::empty({3})), DataDependentError);
  EXPECT_ANY_THROW(x.data_ptr<float>());
  EXPECT_ANY_THROW((x.accessor<float, 1>()));
  const at::Tensor y = at::empty({1, 1}, at::kCPU);  // a tensor of one dimension could alias the memory of a literal
  EXPECT_ANY_THROW(y.data_ptr<float>());
  EXPECT_ANY_THROW(y.mutable_data_ptr<float>());
}

TEST(Robustness, AProgramThatThrowsLeavesEverythingAsItWas) {
  for (int i = 0; i < 3; ++i) {
    EXPECT_THROW(
        {
          const FakeTensorMode mode({.device = at::kCUDA});
          auto net = std::make_shared<torch::nn::LinearImpl>(3, 3);
          ProgramToCapture program;
          program.module = net.get();
          program.inputs = {at::empty({2, 3})};
          program.forward = [&](const Tensors& inputs) -> Tensors {
            net->forward(inputs[0]);
            throw std::runtime_error("midway");
          };
          capture_forward(program);
        },
        std::runtime_error);
    EXPECT_FALSE(is_fake(at::empty({2})));
    EXPECT_TRUE(at::ones({2}).sum().item<float>() == 2.0F);
    EXPECT_EQ(Capture::current(), nullptr);
    expect_capture_works();
  }
}

TEST(Robustness, AProgramMayAskWhetherThereIsCudaAndSeedIt) {
  {
    const FakeTensorMode mode({.device = at::kCUDA});
    EXPECT_TRUE(torch::cuda::is_available());
    EXPECT_EQ(torch::cuda::device_count(), static_cast<size_t>(DeviceProfile{}.device_count));
    torch::cuda::synchronize();
    torch::manual_seed(3);
    torch::cuda::manual_seed_all(5);
    const at::Generator generator = at::globalContext().defaultGenerator(at::Device(at::kCUDA, 1));
    EXPECT_EQ(generator.current_seed(), 5U);
    EXPECT_EQ(generator.clone().current_seed(), 5U);
    EXPECT_EQ(generator.device(), at::Device(at::kCUDA, 1));
    EXPECT_EQ(generator.get_state().nbytes(), 16U);
    EXPECT_TRUE(is_fake(at::rand({2}, generator, at::Device(at::kCUDA, 1))));
  }
  if (torch::cuda::is_available()) return;  // skipped if a real GPU is present
  EXPECT_EQ(torch::cuda::device_count(), 0U);
  EXPECT_ANY_THROW(torch::cuda::synchronize());
}

TEST(Robustness, AFakeThatOutlivesItsSessionStillWorks) {
  at::Tensor kept;
  {
    Capture session;
    kept = at::empty({2, 2}).exp();
  }
  EXPECT_EQ((kept + kept).sizes(), at::IntArrayRef({2, 2}));
  EXPECT_TRUE(is_fake(kept + kept));
  std::thread([&] { kept.reset(); }).join();
  expect_capture_works();
}

TEST(Robustness, RealTensorsAreNeverWrittenByAFakeRun) {
  at::Tensor real = at::ones({3});
  {
    const FakeTensorMode mode;
    EXPECT_THAT([&] { real.add_(at::empty({3})); }, ThrowsMessage<UnsupportedError>(HasSubstr("nothing was written")));
  }
  EXPECT_TRUE(real.equal(at::ones({3})));
}

TEST(Robustness, ConversionKeepsIdentityAliasesAndIndex) {
  const at::Tensor real = at::ones({4, 4});
  FakeTensorMode mode({.device = at::kCUDA});
  const at::Tensor fake = mode.from_real(real, at::kCUDA);
  EXPECT_EQ(fake.device(), c10::Device(at::kCUDA, 0));
  EXPECT_TRUE(mode.from_real(real).is_same(fake));
  EXPECT_NO_THROW(fake + at::empty({4, 4}));
}

TEST(Robustness, UnfakeGuardGivesRealTensors) {
  const FakeTensorMode mode;
  {
    const UnfakeGuard real;
    EXPECT_FALSE(is_fake(at::empty({2})));
    EXPECT_EQ(at::ones({3}).sum().item<float>(), 3.0F);
  }
  EXPECT_TRUE(is_fake(at::empty({2})));
}

// ---- Real programs do not notice

std::vector<at::Tensor> real_training() {
  torch::nn::Linear first(8, 16);
  torch::nn::Linear second(16, 4);
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(7);
  std::vector<at::Tensor> parameters;
  for (const auto& module : {first, second}) {
    for (const at::Tensor& parameter : module->parameters()) {
      const at::NoGradGuard no_grad;
      parameter.uniform_(-1, 1, generator);
      parameters.push_back(parameter);
    }
  }
  torch::optim::AdamW optimizer(parameters, torch::optim::AdamWOptions(1e-2));
  for (int step = 0; step < 20; ++step) {
    optimizer.zero_grad();
    const at::Tensor x = at::rand({5, 8}, generator);
    second->forward(torch::relu(first->forward(x))).pow(2).mean().backward();
    optimizer.step();
  }
  std::vector<at::Tensor> result;
  for (const at::Tensor& parameter : parameters) result.push_back(parameter.detach().clone());
  return result;
}

void expect_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].equal(b[i]));
}

TEST(Robustness, ARealTrainingBeforeMeanwhileAndAfterGivesTheSame) {
  const auto before = real_training();
  std::vector<std::vector<at::Tensor>> meanwhile;
  {
    std::atomic<bool> stop{false};
    std::thread trainer([&] {
      while (!stop || meanwhile.empty()) meanwhile.push_back(real_training());
    });
    for (int i = 0; i < 20; ++i) expect_capture_works();
    stop = true;
    trainer.join();
  }
  const auto after = real_training();
  expect_equal(before, after);
  for (const auto& result : meanwhile) expect_equal(before, result);
}

TEST(Robustness, TwoThreadsCaptureAtOnce) {
  const auto capture = [] {
    Capture session({.mode = {.device = at::kCUDA}});
    torch::nn::Linear linear(16, 16);
    session.name_module(*linear);
    at::Tensor x = at::empty({4, 16});
    for (int i = 0; i < 50; ++i) x = at::gelu(linear(x));
    x.sum().backward();
    return to_text(session.finish({x}));
  };
  const std::string alone = capture();
  std::string texts[2];
  std::thread threads[2];
  for (int i = 0; i < 2; ++i) threads[i] = std::thread([&, i] { texts[i] = capture(); });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(texts[0], alone);
  EXPECT_EQ(texts[1], alone);
}

TEST(Robustness, CudaIsNotThereOutsideAMode) {
  EXPECT_FALSE(torch::cuda::is_available());
  EXPECT_ANY_THROW(at::empty({2}, at::kCUDA));
}

TEST(Robustness, AutogradThreadingIsAsItWas) {
  EXPECT_TRUE(c10::AutogradState::get_tls_state().get_multithreading_enabled());
  {
    const FakeTensorMode mode;
    EXPECT_FALSE(c10::AutogradState::get_tls_state().get_multithreading_enabled());
  }
  EXPECT_TRUE(c10::AutogradState::get_tls_state().get_multithreading_enabled());
}

}  // namespace
}  // namespace shadowgraph
