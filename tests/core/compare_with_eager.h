// Runs a program on real CPU tensors and again on fake copies of them, and compares everything except data: dtype,
// sizes, strides, offset, requires_grad, which tensors alias or are identical, the version of each input, and every
// gradient. If one run throws, so must the other.
//
//     EXPECT_EQ(difference({x, w}, [](const Tensors& in) { return Tensors{at::conv2d(in[0], in[1])}; }), "");
//     expect_like_eager([](const Tensors& in) { return Tensors{at::relu(in[0])}; }, {at::randn({2, 3})});
//     expect_like_eager(program, inputs, {.gradients = true});
//
// `difference` also compares every operator call below autograd with what it returned; the fakes are on the CPU.
// `expect_like_eager` runs eager without observers, and the fakes once on the CPU and once on simulated CUDA, where the
// only expected difference is the device. Behavior that is specific to GPUs is run with `run_on_fake_cuda` and compared
// with known values.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "core/fake/call_observer.h"
#include "core/fake/dispatch/operator_info.h"
#include "core/fake/mode_state.h"
#include "shadowgraph/capture/fake.h"

namespace shadowgraph::testing {

using Tensors = std::vector<at::Tensor>;
using Program = std::function<Tensors(const Tensors&)>;

// Returns "Float[2, 3][3, 1]+4": dtype, sizes, strides and, if nonzero, the storage offset.
inline std::string described(const at::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  std::ostringstream out;
  out << c10::toString(tensor.scalar_type()) << tensor.sizes() << tensor.strides();
  if (tensor.storage_offset() != 0) out << '+' << tensor.storage_offset();
  return out.str();
}

// The same followed by " grad", " conj", " neg" and, for each of `others`, "
// is(in0)" or " shares(out1)". The first `inputs` of them are called in0, in1,
// ..., the rest out0, out1, ...
inline std::string described_among(const at::Tensor& tensor, const Tensors& others, size_t inputs) {
  std::string text = described(tensor);
  if (!tensor.defined()) return text;
  if (tensor.requires_grad()) text += " grad";
  if (tensor.is_conj()) text += " conj";
  if (tensor.is_neg()) text += " neg";
  for (size_t i = 0; i < others.size(); ++i) {
    if (!others[i].defined()) continue;
    const std::string name = i < inputs ? "in" + std::to_string(i) : "out" + std::to_string(i - inputs);
    if (others[i].is_same(tensor)) {
      text += " is(" + name + ")";
    } else if (others[i].storage().unsafeGetStorageImpl() == tensor.storage().unsafeGetStorageImpl()) {
      text += " shares(" + name + ")";
    }
  }
  return text;
}

struct Call {
  std::string name;
  std::vector<std::string> results;
  bool operator==(const Call&) const = default;
};

inline void PrintTo(const Call& call, std::ostream* out) {
  *out << call.name << " -> " << ::testing::PrintToString(call.results);
}

class CallLog final : public CallObserver {
 public:
  std::vector<Call> calls;

  void begin_call(const OperatorInfo&, std::span<const CallArgument>) override {}
  void end_call(const OperatorInfo& info, std::span<const CallArgument> results) override {
    Call call{info.name, {}};
    for (const CallArgument& argument : results) {
      const c10::IValue result = argument.value();
      if (result.isTensor()) {
        call.results.push_back(described(result.toTensor()));
      } else if (result.isTensorList()) {
        for (const at::Tensor& element : result.toTensorVector()) call.results.push_back(described(element));
      } else if (result.isInt()) {
        call.results.push_back(std::to_string(result.toInt()));
      }
    }
    calls.push_back(std::move(call));
  }
  void abandon_call(const OperatorInfo&) noexcept override {}
  void enter_composite(const OperatorInfo&, std::span<const CallArgument>) override {}
  void leave_composite() noexcept override {}

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const Call& call : calls) names.push_back(call.name);
    return names;
  }
  const Call* find(const std::string& name) const {
    for (const Call& call : calls) {
      if (call.name == name) return &call;
    }
    return nullptr;
  }
};

struct Outcome {
  CallLog log;                         // empty if no calls were observed
  std::vector<std::string> results;    // described_among inputs and earlier results
  std::vector<std::string> inputs;     // after the run, with their version counters
  std::vector<std::string> gradients;  // one for each input
  std::string error;                   // first line of the exception's message
  std::exception_ptr thrown;           // the exception itself
  Tensors tensors;                     // results

  // Descriptions of the results of the first call of this operator.
  std::vector<std::string> results_of(const std::string& name) const {
    const Call* call = log.find(name);
    return call == nullptr ? std::vector<std::string>{"not called"} : call->results;
  }
};

