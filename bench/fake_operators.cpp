// Measures operator calls on fake tensors, in captures, on meta tensors (the lower bound) and on the real CPU.
//
// Prints the rows of Google Benchmark, then ratios against the aims: fake at most 2.0 x meta (geometric mean), captures
// 1.0 us above fake, 600 bytes per node. One thread, no autograd, 64 x 32 tensors. Then one or two rows for each family
// of shape rules, without aims. Reports the fastest of many batches of 40 calls, which is robust on a busy machine.
// (Google Benchmark prints the time of a batch.)
#include <benchmark/benchmark.h>
#include <torch/torch.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>

#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/fake.h"

namespace {

using Call = std::function<at::Tensor()>;

struct Operator {
  std::string name;
  std::function<Call(at::TensorOptions)> make;
  bool on_meta = true;  // has a C++ Meta kernel to compare with
};

std::vector<Operator> operators() {
  const auto pair = [](auto f) {
    return [f](at::TensorOptions o) -> Call {
      return [f, a = at::rand({64, 32}, o), b = at::rand({64, 32}, o)] { return f(a, b); };
    };
  };
  return {
      {"add", pair([](const auto& a, const auto& b) { return a + b; })},
      {"mm",
       [](at::TensorOptions o) -> Call {
         return [a = at::rand({64, 32}, o), b = at::rand({32, 64}, o)] { return a.mm(b); };
       }},
      {"view", pair([](const auto& a, const auto&) {
         return a.view({32, 64});
       })},
      {"empty", [](at::TensorOptions o) -> Call { return [o] {
                                                    return at::empty({64, 32}, o);
                                                  }; }},
      {"gelu", pair([](const auto& a, const auto&) { return at::gelu(a); })},
      {"t", pair([](const auto& a, const auto&) { return a.t(); })},
      {"cat", pair([](const auto& a, const auto& b) {
         return at::cat({a, b});
       })},
      {"softmax", pair([](const auto& a, const auto&) { return at::softmax(a, -1); })},
      {"sum", pair([](const auto& a, const auto&) { return a.sum(); })},
      {"max_pool2d",
       [](at::TensorOptions o) -> Call {
         return [a = at::rand({2, 4, 16, 16}, o)] { return std::get<0>(at::max_pool2d_with_indices(a, {2, 2})); };
       }},
      {"index",
       [](at::TensorOptions o) -> Call {
         return [a = at::rand({64, 32}, o), i = at::zeros({16}, o.dtype(at::kLong))] { return at::index(a, {i}); };
       }},
      {"mul", pair([](const auto& a, const auto& b) { return a * b; })},
      {"conv2d",
       [](at::TensorOptions o) -> Call {
         return [a = at::rand({2, 4, 16, 16}, o), w = at::rand({8, 4, 3, 3}, o)] { return at::conv2d(a, w); };
       },
       false},
      {"layer_norm",
       [](at::TensorOptions o) -> Call {
         return [a = at::rand({64, 32}, o), w = at::rand({32}, o)] { return at::layer_norm(a, {32}, w, w); };
       },
       false},
      {"embedding",
       [](at::TensorOptions o) -> Call {
         return [w = at::rand({64, 32}, o), i = at::zeros({16}, o.dtype(at::kLong))] { return at::embedding(w, i); };
       },
       false},
      {"sdpa",
       [](at::TensorOptions o) -> Call {
         return [q = at::rand({2, 4, 16, 8}, o)] { return at::scaled_dot_product_attention(q, q, q); };
       },
       false},
  };
}

// One or two operators per family. Composite operators include their parts.
std::vector<Operator> families() {
  const auto on = [](at::IntArrayRef sizes, auto f) {
    return
        [f, sizes = sizes.vec()](at::TensorOptions o) -> Call { return [f, x = at::rand(sizes, o)] { return f(x); }; };
  };
  // Lists of ten tensors.
  const auto on_list = [](auto f) {
    return [f](at::TensorOptions o) -> Call {
      return [f, list = at::rand({10, 8, 8}, o).unbind()] { return f(list); };
    };
  };
  using Tensor = at::Tensor;
  return {
      {"linalg: solve_triangular",
       on({32, 32}, [](const Tensor& x) { return at::linalg_solve_triangular(x, x, true); })},
      {"linalg: qr", on({32, 32}, [](const Tensor& x) { return std::get<0>(at::linalg_qr(x)); })},
      {"fft: fft2", on({8, 16, 16}, [](const Tensor& x) { return at::fft_fft2(x); })},
      {"foreach: add, 10 tensors", on_list([](const auto& list) { return at::_foreach_add(list, list)[0]; })},
      {"fused optimizer: adam, 10 tensors",
       [](at::TensorOptions o) -> Call {
         return [list = at::rand({10, 8, 8}, o).unbind(), steps = at::rand({10}, o).unbind()] {
           at::_fused_adam_(list, list, list, list, {}, steps, 0.1, 0.9, 0.99, 0, 1e-8, false, false);
           return list[0];
         };
       }},
      {"grid sampling: grid_sampler",
       [](at::TensorOptions o) -> Call {
         return [x = at::rand({2, 3, 8, 8}, o), grid = at::zeros({2, 4, 4, 2}, o)] {
           return at::grid_sampler(x, grid, 0, 0, false);
         };
       }},
      {"upsampling: bilinear", on({2, 3, 8, 8},
                                  [](const Tensor& x) {
                                    return at::upsample_bilinear2d(x, {16, 16}, false);
                                  })},
      {"losses: cross_entropy",
       [](at::TensorOptions o) -> Call {
         return [x = at::rand({16, 10}, o), y = at::zeros({16}, o.dtype(at::kLong))] {
           return at::cross_entropy_loss(x, y);
         };
       }},
      {"losses: multi_margin_loss",
       [](at::TensorOptions o) -> Call {
         return [x = at::rand({16, 10}, o), y = at::zeros({16}, o.dtype(at::kLong))] {
           return at::multi_margin_loss(x, y);
         };
       }},
      {"rnn cell: lstm_cell",
       [](at::TensorOptions o) -> Call {
         return [x = at::rand({4, 16}, o), w = at::rand({64, 16}, o), b = at::rand({64}, o)] {
           return std::get<0>(at::lstm_cell(x, {x, x}, w, w, b, b));
         };
       }},
      {"random: dropout", on({64, 32}, [](const Tensor& x) { return at::dropout(x, 0.5, true); })},
      {"random: bernoulli", on({64, 32}, [](const Tensor& x) { return at::bernoulli(x); })},
      {"normalization: batch_norm backward",
       [](at::TensorOptions o) -> Call {
         return [x = at::rand({4, 8, 8, 8}, o), c = at::rand({8}, o)] {
           return std::get<0>(at::native_batch_norm_backward(x, x, c, c, c, c, c, true, 1e-5, {true, true, true}));
         };
       }},
      {"normalization: layer_norm backward",
       [](at::TensorOptions o) -> Call {
         return [x = at::rand({64, 32}, o), row = at::rand({64, 1}, o), w = at::rand({32}, o)] {
           return std::get<0>(at::native_layer_norm_backward(x, x, {32}, row, row, w, w, {true, true, true}));
         };
       }},
      {"grouping: histc", on({64}, [](const Tensor& x) { return at::histc(x, 10, 0, 2); })},
      {"convolution: backward",
       [](at::TensorOptions o) -> Call {
         return [x = at::rand({2, 4, 16, 16}, o), w = at::rand({8, 4, 3, 3}, o), g = at::rand({2, 8, 14, 14}, o)] {
           return std::get<0>(at::convolution_backward(g, x, w, at::IntArrayRef{8}, {1, 1}, {0, 0}, {1, 1}, false,
                                                       {0, 0}, 1, {true, true, true}));
         };
       }},
      {"indexing: index_put_",
       [](at::TensorOptions o) -> Call {
         return [x = at::rand({64, 32}, o), i = at::zeros({16}, o.dtype(at::kLong)), v = at::rand({16, 32}, o)] {
           return at::index_put_(const_cast<Tensor&>(x), {i}, v);
         };
       }},
      {"reduction: var", on({64, 32}, [](const Tensor& x) { return at::var(x, {1}, true); })},
      {"reduction: median", on({64, 32}, [](const Tensor& x) { return at::median(x); })},
      {"scan: cumsum", on({64, 32}, [](const Tensor& x) { return at::cumsum(x, 1); })},
      {"pooling: adaptive_avg_pool2d", on({2, 4, 8, 8},
                                          [](const Tensor& x) {
                                            return at::adaptive_avg_pool2d(x, {2, 2});
                                          })},
      {"shape: roll", on({64, 32}, [](const Tensor& x) { return at::roll(x, 1, 0); })},
      {"shape: reflection_pad2d", on({2, 3, 8, 8},
                                     [](const Tensor& x) {
                                       return at::reflection_pad2d(x, {1, 1, 1, 1});
                                     })},
      {"distances: cdist", on({32, 8}, [](const Tensor& x) { return at::cdist(x, x); })},
      {"factories: tril_indices",
       [](at::TensorOptions o) -> Call { return [o] { return at::tril_indices(8, 8, 0, o.dtype(at::kLong)); }; }},
      {"quantization: fake_quantize",
       on({64, 32}, [](const Tensor& x) { return at::fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127); })},
      {"views: select", on({64, 32}, [](const Tensor& x) { return x.select(0, 3); })},
  };
}

