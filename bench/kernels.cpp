// Measures compiled kernels on one thread, and prints ratios against the aims in docs/figures.md.
//
//     build/bench/kernels                  all
//     build/bench/kernels step bert_base   one of step, chains, hit, compile
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <sys/wait.h>
#include <torch/optim.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <unistd.h>

#include "bench/measure.h"
#include "models/language_models.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/kernels/kernel.h"

namespace {

using namespace shadowgraph;
using bench::microseconds;
using Clock = std::chrono::steady_clock;

// Returns the best time of each variant over many rounds. They run alternately, so that load affects all equally.
std::vector<double> best_of(const std::vector<std::function<void()>>& ways, double seconds, int least = 5) {
  std::vector<double> best(ways.size(), 1e30);
  const auto begin = Clock::now();
  for (int turn = 0; turn < least || std::chrono::duration<double>(Clock::now() - begin).count() < seconds; ++turn) {
    for (size_t i = 0; i < ways.size(); ++i) best[i] = std::min(best[i], microseconds(ways[i]));
  }
  return best;
}

std::string temporary_folder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "kernels_bench_XXXXXX").string();
  return ::mkdtemp(pattern.data());
}

models::BuiltModel build_small(const std::string& name, bool tiny) {
  if (tiny) return models::build(name, {.tiny = true});
  const models::ModelOptions options{.batch = 4, .seq = 64, .training = true};
  if (name == "gpt2") {
    return models::build_gpt2({.layers = 4, .heads = 4, .hidden = 256, .vocab = 2000, .max_positions = 64}, options);
  }
  return models::build_bert(
      {.layers = 4, .heads = 4, .hidden = 256, .intermediate = 1024, .vocab = 2000, .max_positions = 64}, options);
}

Bindings bind_step(const Graph& graph, const models::BuiltModel& model) {
  const auto parameters = model.module->named_parameters();
  const auto buffers = model.module->named_buffers();
  std::vector<at::Tensor> bound;
  for (const NodeId node : graph.nodes()) {
    const TargetId target = graph.node(node).target;
    if (target.index > target_of(Builtin::kInput).index) continue;
    const std::string& name = graph.text(graph.arguments(node)[0].string);
    const auto input = std::ranges::find(model.input_names, name);
    const ValueId value = graph.results(node)[0].ref.value;
    if (target == target_of(Builtin::kParameter)) {
      bound.push_back(parameters[name].detach().clone());
    } else if (target == target_of(Builtin::kBuffer)) {
      bound.push_back(buffers[name].clone());
    } else if (input != model.input_names.end()) {
      bound.push_back(model.inputs[static_cast<size_t>(input - model.input_names.begin())]);
    } else {  // optimizer state
      const auto sizes = graph.sizes(value);
      bound.push_back(at::zeros({sizes.data(), sizes.size()}, graph.value(value).dtype));
    }
  }
  return Bindings().in_order(std::move(bound));
}

void step(const std::string& name, bool tiny) {
  Graph graph;
  const double captured = microseconds([&] {
    const FakeTensorMode mode;
    const auto model = build_small(name, tiny);
    torch::optim::AdamW optimizer(model.module->parameters(), torch::optim::AdamWOptions(1e-3));
    ProgramToCapture program = models::program_of(model, &optimizer);
    program.warmup_steps = 1;
    graph = capture_training_step(program).graph;
  });
  const auto model = build_small(name, tiny);
  torch::optim::AdamW optimizer(model.module->parameters(), torch::optim::AdamWOptions(1e-3));
  const Bindings bindings = bind_step(graph, model);
  const std::string folder = temporary_folder();
  const auto cache = std::make_shared<KernelCache>(KernelCacheOptions{.directory = folder});
  std::shared_ptr<KernelGroups> groups;
  std::unique_ptr<Interpreter> grouped;
  Interpreter plain(graph);
  const double grouping = microseconds([&] { groups = group_kernels(graph, cache); });
  const double first = microseconds([&] {
    grouped = std::make_unique<Interpreter>(graph, InterpreterOptions{.groups = groups});
    grouped->run(bindings);
  });
  const double compiling = microseconds([&] { groups->wait(); });
  for (int i = 0; i < 12; ++i) grouped->run(bindings);  // measures both implementations
  const auto best = best_of({[&] {
                               optimizer.zero_grad();
                               model.loss(model.forward(model.inputs), model.inputs).backward();
                               optimizer.step();
                             },
                             [&] { plain.run(bindings); }, [&] { grouped->run(bindings); }},
                            tiny ? 2 : 12);
  std::printf(
      "step %s%s, AdamW, %u nodes: eager %.0f us, replay %.0f us, with kernels %.0f us: %.2f x replay (aim 1.3), "
      "%.2f x eager\n",
      name.c_str(), tiny ? " (tiny)" : "", graph.node_count(), best[0], best[1], best[2], best[1] / best[2],
      best[0] / best[2]);
  std::printf(
      "  first result: capture %.0f ms, grouping %.1f ms, first run %.1f ms; kernels after %.1f s more: %lld "
      "compiled in %.2f s\n",
      captured / 1e3, grouping / 1e3, first / 1e3, compiling / 1e6, static_cast<long long>(cache->stats().compiled),
      cache->stats().compile_seconds);
  std::printf("%s", groups->summary().c_str());
  double kernels = 0, nodes = 0;
  for (const auto& report : groups->report()) {
    kernels += static_cast<double>(std::min(report.kernel_ns, report.nodes_ns)) / 1e3;
    nodes += static_cast<double>(report.nodes_ns) / 1e3;
  }
  std::printf("  grouped nodes: %.0f us without kernels, %.0f us with kernels\n", nodes, kernels);
  std::filesystem::remove_all(folder);
}

using Chain = std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>;