enum class Backward {
  kNo,
  kYes,       // backward from ones for each differentiable result, into .grad of the
              // leaves
  kOfInputs,  // the gradients as they arrive, before anything is accumulated
};

// Appends to `run`, so that a caller can attach a log first.
inline void run_into(Outcome& run, const Tensors& inputs, const Program& program, Backward backward) {
  const auto forget_gradients = [&] {
    for (const at::Tensor& input : inputs) {
      if (input.defined()) input.mutable_grad() = at::Tensor();
    }
  };
  forget_gradients();
  // Inference tensors have no version counter.
  const auto version_of = [](const at::Tensor& input) {
    return input.defined() && !input.is_inference() ? static_cast<uint32_t>(input._version()) : 0;
  };
  std::vector<uint32_t> versions;
  for (const at::Tensor& input : inputs) versions.push_back(version_of(input));
  try {
    run.tensors = program(inputs);
    Tensors known = inputs;
    Tensors roots;
    Tensors seeds;
    for (const at::Tensor& result : run.tensors) {
      run.results.push_back(described_among(result, known, inputs.size()));
      known.push_back(result);
      if (backward == Backward::kNo || !result.defined() || !result.requires_grad()) continue;
      roots.push_back(result);
      seeds.push_back(at::ones_like(result));
    }
    if (backward == Backward::kYes) {
      if (!roots.empty()) torch::autograd::backward(roots, seeds);
      for (const at::Tensor& input : inputs) {
        run.gradients.push_back(input.defined() && input.is_leaf() ? described(input.grad()) : "not a leaf");
      }
    } else if (backward == Backward::kOfInputs) {
      Tensors wanted;
      for (const at::Tensor& input : inputs) {
        if (input.defined() && input.requires_grad()) wanted.push_back(input);
      }
      if (!roots.empty() && !wanted.empty()) {
        for (const at::Tensor& gradient : torch::autograd::grad(roots, wanted, seeds, /*retain_graph=*/std::nullopt,
                                                                /*create_graph=*/false, /*allow_unused=*/true)) {
          run.gradients.push_back(described_among(gradient, known, inputs.size()));
          known.push_back(gradient);
          run.tensors.push_back(gradient);
        }
      }
    }
    for (size_t i = 0; i < inputs.size(); ++i) {
      std::string text = described_among(inputs[i], {}, 0);
      if (inputs[i].defined()) text += " writes " + std::to_string(version_of(inputs[i]) - versions[i]);
      run.inputs.push_back(std::move(text));
    }
  } catch (const c10::Error& error) {
    run.error = error.what_without_backtrace();
    run.thrown = std::current_exception();
  } catch (const std::exception& error) {  // oneDNN throws exceptions that are not c10::Error
    run.error = error.what();
    run.thrown = std::current_exception();
  }
  run.error = run.error.substr(0, run.error.find('\n'));
  forget_gradients();
}

// Runs on real tensors and observes every call.
inline Outcome run_real(const Tensors& inputs, const Program& program, Backward backward = Backward::kYes) {
  Outcome run;
  FakeTensorMode mode;
  state_of(mode).kind = ModeKind::kObserve;
  state_of(mode).observer = &run.log;
  run_into(run, inputs, program, backward);
  return run;
}

inline Outcome run_fake(const Tensors& inputs, const Program& program, Backward backward = Backward::kYes,
                        FakeTensorOptions options = {}) {
  Outcome run;
  FakeTensorMode mode(options);
  Tensors fakes;
  for (const at::Tensor& input : inputs) {
    fakes.push_back(input.defined() ? mode.from_real(input, options.device) : at::Tensor());
  }
  state_of(mode).observer = &run.log;
  run_into(run, fakes, program, backward);
  return run;
}

inline Outcome run_on_fake_cuda(const Tensors& inputs, const Program& program, Backward backward = Backward::kYes,
                                DeviceProfile profile = {}) {
  return run_fake(inputs, program, backward, {.device = at::Device(at::kCUDA, 0), .profile = profile});
}

// Eager as on a processor where oneDNN supports only float: kernels for other dtypes are the native ones.
struct WithoutOnednn {
  const bool before = at::globalContext().userEnabledMkldnn();
  WithoutOnednn() { at::globalContext().setUserEnabledMkldnn(false); }
  ~WithoutOnednn() { at::globalContext().setUserEnabledMkldnn(before); }
};

