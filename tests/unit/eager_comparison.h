// Runs a piece of program for real on CPU tensors and on the fakes of the same tensors, and compares everything that is
// not data: sizes, dtype, strides, storage offset, which tensors share a storage, what is the same tensor, how often
// inputs were written, requires_grad. Or that both throw.
//
//     expect_like_eager([](const Tensors& in) { return Tensors{at::relu(in[0])}; }, {at::randn({2, 3})});
//     expect_like_eager(program, inputs, {.gradients = true});  // and the gradients of all floating-point inputs
//
// The fakes pretend to be on the CPU, and once more on CUDA, where the same is expected save for the device.
#pragma once

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "core/fake/fake_tensor_mode.h"

namespace shadowgraph::testing {

using Tensors = std::vector<at::Tensor>;
using Program = std::function<Tensors(const Tensors&)>;

struct Comparison {
  bool gradients = false;   // run backward (in the mode) and compare the gradients
  bool cuda = true;         // also on fakes that pretend to be on cuda:0; eager on CPU is still the reference
  bool same_error = false;  // if both throw: with the same message
  std::string note;         // for the failure message
};

// "Float [2, 3] strides [3, 1] offset 0 requires_grad shares(in0)"
inline std::string describe(const at::Tensor& tensor, const Tensors& others, size_t named) {
  if (!tensor.defined()) return "undefined";
  std::ostringstream text;
  text << tensor.scalar_type() << " " << tensor.sizes() << " strides " << tensor.strides() << " offset "
       << tensor.storage_offset();
  if (tensor.requires_grad()) text << " requires_grad";
  if (tensor.is_conj()) text << " conj";
  if (tensor.is_neg()) text << " neg";
  for (size_t i = 0; i < others.size(); ++i) {
    if (!others[i].defined()) continue;
    const std::string name = i < named ? "in" + std::to_string(i) : "out" + std::to_string(i - named);
    if (others[i].is_same(tensor)) {
      text << " is(" << name << ")";
    } else if (others[i].storage().unsafeGetStorageImpl() == tensor.storage().unsafeGetStorageImpl()) {
      text << " shares(" << name << ")";
    }
  }
  return text.str();
}

// One line a tensor: results, then inputs as they were left.
inline std::string describe_run(const Tensors& results, const Tensors& inputs,
                                const std::vector<uint32_t>& first_versions) {
  std::ostringstream text;
  Tensors others = inputs;
  for (size_t i = 0; i < results.size(); ++i) {
    text << "  out" << i << ": " << describe(results[i], others, inputs.size()) << "\n";
    others.push_back(results[i]);
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    text << "  in" << i << ": " << describe(inputs[i], {}, 0);
    if (inputs[i].defined()) text << " writes " << inputs[i]._version() - first_versions[i];
    text << "\n";
  }
  return text.str();
}

struct Outcome {
  std::string text;   // describe_run, empty if it threw
  std::string error;  // what it threw, without C++ frames
  Tensors results;
};

inline Outcome run_program(const Program& program, const Tensors& inputs, bool gradients) {
  Outcome outcome;
  std::vector<uint32_t> versions;
  for (const auto& input : inputs) versions.push_back(input.defined() ? input._version() : 0);
  try {
    Tensors results = program(inputs);
    if (gradients) {
      Tensors roots;
      Tensors seeds;
      Tensors leaves;
      for (const auto& result : results) {
        if (!result.defined() || !result.requires_grad()) continue;
        roots.push_back(result);
        seeds.push_back(at::ones_like(result));
      }
      for (const auto& input : inputs) {
        if (input.defined() && input.requires_grad()) leaves.push_back(input);
      }
      if (!roots.empty() && !leaves.empty()) {
        const auto given = torch::autograd::grad(roots, leaves, seeds, /*retain_graph=*/std::nullopt,
                                                 /*create_graph=*/false, /*allow_unused=*/true);
        results.insert(results.end(), given.begin(), given.end());
      }
    }
    outcome.text = describe_run(results, inputs, versions);
    outcome.results = std::move(results);
  } catch (const c10::Error& error) {
    outcome.error = error.what_without_backtrace();
  } catch (const std::exception& error) {
    outcome.error = error.what();
  }
  return outcome;
}

// The same tensor again, with its own storage of the same size: programs may write to their inputs.
inline at::Tensor fresh_copy(const at::Tensor& tensor, bool gradients) {
  if (!tensor.defined()) return tensor;
  const at::NoGradGuard no_grad;
  const auto elements = static_cast<int64_t>(tensor.storage().nbytes() / tensor.element_size());
  at::Tensor copy = at::empty({elements}, tensor.options().requires_grad(false));
  copy.copy_(tensor.detach().as_strided({elements}, {1}, 0));
  copy = copy.as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset()).detach();
  const bool differentiable = tensor.is_floating_point() || tensor.is_complex();
  copy.set_requires_grad((gradients && differentiable) || tensor.requires_grad());
  return copy;
}