constexpr int kBatch = 40;

void run(benchmark::State& state, const Call& call) {
  using Clock = std::chrono::steady_clock;
  const at::NoGradGuard no_grad;
  auto best = Clock::duration::max();
  for (auto _ : state) {
    const auto start = Clock::now();
    for (int i = 0; i < kBatch; ++i) benchmark::DoNotOptimize(call());
    best = std::min(best, Clock::now() - start);
  }
  state.counters["best_ns"] = std::chrono::duration<double, std::nano>(best).count() / kBatch;
}

// Collects the time of each row.
class Collector : public benchmark::ConsoleReporter {
 public:
  std::map<std::string, double> nanoseconds;
  void ReportRuns(const std::vector<Run>& runs) override {
    ConsoleReporter::ReportRuns(runs);
    for (const Run& run : runs) {
      if (run.run_type != Run::RT_Iteration) continue;
      const std::string name = run.run_name.function_name;
      const auto best = run.counters.find("best_ns");
      if (best == run.counters.end()) continue;
      const auto [entry, added] = nanoseconds.try_emplace(name, best->second.value);
      if (!added) entry->second = std::min(entry->second, best->second.value);
    }
  }
};

double bytes_per_node = 0;

constexpr int kRepetitions = 3;
void often(benchmark::internal::Benchmark* benchmark) { benchmark->Iterations(1000)->Repetitions(kRepetitions); }
void seldom(benchmark::internal::Benchmark* benchmark) { benchmark->Iterations(50)->Repetitions(kRepetitions); }

}  // namespace

