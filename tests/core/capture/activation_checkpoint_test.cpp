// Tests that checkpoint() leaves gradients bitwise equal to the program without it and lowers peak memory, in eager and
// in a capture: regions, forward/recompute links, and predicted bytes against a real run.
#include "shadowgraph/capture/activation_checkpoint.h"

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <thread>

#include "shadowgraph/error.h"
#include "tests/counting_allocator.h"

namespace shadowgraph {
namespace {

using Tensors = std::vector<at::Tensor>;
using ::testing::HasSubstr;

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  const at::Tensor x = a.detach().contiguous();
  const at::Tensor y = b.detach().contiguous();
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() && x.nbytes() == y.nbytes() &&
         std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width, double dropout = 0.2) : p(dropout) {
    up = register_module("up", torch::nn::Linear(width, 4 * width));
    down = register_module("down", torch::nn::Linear(4 * width, width));
  }
  at::Tensor forward(const at::Tensor& x) {
    ++runs;
    at::Tensor h = torch::gelu(up->forward(x));
    h = torch::dropout(h, p, is_training());
    at::Tensor y = down->forward(h).add_(x);
    return torch::relu_(y);  // in place, twice
  }
  double p;
  int runs = 0;
  torch::nn::Linear up{nullptr}, down{nullptr};
};
TORCH_MODULE(Block);

struct Net {
  explicit Net(size_t depth, int64_t width = 32) {
    for (size_t i = 0; i < depth; ++i) blocks.emplace_back(width);
  }
  std::vector<Block> blocks;
  Tensors parameters() const {
    Tensors all;
    for (const Block& block : blocks) {
      for (const at::Tensor& p : block->parameters()) all.push_back(p);
    }
    return all;
  }
};

using RunBlock = std::function<at::Tensor(Block&, const at::Tensor&)>;
at::Tensor plain(Block& block, const at::Tensor& x) { return block->forward(x); }
at::Tensor checkpointed(Block& block, const at::Tensor& x) {
  return checkpoint([block](const at::Tensor& in) mutable { return block->forward(in); }, x);
}

struct Gradients {
  at::Tensor loss;
  Tensors all;  // gradients of the input, then of the parameters
  at::Tensor next_random;
};

Gradients run(const RunBlock& run_block, bool input_requires_grad = true) {
  at::manual_seed(7);
  Net net(4);
  at::Tensor x = at::randn({8, 32});
  x.set_requires_grad(input_requires_grad);
  at::Tensor y = x;
  for (Block& block : net.blocks) y = run_block(block, y);
  Gradients result;
  result.loss = y.pow(2).sum();
  result.loss.backward();
  result.all.push_back(x.grad());
  for (const at::Tensor& p : net.parameters()) result.all.push_back(p.grad());
  result.next_random = at::rand({4});
  return result;
}

void expect_same(const Gradients& a, const Gradients& b) {
  EXPECT_TRUE(same_bits(a.loss, b.loss));
  ASSERT_EQ(a.all.size(), b.all.size());
  for (size_t i = 0; i < a.all.size(); ++i) EXPECT_TRUE(same_bits(a.all[i], b.all[i])) << i;
  EXPECT_TRUE(same_bits(a.next_random, b.next_random)) << "the generator states differ";
}

TEST(Checkpoint, GradientsAreThoseWithoutIt) { expect_same(run(plain), run(checkpointed)); }

TEST(Checkpoint, TheInputNeedsNoGradient) { expect_same(run(plain, false), run(checkpointed, false)); }

TEST(Checkpoint, WithoutEarlyStop) {
  expect_same(run(plain), run([](Block& block, const at::Tensor& x) {
                return checkpoint(
                    {.early_stop = false}, [block](const at::Tensor& in) mutable { return block->forward(in); }, x);
              }));
}

TEST(Checkpoint, DrawsOtherNumbersWhenTheStateIsNotKept) {
  const Gradients expected = run(plain);
  const Gradients other = run([](Block& block, const at::Tensor& x) {
    return checkpoint(
        {.preserve_random_state = false}, [block](const at::Tensor& in) mutable { return block->forward(in); }, x);
  });
  EXPECT_TRUE(same_bits(expected.loss, other.loss));
  EXPECT_FALSE(same_bits(expected.all[0], other.all[0]));
}

