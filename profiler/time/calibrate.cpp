#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/add.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/lstm.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <unistd.h>

#include "profiler/time/operator_tables.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/error.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/measure.h"
#include "support/stopwatch.h"

namespace shadowgraph {
namespace {

// One kernel at one size: its work, and the call.
struct Kernel {
  KernelClass kind;
  std::string name;
  double flops = 0, bytes = 0;
  std::function<void()> call;
  // Returns the same call in another dtype, for comparison; set for one kernel of each compute-bound class.
  std::function<std::function<void()>(c10::ScalarType)> in_dtype = {};
};

at::Tensor rand(std::vector<int64_t> sizes) { return at::rand(sizes); }
class Calibration {
 public:
  explicit Calibration(const CalibrateOptions& options) : options_(options) {}

  // Takes factories rather than kernels, so that operands of one size are freed before those of the next.
  void kernel(const std::function<Kernel()>& make) {
    if (start_.seconds() > options_.seconds) return;
    const Kernel kernel = make();
    if (options_.progress) options_.progress(kernel.name);
    kernel.call();
    std::vector<double> seconds;
    const Stopwatch begin;
    while (seconds.size() < 5 && (seconds.size() < 2 || begin.seconds() < 0.5)) {
      // Short calls are repeated to average out the clock's resolution.
      const Stopwatch once;
      kernel.call();
      double took = once.seconds();
      if (took < 2e-5) {
        constexpr int kTimes = 100;
        const Stopwatch many;
        for (int i = 0; i < kTimes; ++i) kernel.call();
        took = many.seconds() / kTimes;
      }
      seconds.push_back(took);
    }
    std::nth_element(seconds.begin(), seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2), seconds.end());
    measured_[kernel.kind].push_back({kernel.flops, kernel.bytes, seconds[seconds.size() / 2]});
    if (!kernel.in_dtype) return;
    for (const c10::ScalarType dtype : {c10::kDouble, c10::kBFloat16, c10::kHalf}) {
      if (start_.seconds() > options_.seconds) return;
      const auto call = kernel.in_dtype(dtype);
      try {
        call();
        const Stopwatch once;
        call();
        scale_[kernel.kind][dtype] = seconds[seconds.size() / 2] / once.seconds();
      } catch (const c10::Error&) {
        // A CPU without this kernel uses the peak of matrix products.
      }
    }
  }

  void finish(DeviceSpec& spec) {
    for (auto& [kind, all] : measured_) fit_rates(std::move(all), spec.classes[kind]);
    for (auto& [kind, scale] : scale_) spec.classes[kind].scale = std::move(scale);
  }

