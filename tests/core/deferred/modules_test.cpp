// What modules and their users do around construction: conversions, tables that are no buffers, threads, other devices,
// nested descriptions that fail, assignments afterwards.
#include <torch/torch.h>

#include <atomic>
#include <thread>

#include "tests/core/deferred/check.h"

namespace shadowgraph {
namespace {

using namespace testing;

// Rotary positions: a table that is computed when the model is built and kept as a plain attribute.
struct RotaryImpl : torch::nn::Module {
  explicit RotaryImpl(int64_t width) {
    const at::Tensor frequencies = torch::pow(10000.0, -torch::arange(0, width, 2) / static_cast<double>(width));
    table = torch::outer(torch::arange(16), frequencies).cos_();
    scale = register_buffer("scale", torch::ones({width}) * 0.5);
    query = register_module("query", torch::nn::Linear(width, width));
    key = register_module("key", torch::nn::Linear(width, width));
    tied = register_parameter("tied", query->weight);
  }
  at::Tensor table, scale, tied;
  torch::nn::Linear query{nullptr}, key{nullptr};
};
TORCH_MODULE(Rotary);

Tensors tensors_of(Rotary& net) {
  return {net->table, net->scale, net->query->weight, net->query->bias, net->tied, net->key->bias};
}

TEST(DeferredModules, ConvertedInsideAndAfterwards) {
  using Change = std::function<void(Rotary&)>;
  const std::vector<std::pair<std::string, Change>> changes{
      {"half", [](Rotary& net) { net->to(at::kHalf); }},
      {"bfloat16 and back",
       [](Rotary& net) {
         net->to(at::kBFloat16);
         net->to(at::kFloat);
       }},
      {"cpu, double", [](Rotary& net) { net->to(at::Device(at::kCPU), at::kDouble); }},
      {"data", [](Rotary& net) { net->query->bias.set_data(net->key->bias.detach() * 2); }},
      {"written",
       [](Rotary& net) {
         net->scale.mul_(net->table.sum());
         net->query->bias.data().uniform_();
       }},
      {"eval, frozen",
       [](Rotary& net) {
         net->eval();
         net->query->weight.set_requires_grad(false);
       }},
  };
  for (const auto& [what, change] : changes) {
    const auto make = [&change = change](bool inside) {
      Rotary net(8);
      if (inside) change(net);
      return net;
    };
    expect_as_eager_in_some_orders(
        [&] {
          Rotary net = make(true);
          return tensors_of(net);
        },
        what + " inside");
    torch::manual_seed(2);
    Rotary eager = make(true);
    torch::manual_seed(2);
    Rotary net = deferred_init([&] { return make(false); });
    change(net);
    const Tensors described = tensors_of(net);
    for (const size_t i : {4, 1, 0, 5, 3, 2}) {
      materialize_tensor(described[i]);
      EXPECT_TRUE(same_bits(described[i], tensors_of(eager)[i])) << what << " afterwards: " << i;
    }
  }
}

TEST(DeferredModules, AttributesAreMaterialisedByThemselves) {
  torch::manual_seed(2);
  Rotary eager(8);
  torch::manual_seed(2);
  Rotary net = deferred_init([] { return Rotary(8); });
  materialize_module(*net);
  EXPECT_FALSE(is_deferred(*net));
  EXPECT_TRUE(is_deferred(net->table));
  EXPECT_TRUE(net->tied.is_same(net->query->weight));
  materialize_tensor(net->table);
  EXPECT_TRUE(same_bits(net->table, eager->table));
}

TEST(DeferredModules, OntoAnotherDevice) {
  const Tensors made = deferred_init(DeferredOptions{.device = at::kCUDA}, [] {
    at::Tensor a = torch::rand({4, 4});
    return Tensors{a, a[1], torch::ones({2})};
  });
  EXPECT_TRUE(made[0].is_cuda());
  materialize_tensors({made[0], made[1]}, {.device = at::kMeta});
  EXPECT_TRUE(made[0].is_meta());
  EXPECT_FALSE(is_fake(made[0]));
  EXPECT_EQ(made[0].sizes(), (std::vector<int64_t>{4, 4}));
  EXPECT_TRUE(made[1].is_alias_of(made[0]));
  materialize_tensor(made[2], {.device = at::kCPU, .dtype = at::kHalf});
  EXPECT_TRUE(at::equal(made[2], torch::ones({2}, at::kHalf)));
}

TEST(DeferredModules, AnInnerDescriptionThatFailsLeavesTheOuterOneAsItWas) {
  torch::manual_seed(3);
  const at::Tensor first = torch::rand({3});
  first.add_(torch::rand({3}));
  const at::Tensor second = torch::rand({2});
  torch::manual_seed(3);
  const Tensors made = deferred_init([] {
    at::Tensor a = torch::rand({3});
    EXPECT_THROW(deferred_init([&] {
                   a.add_(torch::rand({3}));
                   throw std::runtime_error("not this one");
                 }),
                 std::runtime_error);
    return Tensors{a, torch::rand({2})};
  });
  materialize_tensor(made[1]);
  materialize_tensor(made[0]);
  EXPECT_TRUE(same_bits(made[0], first));
  EXPECT_TRUE(same_bits(made[1], second));
}

// Afterwards, with tensors that are real: recorded or refused, never lost.
TEST(DeferredModules, RealTensorsGivenAfterwards) {
  const torch::NoGradGuard no_grad;
  auto net = deferred_init([] { return torch::nn::Linear(3, 2); });
  const at::Tensor loaded = torch::arange(6, at::kFloat).view({2, 3});
  net->weight.copy_(loaded);  // load_state_dict
  at::Tensor bias = torch::full({2}, 7.0);
  net->bias.set_data(bias);
  materialize_module(*net);
  EXPECT_TRUE(at::equal(net->weight, loaded));
  EXPECT_TRUE(at::equal(net->bias, torch::full({2}, 7.0)));
}

TEST(DeferredModules, ThreadsMaterialiseAskAndUseAtOnce) {
  torch::manual_seed(6);
  const auto make = [] {
    Tensors all;
    for (int i = 0; i < 64; ++i) all.push_back(torch::randn({50 + i}));
    return all;
  };
  const Tensors eager = make();
  torch::manual_seed(6);
  const Tensors described = deferred_init(make);
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  threads.emplace_back([&] {
    while (!stop) {
      for (const at::Tensor& tensor : described) wrong += tensor.dim() != 1;
      (void)is_deferred(described.back());
    }
  });
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = t; i < described.size(); i += 4) {
        if (i % 8 < 4) {
          const at::Tensor twice = described[i] * 2;  // recorded
          materialize_tensor(described[i]);
          materialize_tensor(twice);
          wrong += !at::equal(twice, eager[i] * 2);
        } else {
          wrong += !at::equal(materialize_shard(described[i], 0, 3, 40), eager[i].narrow(0, 3, 40));
          materialize_tensor(described[i]);
          dematerialize(described[i]);
          materialize_tensor(described[i]);
        }
        wrong += !same_bits(described[i], eager[i]);
      }
    });
  }
  for (size_t t = 1; t < threads.size(); ++t) threads[t].join();
  stop = true;
  threads[0].join();
  EXPECT_EQ(wrong, 0);
}