inline Outcome run_on_fakes(const Program& program, const Tensors& real, bool gradients, c10::Device device) {
  FakeTensorMode mode({.device = device});
  Tensors fakes;
  for (const auto& tensor : real) {
    fakes.push_back(tensor.defined() ? mode.from_real(tensor, device) : tensor);
  }
  Outcome outcome = run_program(program, fakes, gradients);
  for (const auto& result : outcome.results) {
    if (!result.defined()) continue;
    EXPECT_TRUE(is_fake(result)) << "a result is not a fake tensor";
    EXPECT_EQ(result.device(), device) << "a result is on another device";
  }
  return outcome;
}

inline void expect_same_outcome(const Outcome& real, const Outcome& fake, bool same_error, const std::string& where) {
  EXPECT_EQ(real.error.empty(), fake.error.empty())
      << where << "\neager: " << (real.error.empty() ? real.text : real.error)
      << "\nfake:  " << (fake.error.empty() ? fake.text : fake.error);
  if (same_error) {
    EXPECT_EQ(real.error, fake.error) << where;
  }
  if (real.error.empty() && fake.error.empty()) {
    EXPECT_EQ(real.text, fake.text) << where;
  }
}

inline void expect_like_eager(const Program& program, const Tensors& inputs, const Comparison& how = {}) {
  Tensors copies;
  for (const auto& input : inputs) copies.push_back(fresh_copy(input, how.gradients));
  std::string where = how.note + "\n";
  for (size_t i = 0; i < copies.size(); ++i) {
    where += "  given in" + std::to_string(i) + ": " + describe(copies[i], {}, 0) + "\n";
  }
  // The fakes first: the real run may write to its inputs.
  const Outcome on_cpu = run_on_fakes(program, copies, how.gradients, at::kCPU);
  std::optional<Outcome> on_cuda;
  if (how.cuda) on_cuda = run_on_fakes(program, copies, how.gradients, c10::Device(at::kCUDA, 0));
  const Outcome real = run_program(program, copies, how.gradients);
  expect_same_outcome(real, on_cpu, how.same_error, where + "on cpu");
  if (on_cuda) expect_same_outcome(real, *on_cuda, how.same_error, where + "pretending cuda");
}

// Tensors of one dtype in the layouts that decide strides: contiguous, transposed, expanded, channels last, a slice
// with an offset and a step, one element, none, 0-dimensional.
inline Tensors layouts(at::ScalarType dtype) {
  const auto make = [dtype](at::IntArrayRef sizes) {
    return at::arange(c10::multiply_integers(sizes)).remainder(2).reshape(sizes).to(dtype);
  };
  return {
      make({4, 6}),
      make({6, 4}).t(),
      make({4, 1}).expand({4, 6}),
      make({2, 3, 4, 5}),
      make({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast),
      make({2, 3, 2, 4, 2}).contiguous(at::MemoryFormat::ChannelsLast3d),
      make({8, 9}).slice(1, 1, 9, 2),
      make({2, 3, 4}).permute({2, 0, 1}),
      make({1, 1}),
      make({0, 3}),
      make({}),
  };
}

}  // namespace shadowgraph::testing
