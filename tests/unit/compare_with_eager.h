// A program run on real CPU tensors and again on fakes of them: every operator call below autograd with what it
// returned, every result and every gradient of a leaf must be the same: dtype, sizes, strides, offset, requires_grad.
//
//     EXPECT_EQ(difference({x, w}, [](const Tensors& in) { return Tensors{at::conv2d(in[0], in[1])}; }), "");
//
// Errors are compared by their first line.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "core/fake/call_observer.h"
#include "core/fake/fake_tensor_mode.h"
#include "core/fake/mode_state.h"
#include "core/fake/operator_info.h"

namespace shadowgraph::testing {

using Tensors = std::vector<at::Tensor>;
using Program = std::function<Tensors(const Tensors&)>;

inline std::string described(const at::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  std::ostringstream out;
  out << c10::toString(tensor.scalar_type()) << tensor.sizes() << tensor.strides();
  if (tensor.storage_offset() != 0) out << '+' << tensor.storage_offset();
  return out.str();
}

struct Call {
  std::string name;
  std::vector<std::string> results;
  bool operator==(const Call&) const = default;
};

class CallLog final : public CallObserver {
 public:
  std::vector<Call> calls;

  void begin_call(const OperatorInfo&, torch::jit::Stack&, size_t) override {}
  void end_call(const OperatorInfo& info, torch::jit::Stack& stack, size_t begin) override {
    Call call{info.name, {}};
    for (size_t i = begin; i < stack.size(); ++i) {
      if (stack[i].isTensor()) {
        call.results.push_back(described(stack[i].toTensor()));
      } else if (stack[i].isTensorList()) {
        for (const at::Tensor& element : stack[i].toTensorVector()) call.results.push_back(described(element));
      } else if (stack[i].isInt()) {
        call.results.push_back(std::to_string(stack[i].toInt()));
      }
    }
    calls.push_back(std::move(call));
  }
  void abandon_call(const OperatorInfo&) noexcept override {}
  void enter_composite(const OperatorInfo&, torch::jit::Stack&, size_t) override {}
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

struct CallOutcome {
  CallLog log;
  // What the first call of this operator returned.
  std::vector<std::string> results_of(const std::string& name) const {
    const Call* call = log.find(name);
    return call == nullptr ? std::vector<std::string>{"not called"} : call->results;
  }
  std::vector<std::string> results;
  std::vector<std::string> gradients;
  std::string error;
};

enum class Backward { kNo, kYes };

// Runs `program` and, asked to, backward from ones for each of its differentiable results.
inline void run_into(CallOutcome& run, Tensors inputs, const Program& program, Backward backward) {
  for (at::Tensor& input : inputs) {
    if (input.defined()) input.mutable_grad() = at::Tensor();
  }
  try {
    const Tensors results = program(inputs);
    Tensors roots;
    Tensors gradients;
    for (const at::Tensor& result : results) {
      run.results.push_back(described(result) + (result.defined() && result.requires_grad() ? " grad" : ""));
      if (!result.defined() || !result.requires_grad()) continue;
      roots.push_back(result);
      gradients.push_back(at::ones_like(result));
    }
    if (backward == Backward::kYes && !roots.empty()) torch::autograd::backward(roots, gradients);
    for (const at::Tensor& input : inputs) {
      run.gradients.push_back(input.defined() && input.is_leaf() ? described(input.grad()) : "not a leaf");
    }
  } catch (const c10::Error& error) {
    run.error = error.what_without_backtrace();
  } catch (const std::exception& error) {  // oneDNN has exceptions of its own
    run.error = error.what();
  }
  run.error = run.error.substr(0, run.error.find('\n'));
  for (at::Tensor& input : inputs) {
    if (input.defined()) input.mutable_grad() = at::Tensor();
  }
}

inline CallOutcome run_real(const Tensors& inputs, const Program& program, Backward backward = Backward::kYes) {
  CallOutcome run;
  FakeTensorMode mode;
  mode.state().kind = ModeKind::kObserve;
  mode.state().observer = &run.log;
  run_into(run, inputs, program, backward);
  return run;
}

inline CallOutcome run_fake(const Tensors& inputs, const Program& program, Backward backward = Backward::kYes,
                            FakeTensorOptions options = {}) {
  CallOutcome run;
  FakeTensorMode mode(options);
  Tensors fakes;
  for (const at::Tensor& input : inputs) {
    fakes.push_back(input.defined() ? mode.from_real(input, options.device) : at::Tensor());
  }
  mode.state().observer = &run.log;
  run_into(run, fakes, program, backward);
  return run;
}

inline CallOutcome run_on_fake_cuda(const Tensors& inputs, const Program& program, Backward backward = Backward::kYes,
                                    DeviceProfile profile = {}) {
  return run_fake(inputs, program, backward, {.device = at::Device(at::kCUDA, 0), .profile = profile});
}

template <class Item>
void note_difference(std::ostringstream& out, const std::string& what, const Item& real, const Item& fake) {
  if (real != fake)
    out << what << ": eager " << ::testing::PrintToString(real) << ", fake " << ::testing::PrintToString(fake) << '\n';
}

inline void PrintTo(const Call& call, std::ostream* out) {
  *out << call.name << " -> " << ::testing::PrintToString(call.results);
}

// "" if eager and fake agree.
inline std::string difference(const CallOutcome& real, const CallOutcome& fake) {
  std::ostringstream out;
  note_difference(out, "error", real.error, fake.error);
  note_difference(out, "results", real.results, fake.results);
  note_difference(out, "gradients", real.gradients, fake.gradients);
  const size_t common = std::min(real.log.calls.size(), fake.log.calls.size());
  size_t i = 0;
  while (i < common && real.log.calls[i] == fake.log.calls[i]) ++i;
  if (i < common) {
    note_difference(out, "call " + std::to_string(i), real.log.calls[i], fake.log.calls[i]);
  }
  if (real.error.empty()) note_difference(out, "calls", real.log.names(), fake.log.names());
  return out.str();
}

inline std::string difference(const Tensors& inputs, const Program& program, Backward backward = Backward::kYes) {
  return difference(run_real(inputs, program, backward), run_fake(inputs, program, backward));
}

}  // namespace shadowgraph::testing