TEST(Checkpoint, CheckpointsNest) {
  at::manual_seed(7);
  Net expected(4);
  at::manual_seed(7);
  Net nested(4);
  const at::Tensor x = at::randn({8, 32});
  const auto both = [](Block& a, Block& b, const RunBlock& one) {
    return [a, b, one](const at::Tensor& in) mutable { return one(b, one(a, in)); };
  };
  at::manual_seed(9);
  at::Tensor y = both(expected.blocks[0], expected.blocks[1], plain)(x);
  both(expected.blocks[2], expected.blocks[3], plain)(y).sin().sum().backward();
  at::manual_seed(9);
  at::Tensor z = checkpoint(both(nested.blocks[0], nested.blocks[1], checkpointed), x);
  z = checkpoint(both(nested.blocks[2], nested.blocks[3], checkpointed), z);
  z.sin().sum().backward();
  for (size_t i = 0; i < expected.parameters().size(); ++i) {
    EXPECT_TRUE(same_bits(expected.parameters()[i].grad(), nested.parameters()[i].grad())) << i;
  }
  // Each block runs once in forward. The outer checkpoint recomputes it to get the inputs of the inner checkpoints, and
  // those recompute it again. The last block feeds no inner checkpoint, so the outer one stops before it.
  EXPECT_EQ(nested.blocks[0]->runs, 3);
  EXPECT_EQ(nested.blocks[1]->runs, 2);
}

TEST(Checkpoint, SeveralOutputsAndTuplesAndGrad) {
  const at::Tensor a = at::randn({5, 5}).set_requires_grad(true);
  const at::Tensor b = at::randn({5, 5}).set_requires_grad(true);
  const int64_t power = 3;  // captured by value, not a tensor
  const auto f = [power](const at::Tensor& x, const at::Tensor& y) {
    return std::make_tuple((x * y).sin(), x.pow(power) + y.exp());
  };
  const auto grads = [&](const std::tuple<at::Tensor, at::Tensor>& outputs) {
    return torch::autograd::grad({(std::get<0>(outputs) * std::get<1>(outputs)).sum()}, {a, b});
  };
  const auto expected = grads(f(a, b));
  const auto actual = grads(checkpoint(f, a, b));
  EXPECT_TRUE(same_bits(expected[0], actual[0]));
  EXPECT_TRUE(same_bits(expected[1], actual[1]));
  // Only one of the outputs and one of the inputs.
  const auto some = [&](const std::tuple<at::Tensor, at::Tensor>& outputs) {
    return torch::autograd::grad({std::get<1>(outputs).sum()}, {b})[0];
  };
  EXPECT_TRUE(same_bits(some(f(a, b)), some(checkpoint(f, a, b))));
}

TEST(Checkpoint, VectorsAndUndefinedInputs) {
  const at::Tensor a = at::randn({5}).set_requires_grad(true);
  const auto f = [](const Tensors& in) {
    EXPECT_FALSE(in[1].defined());
    return Tensors{in[0].exp(), in[0].sin()};
  };
  const Tensors expected = f({a, at::Tensor()});
  const Tensors actual = checkpoint(f, {a, at::Tensor()});
  ASSERT_EQ(actual.size(), 2);
  const auto grad = [&](const Tensors& outputs) {
    return torch::autograd::grad({(outputs[0] + outputs[1]).sum()}, {a})[0];
  };
  EXPECT_TRUE(same_bits(grad(expected), grad(actual)));
}

TEST(Checkpoint, RetainedGraphsAndDoubleBackward) {
  const at::Tensor a = at::randn({6}).set_requires_grad(true);
  int runs = 0;
  const auto f = [&](const at::Tensor& x) {
    ++runs;
    return x.exp().sin() * x;
  };
  const at::Tensor y = checkpoint(f, a).sum();
  EXPECT_EQ(runs, 1);
  const auto once = torch::autograd::grad({y}, {a}, {}, /*retain_graph=*/true)[0];
  EXPECT_EQ(runs, 2);
  const auto twice = torch::autograd::grad({y}, {a}, {}, /*retain_graph=*/true)[0];
  EXPECT_EQ(runs, 3);
  EXPECT_TRUE(same_bits(once, twice));

  const auto second = [&](const at::Tensor& out) {
    const auto first = torch::autograd::grad({out.sum()}, {a}, {}, true, /*create_graph=*/true)[0];
    return torch::autograd::grad({first.pow(2).sum()}, {a})[0];
  };
  const at::Tensor expected = second(f(a));
  EXPECT_TRUE(at::allclose(expected, second(checkpoint(f, a)), 1e-6, 1e-6));
}