void chain(const char* name, int operators, const Chain& function, int64_t bytes) {
  const at::Tensor x = at::rand({bytes / 4}) + 0.5, y = at::rand({bytes / 4}) + 0.5;
  Graph graph;
  {
    const c10::NoGradGuard no_grad;
    Capture session({.guards = false});
    session.name_input(x, "x");
    session.name_input(y, "y");
    graph = session.finish({function(session.mode().from_real(x), session.mode().from_real(y))});
  }
  const std::string folder = temporary_folder();
  const auto cache = std::make_shared<KernelCache>(KernelCacheOptions{.directory = folder, .background = false});
  Interpreter plain(graph);
  Interpreter grouped(graph, {.groups = group_kernels(graph, cache)});
  const Bindings bindings = Bindings().in_order({x, y});
  const c10::NoGradGuard no_grad;
  for (int i = 0; i < 12; ++i) grouped.run(bindings);
  const auto best = best_of({[&] { function(x, y); }, [&] { plain.run(bindings); }, [&] { grouped.run(bindings); }}, 1);
  std::printf(
      "chain %-22s %d operators, %4.1f MB: eager %7.1f us, replay %7.1f us, kernel %7.1f us: %.2f x eager (aim 2)\n",
      name, operators, static_cast<double>(bytes) / 1e6, best[0], best[1], best[2], best[0] / best[2]);
  std::filesystem::remove_all(folder);
}

void chains() {
  for (const int64_t bytes : {int64_t{1} << 20, int64_t{4} << 20, int64_t{32} << 20}) {
    chain(
        "mul add relu mul", 4,
        [](const auto& x, const auto& y) { return at::mul(at::relu(at::add(at::mul(x, y), x)), y); }, bytes);
    chain(
        "mul add gt where sub", 5,
        [](const auto& x, const auto& y) {
          const at::Tensor a = at::add(at::mul(x, y), x);
          return at::sub(at::where(at::gt(a, y), a, y), x);
        },
        bytes);
    chain(
        "8 of mul and add", 8,
        [](at::Tensor x, const at::Tensor& y) {
          for (int i = 0; i < 4; ++i) x = at::add(at::mul(x, y), 0.5);
          return x;
        },
        bytes);
    chain(
        "mul exp add div", 4,
        [](const auto& x, const auto& y) { return at::div(x, at::add(at::exp(at::mul(x, -1)), y)); }, bytes);
  }
}

void hit() {
  const std::string folder = temporary_folder();
  OperatorKernels kernels(std::make_shared<KernelCache>(KernelCacheOptions{.directory = folder, .background = false}));
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::mul_", "Tensor");
  const at::Tensor x = at::ones({8});
  constexpr int kCalls = 1000;
  torch::jit::Stack stack;
  const auto often = [&](auto call) {
    return [&, call] {
      for (int i = 0; i < kCalls; ++i) {
        stack.clear();
        stack.emplace_back(x);
        stack.emplace_back(x);
        call();
      }
    };
  };
  const auto best = best_of({often([&] { kernels.call(op, stack); }), often([&] { op.callBoxed(stack); })}, 1);
  std::printf("hit, guards and the call itself, mul_ of 8 elements: %.3f us (aim 0.3); boxed eager %.3f us\n",
              best[0] / kCalls, best[1] / kCalls);
  std::filesystem::remove_all(folder);
}

void compile_and_load() {
  const std::string folder = temporary_folder();
  const std::vector<std::string> names = {"add", "sub", "mul", "div", "maximum", "minimum", "eq", "lt", "logical_and"};
  const at::Tensor x = at::rand({100});
  const auto call_all = [&](const std::shared_ptr<KernelCache>& cache) {
    OperatorKernels kernels(cache);
    for (const std::string& name : names) {
      const bool plain = name == "maximum" || name == "minimum" || name == "logical_and";
      const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(("aten::" + name).c_str(), plain ? "" : "Tensor");
      torch::jit::Stack stack = {x, x};
      if (name == "add" || name == "sub") stack.emplace_back(1);
      kernels.call(op, stack);
    }
  };
  const KernelCacheOptions options{.directory = folder, .background = false};
  const auto cache = std::make_shared<KernelCache>(options);
  call_all(cache);
  std::printf("compile: %lld kernels, %.3f s each (aim 0.3)\n", static_cast<long long>(cache->stats().compiled),
              cache->stats().compile_seconds / static_cast<double>(cache->stats().compiled));
  std::fflush(stdout);
  const pid_t child = ::fork();
  if (child == 0) {  // a process that has not loaded any of the kernels
    const std::string copy = folder + "_copy";
    std::filesystem::copy(folder, copy, std::filesystem::copy_options::recursive);
    const auto second = std::make_shared<KernelCache>(KernelCacheOptions{.directory = copy, .background = false});
    call_all(second);
    const auto stats = second->stats();
    std::printf("second process: %lld compiled, %lld libraries loaded in %.2f ms (aim 5)\n",
                static_cast<long long>(stats.compiled), static_cast<long long>(stats.loaded), stats.load_seconds * 1e3);
    std::fflush(stdout);
    std::filesystem::remove_all(copy);
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
  std::filesystem::remove_all(folder);
}

}  // namespace

int main(int count, char** arguments) {
  at::set_num_threads(1);
  const std::string what = count > 1 ? arguments[1] : "";
  const std::string which = count > 2 ? arguments[2] : "";
  if (what.empty() || what == "hit") hit();
  if (what.empty() || what == "compile") compile_and_load();
  if (what.empty() || what == "chains") chains();
  if (what.empty() || what == "step") {
    for (const char* name : {"bert_base", "gpt2"}) {
      if (!which.empty() && which != name) continue;
      step(name, true);
      step(name, false);
    }
  }
}
