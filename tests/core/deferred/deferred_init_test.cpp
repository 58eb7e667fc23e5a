#include <torch/torch.h>

#include "core/fake/mode_state.h"
#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/capture/replay.h"
#include "shadowgraph/deferred/deferred.h"
#include "tests/core/deferred/check.h"

namespace shadowgraph {
namespace {

using namespace testing;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    first = register_module("first", torch::nn::Linear(8, 16));
    norm = register_module("norm", torch::nn::BatchNorm1d(16));
    second = register_module("second", torch::nn::Linear(16, 8));
    table = register_buffer("table", torch::arange(4).to(at::kFloat) * 0.5);
    tied = register_parameter("tied", first->weight);
    second->weight.set_data(first->weight.detach().t().clone());
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  at::Tensor table, tied;
};
TORCH_MODULE(Net);

TEST(DeferredInit, GivesBackWhatTheFunctionReturns) {
  EXPECT_EQ(deferred_init([](int a, int b) { return a + b; }, 1, 2), 3);
  int called = 0;
  deferred_init([&] { ++called; });
  EXPECT_EQ(called, 1);
  int place = 5;
  int& reference = deferred_init([&]() -> int& { return place; });
  EXPECT_EQ(&reference, &place);
  const auto pair = deferred_init([] { return std::pair(torch::zeros({2}), std::string("x")); });
  EXPECT_TRUE(is_deferred(pair.first));
  const auto owned = deferred_init([] { return std::make_unique<int>(3); });
  EXPECT_EQ(*owned, 3);
}

TEST(DeferredInit, AModuleBecomesRealInPlaceAndTiesHold) {
  torch::manual_seed(3);
  Net eager;
  const RandomState left = process_state();
  torch::manual_seed(3);
  auto net = deferred_init([] { return Net(); });
  EXPECT_TRUE(process_state() == left);
  EXPECT_TRUE(is_deferred(*net));
  EXPECT_TRUE(net->tied.is_same(net->first->weight));
  const at::Tensor held = net->first->weight;
  materialize_module(*net);
  EXPECT_FALSE(is_deferred(*net));
  EXPECT_TRUE(net->tied.is_same(net->first->weight));
  EXPECT_TRUE(held.is_same(net->first->weight));
  for (const auto& item : eager->named_parameters()) {
    EXPECT_TRUE(same_bits(net->named_parameters()[item.key()], item.value())) << item.key();
  }
  for (const auto& item : eager->named_buffers()) {
    EXPECT_TRUE(same_bits(net->named_buffers()[item.key()], item.value())) << item.key();
  }
  // The module trains: forward, backward, an optimizer step.
  const at::Tensor x = torch::ones({4, 8});
  const auto run = [&](Net& n) { return n->second->forward(n->norm->forward(n->first->forward(x))).sum(); };
  run(net).backward();
  run(eager).backward();
  EXPECT_TRUE(same_bits(net->first->weight.grad(), eager->first->weight.grad()));
}

TEST(DeferredInit, PartOfAModule) {
  torch::manual_seed(3);
  Net eager;
  torch::manual_seed(3);
  auto net = deferred_init([] { return Net(); });
  materialize_module(*net, {.buffers_only = true});
  EXPECT_FALSE(is_deferred(net->table));
  EXPECT_TRUE(is_deferred(net->first->weight));
  MaterializeModuleOptions options;
  options.check_fn = [&](const torch::nn::Module& module) { return &module == net->second.get(); };
  materialize_module(*net, options);
  EXPECT_TRUE(is_deferred(net->first->weight));
  EXPECT_TRUE(same_bits(net->second->bias, eager->second->bias));
  EXPECT_TRUE(same_bits(net->second->weight, eager->second->weight));
  materialize_module(*net->first);
  EXPECT_TRUE(same_bits(net->first->weight, eager->first->weight));
  materialize_module(*net);
  materialize_module(*net);
  EXPECT_FALSE(is_deferred(*net));
}

TEST(DeferredInit, NestedOnesAreOne) {
  torch::manual_seed(3);
  const at::Tensor first = torch::rand({3});
  const at::Tensor second = first + torch::rand({3});
  for (const size_t order : {0, 1}) {
    torch::manual_seed(3);
    const Tensors made = deferred_init([] {
      at::Tensor a = deferred_init([] { return torch::rand({3}); });
      return Tensors{a, a + torch::rand({3})};
    });
    materialize_tensor(made[order]);
    materialize_tensor(made[1 - order]);
    EXPECT_TRUE(same_bits(made[0], first));
    EXPECT_TRUE(same_bits(made[1], second));
  }
}

TEST(DeferredInit, ValuesReadInsideAreComputedAtOnce) {
  expect_as_eager_in_every_order([] {
    at::Tensor x = torch::rand({20});
    int steps = 0;
    while (x.max().item<float>() > 0.5 && steps < 8) {
      x.mul_(0.8);
      ++steps;
    }
    at::Tensor y = torch::full({3}, steps);
    for (int64_t i = 0; i < torch::full({}, 3).item<int64_t>(); ++i) y[i] += i;
    if (at::equal(x, x.clone()) && !at::is_nonzero(torch::zeros({}))) y.add_(10);
    at::Tensor chosen = x.index({x > 0.2});
    at::Tensor places = (x > 0.3).nonzero();
    at::Tensor kept = x.masked_select(x < 0.4);
    return Tensors{x, y, chosen, places, kept};
  });
}

TEST(DeferredInit, RejectionSamplingStaysLinear) {
  // Rejection sampling as trunc_normal_ does it: redraw until every value is inside.
  expect_as_eager_in_every_order([] {
    at::Tensor x = torch::empty({64});
    do {
      x.normal_();
    } while (x.abs().max().item<float>() > 2.0);
    return Tensors{x, torch::rand({3})};
  });
}

TEST(DeferredInit, ExplicitDevicesConversionsAndLazyModules) {
  expect_as_eager_in_every_order([] {
    at::Tensor a = torch::rand({3}, at::TensorOptions().device(at::kCPU).dtype(at::kDouble));
    at::Tensor b = a.to(at::kFloat).to(at::kBFloat16);
    torch::nn::Linear half(3, 2);
    half->to(at::kHalf);
    return Tensors{a, b, half->weight, half->bias};
  });
  // A module that creates its weights on the first forward, with a dry run inside.
  struct Lazy : torch::nn::Module {
    at::Tensor forward(const at::Tensor& x) {
      if (!weight.defined()) weight = register_parameter("weight", torch::rand({x.size(1), 2}));
      return x.mm(weight);
    }
    at::Tensor weight;
  };
  expect_as_eager_in_every_order([] {
    auto lazy = std::make_shared<Lazy>();
    lazy->forward(torch::zeros({1, 5}));
    return Tensors{lazy->weight};
  });
}

TEST(DeferredInit, GeneratorsEndWhereEagerLeavesThem) {
  const auto draw_all = [](const at::Generator& own) {
    torch::rand({5});
    const at::Tensor a = torch::empty({40}).normal_(0, 1, own);
    const at::Tensor state = at::detail::getDefaultCPUGenerator().get_state();
    const at::Tensor b = torch::rand({7});
    at::Generator process = at::detail::getDefaultCPUGenerator();
    process.set_state(state);
    const at::Tensor c = torch::rand({7});
    torch::randn({3});
    at::Tensor d;
    {
      const UnfakeGuard real;
      d = torch::rand({4});
    }
    const at::Tensor e = torch::rand({4});
    return Tensors{a, b, c, d, e, torch::multinomial(torch::ones({9}), 4)};
  };
  const at::Generator eager_own = at::detail::createCPUGenerator(4);
  torch::manual_seed(12);
  const Tensors eager = draw_all(eager_own);
  const RandomState left = process_state();
  const at::Generator own = at::detail::createCPUGenerator(4);
  torch::manual_seed(12);
  const Tensors described = deferred_init([&] { return draw_all(own); });
  EXPECT_TRUE(process_state() == left);
  EXPECT_TRUE(RandomState::of(own) == RandomState::of(eager_own));
  for (const size_t i : {5, 0, 4, 2, 1, 3}) {
    materialize_tensor(described[i]);
    EXPECT_TRUE(same_bits(described[i], eager[i])) << i;
  }
  // The generator advances as in eager also if the program throws, and the same error is thrown.
  torch::manual_seed(12);
  torch::rand({5});
  const RandomState at_throw = process_state();
  torch::manual_seed(12);
  EXPECT_THROW(deferred_init([] {
                 torch::rand({5});
                 throw std::runtime_error("enough");
               }),
               std::runtime_error);
  EXPECT_TRUE(process_state() == at_throw);
}

TEST(DeferredInit, NumbersDrawnPastTheRecordAreNoticed) {
  at::Tensor x;
  const std::string message = message_of<DeferredError>([&] {
    deferred_init([&] {
      x = torch::rand({3});
      const at::Generator process = at::detail::getDefaultCPUGenerator();
      static_cast<at::CPUGeneratorImpl*>(process.unsafeGetGeneratorImpl())->random();
      torch::rand({3});
    });
  });
  EXPECT_NE(message.find("UnfakeGuard"), std::string::npos) << message;
}

TEST(DeferredInit, TensorsFromOutsideMustStayAsTheyWere) {
  at::Tensor outside = torch::ones({3});
  struct Scaled : torch::nn::Module {
    explicit Scaled(const at::Tensor& by) {
      scale = register_buffer("scale", by * 2);
      zeros = register_buffer("zeros", torch::zeros({2}));
    }
    at::Tensor scale, zeros;
  };
  const auto module = deferred_init([&] { return Scaled(outside); });
  outside.add_(1);
  const std::string message = message_of<DeferredError>([&] { materialize_module(module); });
  for (const char* part : {"'scale'", "Float [3]", "version 0 then, 1 now"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " in " << message;
  }
  materialize_tensor(module.zeros);
  EXPECT_TRUE(is_deferred(module.scale));
}

TEST(DeferredInit, WhatCannotBeRecordedIsRefused) {
  at::Tensor inference;
  {
    const c10::InferenceMode mode;
    inference = torch::ones({3});
  }
  message_of<DeferredError>([&] { deferred_init([&] { return inference * 2; }); });
  at::Tensor outside = torch::ones({3});
  for (const std::function<void()>& write : std::vector<std::function<void()>>{
           [&] { outside.add_(1); }, [&] { outside.slice(0, 0, 2).add_(1); }, [&] { at::add_out(outside, outside, 1); },
           [&] { outside.unsqueeze_(0); }, [&] { outside.resize_({9}); }, [&] { outside.set_data(torch::zeros({3})); },
           [&] {
             at::_foreach_add_({torch::zeros({3}), outside}, 1);
           }}) {
    const std::string message = message_of<DeferredError>([&] { deferred_init(write); });
    EXPECT_NE(message.find("would write to a tensor created outside of deferred_init (Float ["), std::string::npos)
        << message;
  }
  const at::Tensor late = deferred_init([] { return torch::zeros({3}); });
  message_of<DeferredError>([&] { outside.copy_(late); });
  EXPECT_TRUE(at::equal(outside, torch::ones({3})));
  message_of<DeferredError>([&] {
    deferred_init([&] {
      at::Tensor x = torch::zeros({3});
      x.set_(outside.storage(), 0, {2}, {1});
    });
  });
  const at::Tensor other = deferred_init([] { return torch::zeros({2}); });
  message_of<DeferredError>([&] { deferred_init([&] { return other + 1; }); });
  at::Tensor foreign;
  {
    const FakeTensorMode mode;
    foreign = torch::zeros({2});
  }
  message_of<DeferredError>([&] { deferred_init([&] { return foreign + 1; }); });
  message_of<DeferredError>([&] { materialize_tensor(foreign); });
  const at::Tensor real = torch::ones({1});
  EXPECT_TRUE(materialize_tensor(real).is_same(real));
  EXPECT_FALSE(is_deferred(real));
  EXPECT_FALSE(is_deferred(at::Tensor()));
  materialize_tensor(at::Tensor());
}

TEST(DeferredInit, WhatItHoldsCanBeReadByNoOperator) {
  EXPECT_FALSE(is_deferring());
  const at::Tensor outside = torch::arange(3.0);
  at::Tensor inside_view, inside_drawn, drawn, view;
  at::manual_seed(3);
  deferred_init([&] {
    EXPECT_TRUE(is_deferring());
    drawn = torch::rand({2, 3}).t();
    drawn.mul_(2);
    inside_drawn = *deferred_value(drawn);
    inside_view = *deferred_value(outside.slice(0, 1));
    const FakeTensorMode what_if;
    EXPECT_FALSE(is_deferring());
    EXPECT_FALSE(deferred_value(drawn));
  });
  at::manual_seed(3);
  const at::Tensor eager = torch::rand({2, 3}).t() * 2;
  EXPECT_TRUE(at::equal(inside_drawn, eager));
  EXPECT_TRUE(at::equal(inside_view, outside.slice(0, 1)));
  const at::Tensor value = *deferred_value(drawn);
  EXPECT_TRUE(at::equal(value, eager));
  value.zero_();
  EXPECT_TRUE(is_deferred(drawn));
  EXPECT_TRUE(at::equal(materialize_tensor(drawn), eager));
  EXPECT_FALSE(deferred_value(drawn));
  EXPECT_FALSE(deferred_value(outside));
}

TEST(DeferredInit, ListsThatAProgramChangesLaterAreKeptAsTheyWere) {
  std::vector<int64_t> sizes{2, 3};
  const at::Tensor x = deferred_init([&] { return torch::full(sizes, 2.0); });
  sizes = {9, 9};
  materialize_tensor(x);
  EXPECT_EQ(x.sizes(), (std::vector<int64_t>{2, 3}));
}

TEST(DeferredInit, ConvertsOnTheWay) {
  torch::manual_seed(1);
  Net eager;
  eager->to(at::kBFloat16);
  torch::manual_seed(1);
  auto net = deferred_init([] { return Net(); });
  MaterializeModuleOptions options;
  options.dtype = at::kBFloat16;
  materialize_module(*net, options);
  for (const auto& item : eager->named_parameters()) {
    EXPECT_TRUE(same_bits(net->named_parameters()[item.key()], item.value())) << item.key();
  }
  EXPECT_EQ(net->norm->num_batches_tracked.scalar_type(), at::kLong);
  const Tensors made = deferred_init([] {
    at::Tensor a = torch::rand({4});
    return Tensors{a, a.slice(0, 1, 3)};
  });
  materialize_tensor(made[0], {.dtype = at::kHalf});
  message_of<DeferredError>([&] { materialize_tensor(made[1], {.dtype = at::kDouble}); });
  materialize_tensor(made[1], {.dtype = at::kHalf});
  EXPECT_TRUE(made[1].is_alias_of(made[0]));
  message_of<DeferredError>([&] { materialize_tensor(made[1].clone(), {.dtype = at::kInt}); });
}

TEST(DeferredInit, DematerializedTensorsAreDescribedAgain) {
  torch::manual_seed(1);
  auto net = deferred_init([] { return Net(); });
  materialize_module(*net);
  const at::Tensor first = net->first->weight.detach().clone();
  {
    const torch::NoGradGuard no_grad;
    net->first->weight.zero_();
  }
  dematerialize(*net);
  EXPECT_TRUE(is_deferred(*net));
  EXPECT_TRUE(is_deferred(net->tied));
  EXPECT_TRUE(net->first->weight.requires_grad());
  for (int i = 0; i < 3; ++i) {
    materialize_module(*net);
    EXPECT_TRUE(at::equal(net->first->weight, first));
    dematerialize(*net);
  }
  materialize_module(*net, {{.keep_recipe = false}});
  message_of<DeferredError>([&] { dematerialize(net->first->weight); });
  message_of<DeferredError>([&] { dematerialize(torch::zeros({1})); });
  // Views created separately alias again after materialization.
  const Tensors views = deferred_init([] {
    at::Tensor a = torch::rand({4});
    return Tensors{a, a[1]};
  });
  materialize_tensors(views);
  for (const at::Tensor& view : views) dematerialize(view);
  materialize_tensors(views);
  views[1].fill_(7);
  EXPECT_EQ(views[0][1].item<float>(), 7);
}

TEST(DeferredInit, DescribedModulesCanBeProfiledAndThenMaterialized) {
  torch::manual_seed(5);
  Net eager;
  torch::manual_seed(5);
  auto net = deferred_init([] { return Net(); });
  {
    const FakeTensorMode mode;
    torch::optim::SGD sgd(net->parameters(), 0.1);
    ProgramToCapture program;
    program.module = net.get();
    program.inputs = {torch::ones({4, 8})};
    program.forward = [&](const Tensors& in) {
      return Tensors{net->second->forward(net->norm->forward(net->first->forward(in[0])))};
    };
    program.loss = [](const Tensors& out) { return out[0].sum(); };
    program.optimizer = &sgd;
    program.warmup_steps = 1;
    EXPECT_GT(capture_training_step(program).graph.node_count(), 20U);
  }
  EXPECT_TRUE(is_deferred(*net));
  materialize_module(*net);
  EXPECT_TRUE(same_bits(net->first->weight, eager->first->weight));
  EXPECT_TRUE(same_bits(net->norm->running_mean, eager->norm->running_mean));
}

TEST(DeferredInit, TheRecordLivesAsLongAsWhatItDescribes) {
  const uint32_t before = persistent_modes.load();
  {
    at::Tensor kept = deferred_init([] { return torch::rand({3}); });
    EXPECT_EQ(persistent_modes.load(), before + 1);
    const at::Tensor later = kept * torch::ones({3});
    kept.reset();
    EXPECT_EQ(persistent_modes.load(), before + 1);
    materialize_tensor(later);
  }
  EXPECT_EQ(persistent_modes.load(), before);
  // Tensors created outside work, too.
  const at::Tensor outside = torch::ones({3});
  deferred_init([&] { return outside * 2 + outside; });
  EXPECT_EQ(persistent_modes.load(), before);
}

}  // namespace
}  // namespace shadowgraph
