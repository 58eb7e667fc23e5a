// Compares compiled kernels with eager operators on one thread. Prints the best of alternating calls and the ratio (the
// kernel is faster if above 1). "used" is the ratio when the faster implementation is chosen by measurement. Then runs
// an AdamW step on the parameters of GPT-2 in four ways.
//
//     kernel_operators [FILTER]      operators whose line contains FILTER; "adamw" for the step only
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <unistd.h>

#include "bench/measure.h"
#include "shadowgraph/kernels/kernel.h"

namespace sg = shadowgraph;

namespace {

using c10::IValue;
using sg::bench::microseconds;
using Tensors = std::vector<at::Tensor>;

c10::OperatorHandle operator_named(const std::string& name) {
  const size_t dot = name.find('.');
  return c10::Dispatcher::singleton().findSchemaOrThrow(("aten::" + name.substr(0, dot)).c_str(),
                                                        dot == std::string::npos ? "" : name.substr(dot + 1).c_str());
}

struct Bench {
  sg::OperatorKernels& kernels;
  std::string filter;
  double worst = std::numeric_limits<double>::infinity();

  // Calls both implementations boxed, with the same arguments.
  void run(const std::string& name, const std::string& label, std::vector<IValue> given) {
    if (fmt::format("{} {}", name, label).find(filter) == std::string::npos) return;
    const auto op = operator_named(name);
    const auto& formals = op.schema().arguments();
    for (size_t i = given.size(); i < formals.size(); ++i) {
      given.push_back(formals[i].default_value() ? *formals[i].default_value() : IValue());
    }
    bool ran = true;
    const auto kernel = [&] {
      torch::jit::Stack stack(given.begin(), given.end());
      ran = kernels.call(op, stack) == sg::OperatorKernels::Outcome::kRan && ran;
    };
    const auto eager = [&] {
      torch::jit::Stack stack(given.begin(), given.end());
      op.callBoxed(stack);
    };
    const auto used = [&] {
      torch::jit::Stack stack(given.begin(), given.end());
      sg::OperatorKernels::OriginalCall original;
      if (kernels.call(op, stack, &original) == sg::OperatorKernels::Outcome::kRan) return;
      op.callBoxed(stack);
      original.ended();
    };
    kernel();
    eager();
    for (int i = 0; i < 10; ++i) used();  // decides
    constexpr double kNever = std::numeric_limits<double>::infinity();
    double eager_us = kNever, kernel_us = kNever, used_us = kNever;
    for (int i = 0; i < 60; ++i) {
      eager_us = std::min(eager_us, microseconds(eager));
      kernel_us = std::min(kernel_us, microseconds(kernel));
      used_us = std::min(used_us, microseconds(used));
    }
    if (!ran) {
      fmt::print("{:28} {:12} no kernel\n", name, label);
      return;
    }
    worst = std::min(worst, eager_us / used_us);
    fmt::print("{:28} {:12} {:9.1f} {:9.1f} us  {:5.2f} x   used {:5.2f} x\n", name, label, eager_us, kernel_us,
               eager_us / kernel_us, eager_us / used_us);
  }
};

void operators(Bench& bench) {
  torch::manual_seed(1);
  const std::vector<int64_t> last = {1}, first = {0};
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const std::string type = c10::toString(dtype);
    const at::Tensor x = at::randn({2048, 256}).to(dtype), y = (at::rand({2048, 256}) + 0.5).to(dtype);
    const at::Tensor z = at::rand({2048, 256}).to(dtype), weight = at::randn({256}).to(dtype);
    const auto number = static_cast<int64_t>(dtype);
    for (const char* name :
         {"exp", "expm1", "log", "tanh", "erf", "sigmoid", "silu", "gelu", "relu", "sqrt", "rsqrt", "neg"}) {
      bench.run(name, type, {y});
    }
    bench.run("gelu", type + " tanh", {x, "tanh"});
    bench.run("gelu_backward", type, {x, y});
    bench.run("gelu_backward", type + " tanh", {x, y, "tanh"});
    for (const char* name : {"add.Tensor", "mul.Tensor", "div.Tensor", "sub.Tensor", "maximum", "lt.Tensor",
                             "mul_.Tensor", "silu_backward", "tanh_backward", "sigmoid_backward"}) {
      bench.run(name, type, {x, y});
    }
    bench.run("threshold_backward", type, {x, y, 0});
    bench.run("add.Tensor", type + " row", {x, weight});
    bench.run("where.self", type, {x > 0, x, y});
    bench.run("addcmul", type, {x, y, z, 0.1});
    bench.run("addcdiv", type, {x, y, z, 0.1});
    bench.run("lerp.Scalar", type, {x, y, 0.1});
    bench.run("_softmax", type, {x, 1, false});
    bench.run("_log_softmax", type, {x, 1, false});
    bench.run("_softmax_backward_data", type, {x, x.softmax(1), 1, number});
    bench.run("_log_softmax_backward_data", type, {x, x.log_softmax(1), 1, number});
    const auto [normal, mean, inverse] = at::native_layer_norm(x, 256, weight, weight, 1e-5);
    const std::vector<int64_t> shape = {256};
    bench.run("native_layer_norm", type, {x, shape, weight, weight, 1e-5});
    bench.run("native_layer_norm_backward", type,
              {y, x, shape, mean, inverse, weight, weight, c10::List<bool>({true, true, true})});
    bench.run("_fused_rms_norm", type, {x, shape, weight, 1e-5});
    for (const auto& [dims, along] : {std::pair(last, " rows"), std::pair(first, " columns")}) {
      bench.run("sum.dim_IntList", type + along, {x, dims});
      bench.run("mean.dim", type + along, {x, dims});
      bench.run("amax", type + along, {x, dims});
      bench.run("var.correction", type + along, {x, dims});
      bench.run("var_mean.correction", type + along, {x, dims});
    }
    bench.run("sum", type, {x});
    const at::Tensor images = at::randn({16, 64, 16, 32}).to(dtype);
    bench.run("sum.dim_IntList", type + " 0,2,3", {images, std::vector<int64_t>{0, 2, 3}});
    bench.run("var_mean.correction", type + " 0,2,3", {images, std::vector<int64_t>{0, 2, 3}});
  }
}