int main(int argc, char** argv) {
  using shadowgraph::Capture;
  using shadowgraph::FakeTensorMode;
  at::set_num_threads(1);
  const auto add = [](const std::string& name, auto how, const auto& body) {
    benchmark::RegisterBenchmark(name.c_str(), body)->Apply(how);
  };
  const auto add_all = [&](const Operator& op, auto how, bool counts_bytes) {
    add("fake/" + op.name, how, [op](benchmark::State& state) {
      const FakeTensorMode mode({.device = at::kCUDA});
      run(state, op.make(at::TensorOptions()));
    });
    add("recorded/" + op.name, how, [op, counts_bytes](benchmark::State& state) {
      Capture session({.mode = {.device = at::kCUDA}});
      run(state, op.make(at::TensorOptions()));
      const auto graph = session.finish({});
      if (!counts_bytes) return;
      bytes_per_node = std::max(bytes_per_node, static_cast<double>(graph.allocated_bytes()) / graph.node_count());
    });
    add("cpu/" + op.name, how, [op](benchmark::State& state) { run(state, op.make(at::device(at::kCPU))); });
  };
  for (const Operator& op : operators()) {
    if (op.on_meta) {
      add("meta/" + op.name, often, [op](benchmark::State& state) { run(state, op.make(at::device(at::kMeta))); });
    }
    add_all(op, often, true);
  }
  for (const Operator& op : families()) add_all(op, seldom, false);
  benchmark::Initialize(&argc, argv);
  Collector collector;
  benchmark::RunSpecifiedBenchmarks(&collector);

  const auto time = [&](const std::string& name) {
    const auto entry = collector.nanoseconds.find(name);
    return entry == collector.nanoseconds.end() ? std::nan("") : entry->second;
  };
  std::printf("\n| operator | meta us | fake us | fake / meta | recorded us | recording us | real CPU us |\n");
  std::printf("|---|---|---|---|---|---|---|\n");
  double log_sum = 0;
  int count = 0;
  for (const Operator& op : operators()) {
    const double meta = time("meta/" + op.name);
    const double fake = time("fake/" + op.name);
    const double recorded = time("recorded/" + op.name);
    if (op.on_meta && fake > 0 && meta > 0) {
      log_sum += std::log(fake / meta);
      ++count;
    }
    std::printf("| %s | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f |\n", op.name.c_str(), meta / 1e3, fake / 1e3,
                fake / meta, recorded / 1e3, (recorded - fake) / 1e3, time("cpu/" + op.name) / 1e3);
  }
  if (count != 0)
    std::printf("\nfake / meta, geometric mean of %d: %.2f (aim 2.0)\n", count, std::exp(log_sum / count));
  std::printf("\n| family | fake us | recorded us | real CPU us |\n|---|---|---|---|\n");
  for (const Operator& op : families()) {
    std::printf("| %s | %.2f | %.2f | %.2f |\n", op.name.c_str(), time("fake/" + op.name) / 1e3,
                time("recorded/" + op.name) / 1e3, time("cpu/" + op.name) / 1e3);
  }
  std::printf("\nlargest graph bytes per node: %.0f (aim 600)\n", bytes_per_node);
  return 0;
}