// Asking is a look at the tensor: it neither runs nor records anything.
TEST(DeferredModules, AskingLeavesNoTrace) {
  const at::Tensor x = deferred_init([] {
    at::Tensor y = torch::zeros({2});
    for (int i = 0; i < 100; ++i) y.add_(1);
    return y;
  });
  const uint32_t nodes = deferred_graph(x).node_count();
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(is_deferred(x));
  EXPECT_EQ(deferred_graph(x).node_count(), nodes);
}

// A tensor from outside gets other memory: the recording holds what it had.
TEST(DeferredModules, TensorsFromOutsideGetOtherMemory) {
  const torch::NoGradGuard no_grad;
  const std::pair<const char*, std::function<void(torch::nn::Linear&)>> changes[] = {
      {"to", [](torch::nn::Linear& outside) { outside->to(at::kHalf); }},
      {"set_data", [](torch::nn::Linear& outside) { outside->weight.set_data(torch::zeros({1})); }},
      {"another module", [](torch::nn::Linear& outside) { outside = torch::nn::Linear(1, 1); }},
  };
  for (const auto& [what, change] : changes) {
    torch::nn::Linear outside(2000, 2000);
    const at::Tensor made = deferred_init([&] { return outside->weight * 2; });
    const at::Tensor wanted = outside->weight * 2;
    change(outside);
    materialize_tensor(made);
    EXPECT_TRUE(same_bits(made, wanted)) << what;
  }
  torch::nn::Linear outside(3, 3);
  const at::Tensor made = deferred_init([&] { return outside->weight * 2; });
  outside->weight.data().mul_(2);
  EXPECT_THROW(materialize_tensor(made), DeferredError);
}

TEST(DeferredModules, RealTensorsDoNotGetDeferredData) {
  torch::manual_seed(4);
  auto net = deferred_init([] { return torch::nn::Linear(3, 3); });
  at::Tensor real = torch::ones({3, 3});
  EXPECT_THROW(real.set_data(net->weight.detach()), UnsupportedError);
  EXPECT_TRUE(at::equal(real, torch::ones({3, 3})));
  EXPECT_THROW(net->clone(), UnsupportedError);  // its parameters are real
  torch::manual_seed(4);
  auto [first, second] = deferred_init([] {
    torch::nn::Linear made(3, 3);
    return std::pair(made, std::dynamic_pointer_cast<torch::nn::LinearImpl>(made->clone()));
  });
  materialize_module(*second);
  materialize_module(*first);
  EXPECT_TRUE(same_bits(first->weight, second->weight));
  EXPECT_FALSE(first->weight.is_alias_of(second->weight));
}

}  // namespace
}  // namespace shadowgraph