TEST(Checkpoint, BackwardInsideTheFunction) {
  const at::Tensor a = at::randn({6}).set_requires_grad(true);
  const auto f = [](const at::Tensor& x) {
    const at::Tensor energy = (x.exp() * x.sin()).sum();
    return torch::autograd::grad({energy}, {x}, {}, true, /*create_graph=*/true)[0] * x;
  };
  const auto grad = [&](const at::Tensor& out) { return torch::autograd::grad({out.sum()}, {a})[0]; };
  EXPECT_TRUE(at::allclose(grad(f(a)), grad(checkpoint(f, a)), 1e-6, 1e-6));
}

TEST(Checkpoint, NoGradientsNoSecondRun) {
  int runs = 0;
  const auto f = [&](const at::Tensor& x) {
    ++runs;
    return x.exp();
  };
  {
    const c10::NoGradGuard no_grad;
    EXPECT_FALSE(checkpoint(f, at::ones({2}).set_requires_grad(true)).requires_grad());
  }
  EXPECT_FALSE(checkpoint(f, at::ones({2})).requires_grad());
  EXPECT_EQ(runs, 2);
}

TEST(Checkpoint, AutocastIsAsItWas) {
  const at::Tensor x = at::randn({8, 8}).set_requires_grad(true);
  const at::Tensor w = at::randn({8, 8}).set_requires_grad(true);
  const auto f = [&](const at::Tensor& in) { return at::mm(in, w).relu().to(at::kFloat); };
  const auto grads = [&](bool with) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    const at::Tensor y = with ? checkpoint(f, x) : f(x);
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    return torch::autograd::grad({y.pow(2).sum()}, {x, w});
  };
  const auto expected = grads(false);
  const auto actual = grads(true);
  EXPECT_TRUE(same_bits(expected[0], actual[0]));
  EXPECT_TRUE(same_bits(expected[1], actual[1]));
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
}

std::string failure_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no Error";
}

TEST(Checkpoint, AFunctionThatDoesOtherwiseIsRefused) {
  const at::Tensor a = at::randn({6}).set_requires_grad(true);
  int run = 0;
  const auto fewer = [&](const at::Tensor& x) { return run++ == 0 ? x.exp().sin() : x.exp(); };
  EXPECT_THAT(failure_of([&] { checkpoint({.name = "odd"}, fewer, a).sum().backward(); }),
              HasSubstr("checkpoint 'odd': the recomputation differs from the forward pass: it saved 2 tensors in "
                        "forward and 1 in the recomputation"));
  run = 0;
  const auto more = [&](const at::Tensor& x) { return run++ == 0 ? x.exp() : x.exp().sin(); };
  EXPECT_THAT(failure_of([&] { checkpoint({.early_stop = false}, more, a).sum().backward(); }),
              HasSubstr("it saved 1 tensors in forward and 2 in the recomputation"));
  run = 0;
  const auto other = [&](const at::Tensor& x) { return (run++ == 0 ? x : x.slice(0, 0, 3)).exp().sum(); };
  EXPECT_THAT(failure_of([&] { checkpoint(other, a).backward(); }),
              HasSubstr("saved tensor 0 was Float[6] on cpu and is now Float[3] on cpu"));
}

TEST(Checkpoint, InputsWrittenToBeforeBackwardAreRefused) {
  const at::Tensor a = at::randn({6}).set_requires_grad(true);
  at::Tensor x = a * 2;
  const at::Tensor y = checkpoint([](const at::Tensor& in) { return in.exp(); }, x);
  x.add_(1);
  EXPECT_THROW(y.sum().backward(), c10::Error);
}

TEST(Checkpoint, AFunctionThatWritesToWhatItSavedIsRefusedAsInEager) {
  const at::Tensor a = at::randn({6}).set_requires_grad(true);
  const auto function = [](const at::Tensor& in) {
    const at::Tensor kept = in.exp();
    at::Tensor y = kept * in;
    kept.add_(1);
    return y * in;
  };
  EXPECT_THROW(function(a).sum().backward(), c10::Error);
  EXPECT_THROW(checkpoint(function, a).sum().backward(), c10::Error);
}

TEST(Checkpoint, ErrorsOfTheFunctionPassThroughAndLeaveNothing) {
  const at::Tensor a = at::randn({6}).set_requires_grad(true);
  EXPECT_THROW(checkpoint([](const at::Tensor& x) -> at::Tensor { throw std::runtime_error("mine"); }, a),
               std::runtime_error);
  int run = 0;
  const at::Tensor y = checkpoint(
      [&](const at::Tensor& x) {
        if (run++ == 1) throw std::runtime_error("the second time");
        return x.exp();
      },
      a);
  EXPECT_THROW(torch::autograd::grad({y.sum()}, {a}, {}, true), std::runtime_error);
  // The saved-tensor hooks are uninstalled: autograd itself keeps tensors saved from here on.
  const at::Tensor z = a.exp().sum();
  EXPECT_TRUE(same_bits(torch::autograd::grad({z}, {a})[0], a.exp()));
}