// Replaces one dtype by another in the outcome, for programs where the dtype affects nothing else.
inline Outcome with_dtype(Outcome run, const std::string& from, const std::string& to) {
  const auto rename = [&](std::vector<std::string>& descriptions) {
    for (std::string& text : descriptions) {
      if (text.starts_with(from + "[")) text.replace(0, from.size(), to);
    }
  };
  for (auto* descriptions : {&run.results, &run.inputs, &run.gradients}) rename(*descriptions);
  for (Call& call : run.log.calls) rename(call.results);
  return run;
}

template <class Item>
void note_difference(std::ostringstream& out, const std::string& what, const Item& real, const Item& fake) {
  if (real != fake)
    out << what << ": eager " << ::testing::PrintToString(real) << ", fake " << ::testing::PrintToString(fake) << '\n';
}

// Returns "" if results, inputs and gradients agree.
inline std::string difference_of_tensors(const Outcome& real, const Outcome& fake) {
  std::ostringstream out;
  note_difference(out, "results", real.results, fake.results);
  note_difference(out, "inputs", real.inputs, fake.inputs);
  note_difference(out, "gradients", real.gradients, fake.gradients);
  return out.str();
}

// Returns "" if everything that was compared agrees, including errors and calls.
inline std::string difference(const Outcome& real, const Outcome& fake) {
  std::ostringstream out;
  note_difference(out, "error", real.error, fake.error);
  out << difference_of_tensors(real, fake);
  const size_t common = std::min(real.log.calls.size(), fake.log.calls.size());
  size_t i = 0;
  while (i < common && real.log.calls[i] == fake.log.calls[i]) ++i;
  if (i < common) note_difference(out, "call " + std::to_string(i), real.log.calls[i], fake.log.calls[i]);
  if (real.error.empty()) note_difference(out, "calls", real.log.names(), fake.log.names());
  return out.str();
}

inline std::string difference(const Tensors& inputs, const Program& program, Backward backward = Backward::kYes) {
  return difference(run_real(inputs, program, backward), run_fake(inputs, program, backward));
}

// ---- expect_like_eager

struct Comparison {
  bool gradients = false;   // make floating-point inputs differentiable, and
                            // compare their gradients
  bool cuda = true;         // also on fakes on simulated cuda:0; eager on the CPU
                            // is still the reference
  bool same_error = false;  // if both throw: with the same message
  std::string note;         // added to the failure message
};

// Copies the tensor with a new storage of the same size, because programs may write to their inputs.
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

inline void expect_fake_results(const Outcome& run, c10::Device device) {
  for (const at::Tensor& result : run.tensors) {
    if (!result.defined()) continue;
    EXPECT_TRUE(is_fake(result)) << "a result is not a fake tensor";
    EXPECT_EQ(result.device(), device) << "a result is on the wrong device";
  }
}

inline void expect_same_outcome(const Outcome& real, const Outcome& fake, bool same_error, const std::string& where) {
  if (real.error.empty() && fake.error.empty()) {
    EXPECT_EQ(difference_of_tensors(real, fake), "") << where;
    return;
  }
  const auto said = [](const Outcome& run) {
    return run.error.empty() ? ::testing::PrintToString(run.results) : run.error;
  };
  EXPECT_EQ(real.error.empty(), fake.error.empty()) << where << "\neager: " << said(real) << "\nfake:  " << said(fake);
  if (same_error) {
    EXPECT_EQ(real.error, fake.error) << where;
  }
}

inline void expect_like_eager(const Program& program, const Tensors& inputs, const Comparison& how = {}) {
  const Backward backward = how.gradients ? Backward::kOfInputs : Backward::kNo;
  Tensors copies;
  for (const at::Tensor& input : inputs) copies.push_back(fresh_copy(input, how.gradients));
  std::string where = how.note + "\n";
  for (size_t i = 0; i < copies.size(); ++i) {
    where += "  given in" + std::to_string(i) + ": " + described_among(copies[i], {}, 0) + "\n";
  }
  // The fakes run first, because the real run may write to its inputs.
  const c10::Device cuda(at::kCUDA, 0);
  const Outcome on_cpu = run_fake(copies, program, backward);
  expect_fake_results(on_cpu, at::kCPU);
  std::optional<Outcome> on_cuda;
  if (how.cuda) {
    on_cuda = run_fake(copies, program, backward, {.device = cuda});
    expect_fake_results(*on_cuda, cuda);
  }
  Outcome real;
  run_into(real, copies, program, backward);
  expect_same_outcome(real, on_cpu, how.same_error, where + "on cpu");
  if (on_cuda) expect_same_outcome(real, *on_cuda, how.same_error, where + "pretending cuda");
}

// Returns tensors of one dtype in every layout that affects strides: contiguous, transposed, expanded, channels last, a
// slice with an offset and a step, one element, no elements, 0-dimensional.
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