 private:
  const CalibrateOptions& options_;
  const Stopwatch start_;
  std::map<KernelClass, std::vector<TimedCall>> measured_;
  std::map<KernelClass, std::map<c10::ScalarType, double>> scale_;  // float32 time relative to the dtype's
};

void matmuls(Calibration& calibration) {
  for (const int64_t n : {16, 64, 128, 256, 512, 1024}) {
    calibration.kernel([n] {
      const at::Tensor a = rand({n, n});
      const at::Tensor b = rand({n, n});
      return Kernel{KernelClass::kMatmul, "mm", 2.0 * static_cast<double>(n * n * n), 0, [=] { at::mm(a, b); }};
    });
  }
}

struct ConvolutionShape {
  int64_t batch, channels, size;  // size: height and width
};

// Measures convolutions forward and backward, the last shape also in other dtypes. `per_group`: channels; 0: one group.
void convolutions(Calibration& calibration, KernelClass forward, KernelClass backward, int64_t kernel,
                  int64_t per_group, std::vector<ConvolutionShape> shapes) {
  for (size_t i = 0; i < shapes.size(); ++i) {
    const auto [batch, channels, size] = shapes[i];
    const int64_t groups = per_group == 0 ? 1 : channels / per_group;
    const int64_t padding = kernel / 2;
    const double flops =
        2.0 * static_cast<double>(batch * size * size * kernel * kernel * channels * channels / groups);
    const bool last = i + 1 == shapes.size();
    const auto run_forward = [=, shape = shapes[i]](c10::ScalarType dtype) -> std::function<void()> {
      const at::Tensor x = rand({shape.batch, shape.channels, shape.size, shape.size}).to(dtype);
      const at::Tensor weight = rand({shape.channels, shape.channels / groups, kernel, kernel}).to(dtype);
      return [=] { at::convolution(x, weight, {}, {1, 1}, {padding, padding}, {1, 1}, false, {0, 0}, groups); };
    };
    const auto run_backward = [=, shape = shapes[i]](c10::ScalarType dtype) -> std::function<void()> {
      const at::Tensor x = rand({shape.batch, shape.channels, shape.size, shape.size}).to(dtype);
      const at::Tensor weight = rand({shape.channels, shape.channels / groups, kernel, kernel}).to(dtype);
      const at::Tensor gradient = rand({shape.batch, shape.channels, shape.size, shape.size}).to(dtype);
      return [=] {
        at::convolution_backward(gradient, x, weight, std::nullopt, {1, 1}, {padding, padding}, {1, 1}, false, {0, 0},
                                 groups, {true, true, false});
      };
    };
    const auto measure = [&](KernelClass kind, const char* name, double work, const auto& run) {
      calibration.kernel([&] {
        Kernel one{kind, name, work, 0, run(c10::kFloat)};
        if (last) one.in_dtype = run;
        return one;
      });
    };
    measure(forward, "convolution", flops, run_forward);
    measure(backward, "convolution_backward", 2 * flops, run_backward);
  }
}

void attention(Calibration& calibration) {
  for (const int64_t length : {16, 128, 512}) {
    const double product = 2.0 * 4 * 8 * static_cast<double>(length * length) * 64;
    const auto make = [length] { return rand({4, 8, length, 64}); };
    calibration.kernel([=] {
      const at::Tensor q = make(), k = make(), v = make();
      return Kernel{KernelClass::kAttention, "attention", 2 * product, 0,
                    [=] { at::_scaled_dot_product_flash_attention_for_cpu(q, k, v); }};
    });
    calibration.kernel([=] {
      const at::Tensor q = make(), k = make(), v = make();
      const auto [out, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v);
      return Kernel{
          KernelClass::kAttentionBackward, "attention_backward", 5 * product, 0, [=, out = out, logsumexp = logsumexp] {
            at::_scaled_dot_product_flash_attention_for_cpu_backward(out, q, k, v, out, logsumexp, 0.0, false);
          }};
    });
  }
}

void recurrent(Calibration& calibration) {
  for (const int64_t length : {4, 64}) {
    calibration.kernel([length] {
      constexpr int64_t kHidden = 256, kBatch = 16;
      const at::Tensor x = rand({length, kBatch, kHidden});
      const std::vector<at::Tensor> state{rand({1, kBatch, kHidden}), rand({1, kBatch, kHidden})};
      const std::vector<at::Tensor> weights{rand({4 * kHidden, kHidden}), rand({4 * kHidden, kHidden}),
                                            rand({4 * kHidden}), rand({4 * kHidden})};
      const double flops = 2.0 * static_cast<double>(length * kBatch * 4 * kHidden * 2 * kHidden);
      return Kernel{KernelClass::kRecurrent, "lstm", flops, 0,
                    [=] { at::lstm(x, state, weights, true, 1, 0.0, false, false, false); }};
    });
  }
}

// Bytes that a call moves, and the call itself.
using Made = std::pair<double, std::function<void()>>;

// Measures memory-bound calls at several sizes.
void moved(Calibration& calibration, KernelClass kind, const std::string& name,
           const std::function<Made(int64_t)>& make,
           std::initializer_list<int64_t> sizes = {1 << 6, 1 << 14, 1 << 18, 1 << 21, 1 << 24}) {
  for (const int64_t n : sizes) {
    calibration.kernel([&] {
      auto [bytes, call] = make(n);
      return Kernel{kind, name, 0, bytes, std::move(call)};
    });
  }
}

at::Tensor rows_of(int64_t n) { return rand({std::max<int64_t>(1, n / 512), std::min<int64_t>(n, 512)}); }
at::Tensor image_of(int64_t n) { return rand({1, std::max<int64_t>(1, n / 1024), 32, 32}); }

void pointwise(Calibration& calibration) {
  moved(calibration, KernelClass::kPointwise, "add", [](int64_t n) -> Made {
    const at::Tensor a = rand({n}), b = rand({n});
    return {3.0 * static_cast<double>(a.nbytes()), [=] { at::add(a, b); }};
  });
  moved(calibration, KernelClass::kPointwiseInPlace, "add_", [](int64_t n) -> Made {
    const at::Tensor a = rand({n}), b = rand({n});
    return {3.0 * static_cast<double>(a.nbytes()), [=] { at::Tensor(a).add_(b); }};
  });
  moved(calibration, KernelClass::kTranscendental, "gelu", [](int64_t n) -> Made {
    const at::Tensor a = rand({n});
    return {2.0 * static_cast<double>(a.nbytes()), [=] { at::gelu(a); }};
  });
}

void reductions(Calibration& calibration) {
  moved(calibration, KernelClass::kNormalization, "native_layer_norm", [](int64_t n) -> Made {
    const at::Tensor a = rows_of(n);
    const at::Tensor weight = rand({a.size(1)}), bias = rand({a.size(1)});
    return {2.0 * static_cast<double>(a.nbytes()),
            [=] { at::native_layer_norm(a, {weight.numel()}, weight, bias, 1e-5); }};
  });
  moved(calibration, KernelClass::kSoftmax, "_softmax", [](int64_t n) -> Made {
    const at::Tensor a = rows_of(n);
    return {2.0 * static_cast<double>(a.nbytes()), [=] { at::_softmax(a, 1, false); }};
  });
  moved(calibration, KernelClass::kReduction, "sum", [](int64_t n) -> Made {
    const at::Tensor a = rows_of(n);
    return {static_cast<double>(a.nbytes()), [=] { at::sum(a, {0}); }};
  });
  moved(calibration, KernelClass::kPooling, "max_pool2d_with_indices",
        [](int64_t n) -> Made {
          const at::Tensor a = image_of(n);
          return {1.75 * static_cast<double>(a.nbytes()),  // indices are int64
                  [=] {
                    at::max_pool2d_with_indices(a, {2, 2}, {2, 2});
                  }};
        },
        {1 << 10, 1 << 16, 1 << 20, 1 << 23});
}

void draws_and_copies(Calibration& calibration) {
  moved(calibration, KernelClass::kRandom, "bernoulli_",
        [](int64_t n) -> Made {
          const at::Tensor a = at::empty({n});
          return {static_cast<double>(a.nbytes()), [=] { at::Tensor(a).bernoulli_(0.9); }};
        },
        {1 << 6, 1 << 14, 1 << 18, 1 << 22});
  moved(calibration, KernelClass::kGather, "embedding",
        [](int64_t n) -> Made {
          const at::Tensor table = rand({16384, 256});
          const at::Tensor rows = at::randint(16384, {n});
          return {2.0 * static_cast<double>(n) * 1024 + static_cast<double>(rows.nbytes()),
                  [=] { at::embedding(table, rows); }};
        },
        {1, 64, 4096, 32768});
  moved(calibration, KernelClass::kScatter, "embedding_dense_backward",
        [](int64_t n) -> Made {
          const at::Tensor gradient = rand({n, 256});
          const at::Tensor rows = at::randint(4 * n, {n});
          return {static_cast<double>(gradient.nbytes()) * 5 + static_cast<double>(rows.nbytes()),
                  [=] { at::embedding_dense_backward(gradient, rows, 4 * n, -1, false); }};
        },
        {1, 64, 4096});
  moved(calibration, KernelClass::kCopy, "clone", [](int64_t n) -> Made {
    const int64_t side = std::max<int64_t>(1, static_cast<int64_t>(std::sqrt(static_cast<double>(n))));
    const at::Tensor a = rand({side, side}).t();
    return {2.0 * static_cast<double>(a.nbytes()), [=] { a.contiguous(); }};
  });
  moved(calibration, KernelClass::kFill, "zeros", [](int64_t n) -> Made {
    return {4.0 * static_cast<double>(n), [=] { at::zeros({n}); }};
  });
  moved(calibration, KernelClass::kSort, "sort",
        [](int64_t n) -> Made {
          const at::Tensor a = rand({n});
          return {4.0 * static_cast<double>(a.nbytes()), [=] { at::sort(a); }};
        },
        {1 << 6, 1 << 14, 1 << 20});
  moved(calibration, KernelClass::kOptimizer, "_fused_adamw_",
        [](int64_t n) -> Made {
          const std::vector<at::Tensor> p{rand({n})}, g{rand({n})}, m{rand({n})}, v{rand({n})}, step{rand({1}).sum()};
          return {7.0 * static_cast<double>(p[0].nbytes()),
                  [=] { at::_fused_adamw_(p, g, m, v, {}, step, 1e-3, 0.9, 0.99, 0.0, 1e-8, false, false); }};
        },
        {1 << 6, 1 << 14, 1 << 18, 1 << 22});
  moved(calibration, KernelClass::kOther, "cumsum", [](int64_t n) -> Made {
    const at::Tensor a = rows_of(n);
    return {2.0 * static_cast<double>(a.nbytes()), [=] { at::cumsum(a, 1); }};
  });
}

double least_seconds(const auto& call) {
  double least = 1e9;
  for (int i = 0; i < 6; ++i) {
    const Stopwatch watch;
    call();
    least = std::min(least, watch.seconds());
  }
  return least;
}

double product_seconds(c10::ScalarType dtype) {
  const at::Tensor a = rand({512, 512}).to(dtype);
  return least_seconds([&] { at::mm(a, a); });
}

// Returns the bytes per second of a sum: the fallback if the time limit is reached before the class is measured.
double sum_rate() {
  const at::Tensor a = rand({1 << 20});
  return 3 * static_cast<double>(a.nbytes()) / least_seconds([&] { at::add(a, a); });
}

std::string processor() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) return line.substr(std::min(line.size(), line.find(':') + 2));
  }
  return "a CPU";
}

}  // namespace

