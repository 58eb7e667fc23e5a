// Known bugs of torchdistx, numbered B1 to B24; each is a program that must work here.
#include <ATen/ops/linalg_cholesky.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <thread>

#include "core/deferred/record.h"
#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/fake.h"
#include "tests/core/deferred/check.h"

namespace shadowgraph {
namespace {

using namespace testing;

TEST(TorchdistxFaults, B1WritesThroughAViewReachConsumersWithAStorageOfTheirOwn) {
  expect_as_eager_in_every_order([] {
    at::Tensor b = torch::zeros({4});
    b[1] = 5;
    return Tensors{b.clone()};
  });
  expect_as_eager_in_every_order([] {
    at::Tensor b = torch::zeros({6});
    b.slice(0, 1, 3).fill_(2);
    return Tensors{b.to(at::kDouble), b};
  });
  expect_as_eager_in_every_order([] {
    at::Tensor b = torch::zeros({6});
    b.chunk(2)[1].fill_(3);
    return Tensors{at::cat({b, b}), b};
  });
  expect_as_eager_in_every_order([] {
    at::Tensor b = torch::zeros({4});
    b[2] = 7;
    const double sum = b.sum().item<double>();
    return Tensors{torch::full({2}, sum), b};
  });
}

TEST(TorchdistxFaults, B2WritersOutliveTheTensorTheyWroteThrough) {
  expect_as_eager_in_every_order([] {
    at::Tensor result;
    {
      at::Tensor b = torch::zeros({4});
      b[1] = 5;
      result = b.detach();
    }
    return Tensors{result};
  });
}

TEST(TorchdistxFaults, B3AViewMayBeMaterializedBeforeItsBase) {
  expect_as_eager_in_every_order([] {
    at::Tensor base = torch::rand({4, 3});
    at::Tensor view = base[1];
    base.add_(1);
    return Tensors{base, view, base.expand({2, 4, 3}), base.detach(), base.reshape({12})};
  });
}

TEST(TorchdistxFaults, B4AWriteThroughAViewReachesItsBaseLater) {
  expect_as_eager_in_every_order([] {
    at::Tensor a = torch::rand({4});
    at::Tensor v = a.slice(0, 0, 2);
    at::Tensor b = v + 1;
    v.fill_(9);
    return Tensors{a, b, v};
  });
}

TEST(TorchdistxFaults, B5DataIsReboundNotCopied) {
  expect_as_eager_in_every_order([] {
    at::Tensor p = torch::rand({3});
    at::Tensor x = torch::rand({3});
    p.set_data(x);
    p.data().add_(5);
    x.mul_(2);
    return Tensors{p, x};
  });
  expect_as_eager_in_every_order([] {
    at::Tensor p = torch::rand({3});
    p.set_data(torch::rand({3}).to(at::kDouble));
    p.fill_(2.5);
    return Tensors{p};
  });
}

TEST(TorchdistxFaults, B6AfterAnErrorTheGraphIsIntactAndARetryWorks) {
  const at::Tensor outside = at::eye(3), negative = -at::eye(3);
  const Tensors made = deferred_init([&] {
    at::Tensor before = torch::rand({3});
    at::Tensor root = at::linalg_cholesky(outside.clone()), none = at::linalg_cholesky(negative.clone());
    return Tensors{before, root, none, torch::rand({2})};
  });
  for (int attempt = 0; attempt < 3; ++attempt) {
    const std::string message = message_of<DeferredError>([&] { materialize_tensor(made[2]); });
    EXPECT_NE(message.find("linalg.cholesky"), std::string::npos) << message;
    EXPECT_TRUE(is_deferred(made[2]));
  }
  // An input that was overwritten behind the recorder's back is refused, until its contents are back.
  float* data = static_cast<float*>(outside.data_ptr());
  const auto negate = [&] { std::transform(data, data + 9, data, std::negate<>()); };
  negate();
  const std::string message = message_of<DeferredError>([&] { materialize_tensor(made[1]); });
  EXPECT_NE(message.find("was modified since it was recorded"), std::string::npos) << message;
  negate();
  materialize_tensors({made[0], made[1], made[3]});
  EXPECT_TRUE(at::equal(made[1], at::eye(3)));
}

TEST(TorchdistxFaults, B7AMillionOperatorsInAChain) {
  const int count = 1'000'000;
  at::Tensor x = deferred_init([] {
    at::Tensor y = torch::zeros({2});
    for (int i = 0; i < count; ++i) y.add_(1);
    return y;
  });
  materialize_tensor(x);
  EXPECT_EQ(x[0].item<float>(), count);
  at::Tensor out_of_place = deferred_init([] {
    at::Tensor y = torch::zeros({2});
    for (int i = 0; i < 100'000; ++i) y = y + 1;
    return y;
  });
  materialize_tensor(out_of_place);
  EXPECT_EQ(out_of_place[0].item<float>(), 100'000);
}

// Work is counted in nodes run; see also tests/core/deferred/linear_work_test.cpp.
TEST(TorchdistxFaults, B8ThousandsOfReadersBetweenWritesTakeLinearWork) {
  for (const int count : {1000, 16'000}) {
    const Tensors readers = deferred_init([=] {
      Tensors all;
      at::Tensor x = torch::zeros({4});
      for (int i = 0; i < count; ++i) {
        x.add_(1);
        all.push_back(x.clone());
      }
      all.push_back(x);
      return all;
    });
    const auto record = DeferredRecord::of(*as_fake(readers[0]));
    materialize_tensors(readers);
    EXPECT_LE(record->nodes_run(), 2U * static_cast<uint64_t>(count) + 1);
    for (int i = 0; i < count; i += 97) EXPECT_EQ(readers[static_cast<size_t>(i)][0].item<float>(), i + 1);
    EXPECT_EQ(readers.back()[0].item<float>(), count);
  }
}

TEST(TorchdistxFaults, B9RandomNumbersAreEagersInAnyOrder) {
  const auto make = [] {
    at::Tensor a = torch::rand({100});
    at::Tensor b = torch::randn({5});   // leaves a cached normal sample in the generator
    at::Tensor c = torch::randn({40});  // vectorized kernels draw 16 at a time, plus a remainder
    at::Tensor d = torch::randn({3});
    return Tensors{a, b, c, d};
  };
  expect_as_eager_in_every_order(make);
  expect_as_eager(make, {2});
  expect_as_eager(make, {});
  // Seeds inside the program, dropped draws, and other distributions.
  expect_as_eager_in_every_order([] {
    at::Tensor a = torch::rand({7});
    torch::manual_seed(3);
    at::Tensor b = torch::rand({7});
    torch::rand({1000});
    torch::poisson(torch::ones({10}));
    at::Tensor c = torch::empty({33}).bernoulli_(0.3);
    at::Tensor d = torch::randperm(20);
    return Tensors{a, b, c, d};
  });
  // Reseeds with the same value although nothing has been drawn for real in between.
  torch::manual_seed(5);
  const Tensors same = deferred_init([] {
    torch::manual_seed(5);
    at::Tensor a = torch::rand({4});
    torch::manual_seed(5);
    return Tensors{a, torch::rand({4})};
  });
  materialize_tensors(same);
  EXPECT_TRUE(at::equal(same[0], same[1]));
}

TEST(TorchdistxFaults, B10DefaultsAreThoseOfTheTimeOfDescription) {
  torch::set_default_dtype(caffe2::TypeMeta::Make<double>());
  torch::manual_seed(2);
  const auto make = [] {
    at::Tensor a = torch::rand({4});
    return Tensors{a, torch::arange(3), torch::arange(3) / 2, torch::full({2}, 1.5)};
  };
  const Tensors described = deferred_init(make);
  torch::manual_seed(2);
  const Tensors eager = make();
  torch::set_default_dtype(caffe2::TypeMeta::Make<float>());
  torch::manual_seed(99);
  materialize_tensors(described);
  for (size_t i = 0; i < eager.size(); ++i) EXPECT_TRUE(same_bits(described[i], eager[i])) << i;
  EXPECT_EQ(torch::get_default_dtype(), caffe2::TypeMeta::Make<float>());
}

TEST(TorchdistxFaults, B11InsideAFakeModeTensorsStillBecomeReal) {
  torch::manual_seed(4);
  const at::Tensor eager = torch::rand({5});
  torch::manual_seed(4);
  const FakeTensorMode mode({.device = at::kCUDA});
  const at::Tensor described = deferred_init([] { return torch::rand({5}); });
  materialize_tensor(described);
  EXPECT_FALSE(is_fake(described));
  const UnfakeGuard real;
  EXPECT_TRUE(same_bits(described, eager));
}

TEST(TorchdistxFaults, B12LegacyConstructorsAndOrthogonalInitialization) {
  expect_as_eager_in_every_order([] {
    at::Tensor w = torch::empty({6, 4});
    torch::nn::init::orthogonal_(w);
    return Tensors{w, w.new_zeros({2}), w.new_full({2}, 3.0)};
  });
}

TEST(TorchdistxFaults, B13UndefinedArgumentsAreNoTensors) {
  expect_as_eager_in_every_order([] {
    at::Tensor scores = torch::rand({4, 3});
    at::Tensor labels = torch::zeros({4}, torch::kLong);
    return Tensors{torch::nn::functional::cross_entropy(scores, labels), scores};
  });
}

TEST(TorchdistxFaults, B14RealTensorsMixWithDescribedOnes) {
  const at::Tensor outside = torch::arange(6, at::kFloat).view({2, 3});
  expect_as_eager_in_every_order([&] {
    at::Tensor a = torch::rand({2, 3}) + outside;
    return Tensors{a, outside.clone(), outside[1] * 2, a * outside};
  });
}

TEST(TorchdistxFaults, B15B16B17PretendedCudaDevicesWorkWithoutOne) {
  torch::manual_seed(6);
  at::Tensor w = torch::rand({4, 4});
  const at::Tensor i = torch::arange(2);
  const Tensors eager{w + w, (w.index({i}) + at::tensor(1.0F)), at::mm(w, w)};
  torch::manual_seed(6);
  const Tensors described = deferred_init(DeferredOptions{.device = at::kCUDA}, [] {
    at::Tensor w = torch::rand({4, 4}, at::Device("cuda:0"));
    const at::Tensor i = torch::arange(2, at::TensorOptions().device(at::kCPU));
    at::Tensor moved = torch::zeros({4, 4});
    moved.copy_(w);
    return Tensors{w + moved, w.index({i}) + torch::ones({}, at::kCPU), at::mm(moved, w)};
  });
  EXPECT_EQ(described[0].device().str(), "cuda:0");
  const std::string message = message_of<DeferredError>([&] { materialize_tensor(described[0]); });
  EXPECT_NE(message.find("MaterializeOptions::device"), std::string::npos) << message;
  materialize_tensors(described, {.device = at::kCPU});
  for (size_t k = 0; k < eager.size(); ++k) EXPECT_TRUE(same_bits(described[k], eager[k])) << k;
}

TEST(TorchdistxFaults, B18ConvolutionBackwardAndOptimizerStepsAreDescribed) {
  expect_as_eager_in_every_order([] {
    torch::nn::Conv2d conv(torch::nn::Conv2dOptions(2, 3, 3));
    torch::optim::AdamW adamw(conv->parameters(), 0.1);
    torch::optim::SGD sgd(conv->parameters(), 0.1);
    conv->forward(torch::rand({1, 2, 5, 5})).sum().backward();
    adamw.step();
    sgd.step();
    return Tensors{conv->weight, conv->bias};
  });
}

TEST(TorchdistxFaults, B19WhatIsDoneAfterwardsIsRecorded) {
  torch::manual_seed(8);
  torch::nn::Linear eager(4, 3);
  torch::manual_seed(8);
  auto described = deferred_init([] { return torch::nn::Linear(4, 3); });
  const auto afterwards = [](torch::nn::Linear& net) {
    const torch::NoGradGuard no_grad;
    net->to(at::kHalf);
    net->weight.fill_(0.5);
    net->bias.uniform_();
    at::Tensor derived = net->weight * 2;
    derived[0] = net->bias[1];
    return derived;
  };
  const at::Tensor eager_derived = afterwards(eager);
  const RandomState left = process_state();
  torch::manual_seed(8);
  deferred_init([] { return torch::nn::Linear(4, 3); });
  const at::Tensor derived = afterwards(described);
  EXPECT_TRUE(process_state() == left);
  EXPECT_TRUE(is_deferred(derived));
  materialize_tensor(derived);
  materialize_module(*described);
  EXPECT_TRUE(same_bits(derived, eager_derived));
  EXPECT_TRUE(same_bits(described->weight, eager->weight));
  EXPECT_TRUE(same_bits(described->bias, eager->bias));
}

TEST(TorchdistxFaults, B19AViewJoinsTheMaterializedStorage) {
  const Tensors made = deferred_init([] {
    at::Tensor a = torch::zeros({4});
    return Tensors{a, a[0], a[1]};
  });
  materialize_tensor(made[0]);
  made[0].fill_(3);
  EXPECT_EQ((made[1] + 1).item<float>(), 4);
  made[1].add_(1);
  EXPECT_EQ(made[0][0].item<float>(), 4);
  materialize_tensor(made[2]);
  EXPECT_EQ(made[2].item<float>(), 3);
}

TEST(TorchdistxFaults, B20ModulesWithBuffersAreClonedAndForeachIsRecorded) {
  expect_as_eager_in_every_order([] {
    torch::nn::BatchNorm1d norm(3);
    norm->weight.data().uniform_();
    auto copy = std::dynamic_pointer_cast<torch::nn::BatchNorm1dImpl>(norm->clone());
    Tensors list{torch::rand({2}), torch::rand({3})};
    at::_foreach_mul_(list, 3.0);
    return Tensors{norm->running_mean, copy->weight, copy->running_var, list[0], list[1]};
  });
}

TEST(TorchdistxFaults, B21OptimizersAttributesAndHooksSeeTheRealTensor) {
  auto net = deferred_init([] { return torch::nn::Linear(3, 2); });
  torch::optim::SGD sgd(net->parameters(), 1.0);
  const at::Tensor held = net->weight;
  int calls = 0;
  net->weight.register_hook([&](const at::Tensor&) { ++calls; });
  materialize_module(*net);
  EXPECT_FALSE(is_fake(held));
  EXPECT_TRUE(held.is_same(net->weight));
  EXPECT_TRUE(held.is_leaf() && held.requires_grad());
  const at::Tensor before = held.detach().clone();
  net->forward(torch::ones({1, 3})).sum().backward();
  sgd.step();
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(at::allclose(held.detach(), before - 1));
}

TEST(TorchdistxFaults, B22Threads) {
  // A thread outside the scope creates real tensors; deferred tensors may be used and materialized on any thread.
  at::Tensor on_thread;
  Tensors described;
  deferred_init([&] {
    std::thread([&] { on_thread = torch::zeros({2}); }).join();
    for (int i = 0; i < 16; ++i) described.push_back(torch::full({100}, i));
  });
  EXPECT_FALSE(is_fake(on_thread));
  std::vector<std::thread> threads;
  std::vector<at::Tensor> results(16);
  for (size_t i = 0; i < 16; ++i) {
    threads.emplace_back([&, i] {
      results[i] = described[i] * 2 + described[(i + 1) % 16].detach().clone() * 0;
      materialize_tensor(results[i]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(results[i][0].item<double>(), 2.0 * static_cast<double>(i));
  // Each thread has its own recording.
  threads.clear();
  std::atomic<int> right{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      const at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(i));
      const at::Tensor eager = torch::empty({1000}).normal_(0, 1, generator);
      const at::Generator again = at::detail::createCPUGenerator(static_cast<uint64_t>(i));
      const at::Tensor later = torch::empty({1000});
      const at::Generator ours = again;
      at::Tensor made;
      {
        static std::mutex one_at_a_time;  // the default generator is shared by the process
        const std::lock_guard lock(one_at_a_time);
        made = deferred_init([&] { return torch::empty({1000}).normal_(0, 1, ours); });
      }
      materialize_tensor(made);
      right += at::equal(made, eager) && at::equal(again.get_state(), generator.get_state());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 4);
}

TEST(TorchdistxFaults, B23ReadOnlyViewsCostAFewHundredBytes) {
  at::Tensor base = deferred_init([] {
    at::Tensor b = torch::zeros({4});
    for (int i = 0; i < 20'000; ++i) b.slice(0, 0, 2);
    return b;
  });
  EXPECT_LT(deferred_graph(base).allocated_bytes() / 20'000, 600);
  materialize_tensor(base);
  EXPECT_TRUE(at::equal(base, at::zeros({4})));
}

TEST(TorchdistxFaults, B24ValuesGivenAsNumbersAreKept) {
  expect_as_eager_in_every_order([] {
    const at::Tensor one = torch::scalar_tensor(3.5);
    return Tensors{torch::full({2}, one.item<double>()), one + 1};
  });
  expect_as_eager_in_every_order([] {
    const at::Tensor literal = torch::tensor({1.0F, 2.0F, 3.0F});
    at::Tensor written = torch::zeros({3});
    written.accessor<float, 1>()[1] = 4;  // written by the CPU and never used again
    return Tensors{literal, literal * 2, written, torch::tensor({7, 8})};
  });
  const std::vector<float> numbers{1, 2, 3};
  expect_as_eager_in_every_order([&] {
    const at::Tensor blob = torch::from_blob(const_cast<float*>(numbers.data()), {3});
    return Tensors{blob * 2, blob.sum() + torch::rand({})};
  });
}

}  // namespace
}  // namespace shadowgraph
