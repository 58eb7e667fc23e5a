// Compares generated kernels with eager on PyTorch's own samples of every supported operator.
//
//     kernel_samples SAMPLES [EVERY]       every EVERYth of their samples (default 1), each in a child process
//
// Correctly rounded operators must be bitwise equal to eager; kBounds lists the others. Calls that the compiler refuses
// are counted; calls that eager refuses must be refused. Fails if a result is out of bounds, or if no kernel ran for an
// operator with samples.
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <optional>
#include <set>

#include "shadowgraph/error.h"
#include "shadowgraph/kernels/kernel.h"
#include "tests/conformance/samples.h"
#include "tests/conformance/workers.h"
#include "tests/kernels/differences.h"
#include "tests/kernels/temporary_folder.h"

namespace shadowgraph::conformance {
namespace {

using Tensors = std::vector<at::Tensor>;

// `ulps` of each element, or `epsilons` of the largest element.
struct Bound {
  double ulps = 0;
  double epsilons = 0;
};

// Keyed by operator without namespace, overload and trailing underscore. docs/kernels.md has the reasons.
const std::map<std::string, Bound> kBounds = {
    {"exp", {.ulps = 2}},
    {"expm1", {.ulps = 2}},
    {"log", {.ulps = 2}},
    {"tanh", {.ulps = 2}},
    {"sigmoid", {.ulps = 2}},
    {"silu", {.ulps = 2}},
    {"erf", {.ulps = 2}},
    {"sqrt", {.ulps = 1}},
    {"rsqrt", {.ulps = 1}},
    {"pow", {.ulps = 1}},  // pow(x, 0.5) is a square root
    {"gelu", {.epsilons = 4}},
    {"gelu_backward", {.epsilons = 32}},
    {"silu_backward", {.epsilons = 4}},
    {"sigmoid_backward", {.epsilons = 4}},
    {"tanh_backward", {.epsilons = 4}},
    {"_softmax", {.epsilons = 8}},
    {"_safe_softmax", {.epsilons = 8}},
    {"_log_softmax", {.epsilons = 8}},
    {"_softmax_backward_data", {.epsilons = 16}},
    {"_log_softmax_backward_data", {.epsilons = 16}},
    {"sum", {.epsilons = 64}},
    {"mean", {.epsilons = 64}},
    {"var", {.epsilons = 64}},
    {"std", {.epsilons = 64}},
    {"var_mean", {.epsilons = 64}},
    {"std_mean", {.epsilons = 64}},
    {"native_layer_norm", {.epsilons = 32}},
    {"native_layer_norm_backward", {.epsilons = 64}},
    {"_fused_rms_norm", {.epsilons = 16}},
    {"_fused_adam", {.epsilons = 4}},
    {"_fused_adamw", {.epsilons = 4}},
    {"_fused_sgd", {.epsilons = 4}},
};

Bound bound_of(const std::string& op) {
  std::string base = op.substr(op.find("::") + 2);
  base = base.substr(0, base.find('.'));
  if (base.starts_with("_foreach_")) base = base.substr(9);
  if (base.ends_with('_')) base.pop_back();
  const auto found = kBounds.find(base);
  return found == kBounds.end() ? Bound() : found->second;
}

// `largest`: the largest operand; cancellation errors are relative to it.
std::string difference(const at::Tensor& eager, const at::Tensor& kernel, const Bound& bound, double largest) {
  if (eager.defined() != kernel.defined()) return "defined on one side";
  if (!eager.defined()) return "";
  if (eager.scalar_type() != kernel.scalar_type()) return c10::str("dtype ", eager.dtype(), ", ", kernel.dtype());
  if (eager.sizes() != kernel.sizes()) return c10::str("sizes ", eager.sizes(), ", ", kernel.sizes());
  if (eager.numel() == 0 || !eager.has_storage()) return "";
  if (eager.strides() != kernel.strides()) return c10::str("strides ", eager.strides(), ", ", kernel.strides());
  if (eager.is_complex()) return at::equal(eager, kernel) ? "" : "complex values";
  if (bound.epsilons > 0) {
    const double epsilons = kernel_tests::epsilons_between(eager, kernel, largest);
    return epsilons <= bound.epsilons ? "" : fmt::format("{} epsilons", epsilons);
  }
  const double ulps = kernel_tests::ulps_between(eager, kernel);
  return ulps <= bound.ulps ? "" : fmt::format("{} ulps", ulps);
}

void collect(const c10::IValue& value, Tensors& out) {
  if (value.isTensor()) {
    out.push_back(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) out.push_back(tensor);
  }
}

// Copies of a sample's tensors, and the stack made from them.
struct Given {
  Tensors tensors;
  torch::jit::Stack stack;
};
Given given(const Samples& samples, size_t index) {
  Given out;
  Arguments arguments = samples.arguments(index, Contents::kCopied);
  for (const at::Tensor& tensor : arguments.tensors) out.tensors.push_back(tensor.detach());
  out.stack = *samples.stack(index, out.tensors);
  return out;
}

// Returns "" if both agree, "both refuse", "no kernel: ...", or the difference.
std::string judge(OperatorKernels& kernels, const Samples& samples, size_t index) {
  const at::NoGradGuard no_grad;
  const std::string name = samples.sample(index).op;
  const c10::OperatorHandle op = *Samples::find(name);
  Given own = given(samples, index);
  const auto outcome = kernels.call(op, own.stack);
  if (outcome != OperatorKernels::Outcome::kRan) {
    std::string reason;
    for (const auto& report : kernels.report()) {
      if (report.op == name) reason = report.reason;
    }
    return "no kernel: " + reason;
  }
  Given eager = given(samples, index);
  try {
    op.callBoxed(eager.stack);
  } catch (const std::exception& error) {
    return std::string("eager refuses: ") + error.what();
  }
  Tensors left;
  Tensors right;
  for (const c10::IValue& value : eager.stack) collect(value, left);
  for (const c10::IValue& value : own.stack) collect(value, right);
  left.insert(left.end(), eager.tensors.begin(), eager.tensors.end());
  right.insert(right.end(), own.tensors.begin(), own.tensors.end());
  if (left.size() != right.size()) return "another number of results";
  double largest = 0;
  for (const at::Tensor& tensor : given(samples, index).tensors) {
    if (!tensor.is_floating_point() || tensor.numel() == 0) continue;
    largest = std::max(largest, tensor.to(at::kDouble).abs().nan_to_num(0, 0, 0).max().item<double>());
  }
  for (size_t i = 0; i < left.size(); ++i) {
    const std::string text = difference(left[i], right[i], bound_of(name), largest);
    if (!text.empty()) return fmt::format("tensor {} of {}: {}", i, c10::str(left[i].sizes()), text);
  }
  return "";
}

int main_program(int argc, char** argv) {
  if (argc < 2) throw Error("usage: kernel_samples SAMPLES [EVERY]");
  const size_t every = argc > 2 ? std::stoul(argv[2]) : 1;
  torch::set_num_threads(1);
  const Samples samples(argv[1]);
  const std::vector<std::string> names = compilable_operators();
  const std::set<std::string> compilable(names.begin(), names.end());
  std::vector<size_t> indices;
  size_t met = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    const Sample sample = samples.sample(i);
    if (compilable.contains(sample.op) && Samples::find(sample.op) && met++ % every == 0) indices.push_back(i);
  }
  const TemporaryFolder folder;
  struct Counts {
    size_t agree = 0;
    size_t refused = 0;
    size_t differ = 0;
    std::string reason;  // of the first refused call
    std::string first;   // the first difference
  };
  std::map<std::string, Counts> counts;
  std::optional<OperatorKernels> kernels;  // of the child
  run_in_children(
      indices, 1, 120,
      [&](size_t index, const std::function<void(char)>&) {
        if (!kernels) kernels.emplace(folder.cache());
        return judge(*kernels, samples, index);
      },
      [&](size_t index, bool died, char, const std::string& text) {
        const Sample sample = samples.sample(index);
        Counts& own = counts[sample.op];
        if (!died && text.empty()) {
          ++own.agree;
        } else if (!died && text.starts_with("no kernel: ")) {
          if (own.refused++ == 0) own.reason = text.substr(11, 120);
        } else if (own.differ++ == 0) {
          own.first = fmt::format("#{} {}: {}", index, sample.dtype, died ? "crashes" : text.substr(0, 200));
        }
      });
  Counts total;
  size_t never = 0;
  for (const auto& [op, own] : counts) {
    total.agree += own.agree;
    total.refused += own.refused;
    total.differ += own.differ;
    if (own.differ > 0) fmt::print("{:5} x {} {}\n", own.differ, op, own.first);
    if (own.agree + own.differ == 0 && every == 1) {
      ++never;
      fmt::print("never: {} ({})\n", op, own.reason);
    }
  }
  fmt::print("{} operators, {} samples: {} agree, {} have no kernel, {} differ\n", counts.size(), indices.size(),
             total.agree, total.refused, total.differ);
  return total.differ + never > 0 ? 1 : 0;
}

}  // namespace
}  // namespace shadowgraph::conformance

int main(int argc, char** argv) {
  try {
    return shadowgraph::conformance::main_program(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "kernel_samples: " << error.what() << '\n';
    return 2;
  }
}
