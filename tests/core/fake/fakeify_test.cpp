// Modules whose tensors are temporarily replaced by fakes and then restored.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

struct Pair : torch::nn::Module {
  Pair()
      : first(register_module("first", torch::nn::Linear(4, 4))),
        norm(register_module("norm", torch::nn::BatchNorm1d(4))),
        tied(register_parameter("tied", first->weight)) {}
  at::Tensor forward(const at::Tensor& x) { return torch::linear(norm(torch::relu(first(x))), tied); }
  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  at::Tensor tied;
};

TEST(Fakeify, AModuleTrainsOnFakesAndComesBackAsItWas) {
  auto net = std::make_shared<Pair>();
  net->forward(at::rand({3, 4})).sum().backward();  // real gradients
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  struct Before {
    at::Tensor tensor, value, gradient;
    void* data;
    int64_t version;
  };
  std::vector<Before> before;
  auto all = net->parameters();
  for (const at::Tensor& buffer : net->buffers()) all.push_back(buffer);
  for (const at::Tensor& tensor : all) {
    before.push_back({tensor, tensor.detach().clone(), tensor.grad(), tensor.data_ptr(), tensor._version()});
  }

  FakeTensorMode mode;
  {
    const FakeModule fake = fakeify(mode, *net);
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      net->forward(at::rand({3, 4})).sum().backward();
      EXPECT_TRUE(is_fake(net->tied.grad()));
      EXPECT_EQ(net->tied.grad().sizes(), net->tied.sizes());
      optimizer.step();
    }
  }
  const UnfakeGuard guard;
  for (const Before& b : before) {
    EXPECT_EQ(b.tensor.data_ptr(), b.data);
    EXPECT_TRUE(b.tensor.detach().equal(b.value));
    EXPECT_EQ(b.tensor._version(), b.version);
    EXPECT_TRUE(b.gradient.defined() ? b.tensor.grad().is_same(b.gradient) : !b.tensor.grad().defined());
  }
  // The tensors are real again, so the module trains.
  net->forward(at::rand({3, 4})).sum().backward();
  EXPECT_FALSE(is_fake(net->tied.grad()));
}

TEST(Fakeify, ACaptureOfARealModule) {
  auto net = std::make_shared<Pair>();
  const at::Tensor value = net->tied.detach().clone();
  {
    Capture session;
    const FakeModule fake = fakeify(session.mode(), *net);
    session.name_module(*net);
    net->forward(at::rand({3, 4})).sum().backward();
    {
      const at::NoGradGuard no_grad;
      for (at::Tensor parameter : net->parameters()) parameter.add_(parameter.grad(), -0.1);
    }
    const Graph graph = session.finish({});
    EXPECT_GE(nodes_calling(graph, "aten::add_.Tensor").size(), 4U);
  }
  EXPECT_TRUE(net->tied.detach().equal(value));
}

TEST(Fakeify, UndoneTwiceAndByAnException) {
  auto net = std::make_shared<torch::nn::LinearImpl>(2, 2);
  FakeTensorMode mode;
  try {
    FakeModule fake = fakeify(mode, *net);
    net->forward(at::rand({1, 2})).sum().backward();
    EXPECT_TRUE(is_fake(net->weight.grad()));
    fake.undo();
    EXPECT_FALSE(net->weight.grad().defined());
    fake.undo();
    const FakeModule again = fakeify(mode, *net);
    throw std::runtime_error("midway");
  } catch (const std::runtime_error&) {}
  const at::NoGradGuard no_grad;
  EXPECT_THROW(net->weight.zero_(), UnsupportedError);
}

}  // namespace
}  // namespace shadowgraph