// The calls of torch.optim.AdamW with foreach=True.
struct AdamW {
  Tensors parameters, gradients, averages, squares, steps;

  void foreach_step() {
    constexpr double kRate = 1e-3;
    constexpr double kBeta1 = 0.9;
    constexpr double kBeta2 = 0.999;
    at::_foreach_add_(steps, 1);
    at::_foreach_mul_(parameters, 1 - kRate * 0.01);
    at::_foreach_lerp_(averages, gradients, 1 - kBeta1);
    at::_foreach_mul_(squares, kBeta2);
    at::_foreach_addcmul_(squares, gradients, gradients, 1 - kBeta2);
    std::vector<at::Scalar> sizes, roots;
    for (const at::Tensor& step : steps) {
      const double count = step.item<double>();
      sizes.emplace_back(-kRate / (1 - std::pow(kBeta1, count)));
      roots.emplace_back(std::sqrt(1 - std::pow(kBeta2, count)));
    }
    Tensors denominators = at::_foreach_sqrt(squares);
    at::_foreach_div_(denominators, roots);
    at::_foreach_add_(denominators, 1e-8);
    at::_foreach_addcdiv_(parameters, averages, denominators, sizes);
  }

  void fused_step() {
    at::_foreach_add_(steps, 1);
    at::_fused_adamw_(parameters, gradients, averages, squares, {}, steps, 1e-3, 0.9, 0.999, 0.01, 1e-8, false, false);
  }
};

void adamw(const std::shared_ptr<sg::KernelCache>& cache, bool tiny) {
  const at::NoGradGuard no_grad;
  AdamW step;
  int64_t elements = 0;
  for (const at::Tensor& parameter : sg::models::build("gpt2", {.tiny = tiny}).module->parameters()) {
    elements += parameter.numel();
    step.parameters.push_back(parameter.detach());
    step.gradients.push_back(at::randn_like(parameter));
    step.averages.push_back(at::zeros_like(parameter));
    step.squares.push_back(at::zeros_like(parameter));
    step.steps.push_back(at::zeros({}));
  }
  std::vector<std::string> names;
  for (const std::string& name : sg::compilable_operators()) {
    if (name.starts_with("aten::_foreach_") || name.starts_with("aten::_fused_")) names.push_back(name);
  }
  const auto compiled = [&](const std::function<void()>& body, int calls) {
    const auto operators = sg::compile_operators(names, c10::DispatchKey::CPU, {.cache = cache});
    for (int i = 0; i < calls; ++i) body();  // warm up
    return microseconds(body);
  };
  double best[4];
  std::ranges::fill(best, std::numeric_limits<double>::infinity());
  const auto foreach_step = [&] { step.foreach_step(); };
  const auto fused_step = [&] { step.fused_step(); };
  compiled(foreach_step, 12);  // decides; the result is kept in the cache
  compiled(fused_step, 12);
  for (int i = 0; i < (tiny ? 20 : 4); ++i) {
    best[0] = std::min(best[0], microseconds(foreach_step));
    best[1] = std::min(best[1], compiled(foreach_step, 1));
    best[2] = std::min(best[2], microseconds(fused_step));
    best[3] = std::min(best[3], compiled(fused_step, 1));
  }
  const char* const ways[] = {"foreach", "foreach, kernels", "fused", "fused, kernels"};
  fmt::print("AdamW, {} parameters of GPT-2{} in {} tensors\n", elements, tiny ? " (tiny)" : "",
             step.parameters.size());
  for (size_t i = 0; i < 4; ++i) {
    fmt::print("  {:18} {:10.0f} us  {:5.2f} x foreach\n", ways[i], best[i], best[0] / best[i]);
  }
}

}  // namespace

int main(int argc, char** argv) {
  torch::set_num_threads(1);
  const std::string filter = argc > 1 ? argv[1] : "";
  const std::string folder = (std::filesystem::temp_directory_path() / fmt::format("kernels.{}", ::getpid())).string();
  auto cache = std::make_shared<sg::KernelCache>(sg::KernelCacheOptions{.directory = folder, .background = false});
  if (filter != "adamw") {
    sg::OperatorKernels kernels(cache);
    Bench bench{kernels, filter};
    fmt::print("{:28} {:12} {:>9} {:>9}\n", "512K elements", "", "eager", "kernel");
    operators(bench);
    fmt::print("worst ratio, as used: {:.2f} x\n", bench.worst);
  }
  if (filter.empty() || filter == "adamw") {
    adamw(cache, true);
    adamw(cache, false);
  }
  std::filesystem::remove_all(folder);
  return 0;
}