TEST(Checkpoint, ThreadsDoNotMeet) {
  // The default generator is shared by the whole process, so this test uses no dropout.
  const auto gradients = [](bool with) {
    at::Tensor x = at::linspace(-1, 1, 64).reshape({8, 8}).set_requires_grad(true);
    for (int i = 0; i < 20; ++i) {
      const auto f = [](const at::Tensor& in) { return at::mm(in, in).tanh().exp().softmax(1); };
      (with ? checkpoint(f, x) : f(x)).pow(2).sum().backward();
    }
    return x.grad();
  };
  const at::Tensor alone = gradients(false);
  std::vector<std::thread> threads;
  std::vector<at::Tensor> results(4);
  for (size_t i = 0; i < results.size(); ++i) threads.emplace_back([&, i] { results[i] = gradients(i % 2 == 0); });
  for (std::thread& thread : threads) thread.join();
  for (const at::Tensor& result : results) EXPECT_TRUE(same_bits(alone, result));
}

TEST(Checkpoint, OneGraphFromSeveralThreads) {
  const at::Tensor a = at::randn({64}).set_requires_grad(true);
  const at::Tensor y = checkpoint([](const at::Tensor& x) { return x.exp().sin().exp().cos(); }, a).sum();
  const at::Tensor expected = torch::autograd::grad({y}, {a}, {}, true)[0];
  std::vector<std::thread> threads;
  std::vector<at::Tensor> results(6);
  for (size_t i = 0; i < results.size(); ++i) {
    threads.emplace_back([&, i] {
      for (int j = 0; j < 20; ++j) results[i] = torch::autograd::grad({y}, {a}, {}, true)[0];
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const at::Tensor& result : results) EXPECT_TRUE(same_bits(expected, result));
}

// ---- Memory

struct Peaks {
  int64_t held = 0;  // bytes held after forward
  int64_t most = 0;
  int64_t left = 0;
};

Peaks peaks_of(const RunBlock& run_block) {
  CountingAllocator& allocator = CountingAllocator::install();
  at::manual_seed(7);
  Net net(12, 64);
  const at::Tensor x = at::randn({64, 64}).set_requires_grad(true);
  for (const at::Tensor& p : net.parameters()) p.mutable_grad() = at::zeros_like(p);
  x.mutable_grad() = at::zeros_like(x);
  const int64_t before = allocator.live;
  allocator.most = before;
  Peaks peaks;
  {
    at::Tensor y = x;
    for (Block& block : net.blocks) y = run_block(block, y);
    y = y.sum();
    peaks.held = allocator.live - before;
    y.backward();
  }
  peaks.most = allocator.most - before;
  peaks.left = allocator.live - before;
  return peaks;
}

TEST(Checkpoint, MemoryFalls) {
  const Peaks without = peaks_of(plain);
  const Peaks with = peaks_of(checkpointed);
  EXPECT_EQ(without.left, 0);
  EXPECT_EQ(with.left, 0);
  // With checkpoints: the input of every block but the first, one generator state per block, and the loss. Without: 13
  // activations per block: the inputs of gelu and of the second linear, the dropout mask (4 each), and relu's result.
  constexpr int64_t kActivation = 64 * 64 * 4;
  const int64_t state = at::detail::getDefaultCPUGenerator().get_state().numel();
  EXPECT_EQ(with.held, 11 * kActivation + 12 * state + 4);
  EXPECT_EQ(without.held, 12 * 13 * kActivation + 4);
  EXPECT_LT(with.most, without.most / 3);
}

TEST(Checkpoint, WhatAPartialBackwardDidNotAskForGoesWithIt) {
  CountingAllocator& allocator = CountingAllocator::install();
  const at::Tensor a = at::randn({1000}).set_requires_grad(true);
  const at::Tensor b = at::randn({1000}).set_requires_grad(true);
  const Tensors outputs = checkpoint(
      [](const Tensors& in) {
        return Tensors{in[0].exp().exp().exp(), in[1].exp().exp().exp()};
      },
      {a, b});
  const at::Tensor loss = (outputs[0] + outputs[1]).sum();
  torch::autograd::grad({loss}, {a}, {}, true);
  const int64_t before = allocator.live;
  for (int i = 0; i < 5; ++i) torch::autograd::grad({loss}, {a}, {}, true);
  EXPECT_EQ(allocator.live, before);
}

}  // namespace
}  // namespace shadowgraph