DeviceSpec calibrate(const CalibrateOptions& options) {
  if (detect_fake_mode({}) != nullptr) {
    throw Error("calibrate runs operators on real tensors; call it outside of fake tensor modes and captures");
  }
  const c10::AutoGradMode no_history(false);
  Calibration calibration(options);
  matmuls(calibration);
  convolutions(calibration, KernelClass::kConvolution, KernelClass::kConvolutionBackward, 3, 0,
               {{1, 8, 8}, {2, 32, 28}, {2, 64, 56}, {4, 128, 28}});
  convolutions(calibration, KernelClass::kPointwiseConvolution, KernelClass::kPointwiseConvolutionBackward, 1, 0,
               {{1, 8, 8}, {2, 64, 28}, {4, 256, 28}});
  convolutions(calibration, KernelClass::kGroupedConvolution, KernelClass::kGroupedConvolutionBackward, 3, 16,
               {{1, 32, 8}, {2, 64, 28}, {4, 128, 28}});
  convolutions(calibration, KernelClass::kDepthwiseConvolution, KernelClass::kDepthwiseConvolutionBackward, 3, 1,
               {{1, 8, 8}, {2, 64, 28}, {4, 96, 56}});
  attention(calibration);
  recurrent(calibration);
  pointwise(calibration);
  reductions(calibration);
  draws_and_copies(calibration);

  DeviceSpec spec;
  spec.name = "cpu";
  spec.title = processor() + ", " + MeasuredCalls::this_machine();
  spec.device = c10::kCPU;
  calibration.finish(spec);
  const auto best = [&](KernelClass kind, auto member) {
    double rate = 0;
    for (const RatePoint& point : spec.classes[kind].*member) rate = std::max(rate, point.rate);
    return rate;
  };
  spec.matmul[c10::kFloat] = best(KernelClass::kMatmul, &ClassRates::compute);
  // Rates are those of float32; other dtypes scale by the ratio of their products.
  const double float32 = product_seconds(c10::kFloat);
  for (const c10::ScalarType dtype : {c10::kDouble, c10::kBFloat16, c10::kHalf}) {
    spec.matmul[dtype] = spec.matmul[c10::kFloat] * float32 / product_seconds(dtype);
  }
  spec.bandwidth = best(KernelClass::kPointwise, &ClassRates::memory);
  if (spec.bandwidth <= 0) spec.bandwidth = sum_rate();
  spec.memory = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  spec.sources["*"] = "measured by `shadowgraph calibrate`";
  return spec;
}

}  // namespace shadowgraph
