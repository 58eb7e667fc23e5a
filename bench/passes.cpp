// Runs all registered passes on generated graphs and on a captured Llama 3 8B training step. Prints us per node and the
// scaling factor (aim: 1M nodes take at most 12 x as long as 100k).
//
//     build/bench/passes [name ...]        only passes whose name starts with one of these
#include <fmt/format.h>

#include <map>
#include <string>

#include "bench/measure.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/passes/pipeline.h"

namespace {

using namespace shadowgraph;

// A chain of equal blocks of 14 nodes with work for every pass: inverse views, a common subexpression, a redundant
// clone, a dead store, an in-place operator, constant arithmetic, a dead branch, an elementwise chain, and a region.
Graph generate(int64_t nodes) {
  std::string text =
      "shadowgraph 1 libtorch 2.13.0\n"
      "operator aten::t(Tensor(a) self) -> Tensor(a)\n"
      "operator aten::mm(Tensor self, Tensor mat2) -> Tensor\n"
      "operator aten::clone(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor\n"
      "operator aten::zeros(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? "
      "pin_memory=None) -> Tensor\n"
      "operator aten::copy_(Tensor(a!) self, Tensor src, bool non_blocking=False) -> Tensor(a!)\n"
      "operator aten::relu_(Tensor(a!) self) -> Tensor(a!)\n"
      "operator aten::mul.Tensor(Tensor self, Tensor other) -> Tensor\n"
      "operator aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor\n";
  std::string storages = "s0 = 64 cpu input\n";
  std::string regions = "r1 = module \"layers\" \"Sequential\" call 0 in r0\n";
  std::string body = "%0 = sg::input(name=\"x\") : f32[4,4] @s0\n";
  int64_t value = 1, storage = 1, current = 0;
  constexpr int64_t kBlock = 14;
  constexpr std::string_view kShape = "f32[4,4]";
  constexpr std::string_view kTurned = "f32[4,4]{1,4}";
  for (int64_t block = 0; block * kBlock + 2 < nodes; ++block) {
    regions += fmt::format("r{} = module \"layers.{}\" \"Block\" call 0 in r1\n", block + 2, block);
    const auto fresh = [&] {
      storages += fmt::format("s{} = 64 cpu temporary\n", storage);
      return storage++;
    };
    const auto node = [&](const std::string& call, std::string_view type, int64_t s) {
      body += fmt::format("%{} = aten::{} : {} @s{} | r{}\n", value, call, type, s, block + 2);
      return value++;
    };
    const int64_t home = storage - 1;  // of `current`, the output of the previous block or the input
    const int64_t turned = node(fmt::format("t(self=%{})", current), kTurned, home);
    const int64_t back = node(fmt::format("t(self=%{})", turned), kShape, home);
    const int64_t product = node(fmt::format("mm(self=%{}, mat2=%{})", back, turned), kShape, fresh());
    const int64_t again = node(fmt::format("mm(self=%{}, mat2=%{})", current, turned), kShape, fresh());
    const int64_t copy = node(fmt::format("clone(self=%{})", again), kShape, fresh());
    const int64_t zeros = node("zeros(size=[4, 4])", kShape, fresh());
    const int64_t filled = node(fmt::format("copy_(self=%{}, src=%{})", zeros, copy), kShape, storage - 1);
    const int64_t rectified = node(fmt::format("relu_(self=%{})", filled), kShape, storage - 1);
    const int64_t ones = node("zeros(size=[4, 4])", kShape, fresh());
    const int64_t constant = node(fmt::format("mul.Tensor(self=%{}, other=2.0)", ones), kShape, fresh());
    node(fmt::format("mul.Tensor(self=%{}, other=%{})", product, product), kShape, fresh());
    const int64_t scaled = node(fmt::format("mul.Tensor(self=%{}, other=%{})", rectified, constant), kShape, fresh());
    const int64_t summed = node(fmt::format("add.Tensor(self=%{}, other=%{})", scaled, product), kShape, fresh());
    current = node(fmt::format("add.Tensor(self=%{}, other=%{})", summed, scaled), kShape, fresh());
  }
  return parse(text + storages + regions + body + fmt::format("sg::output(values=[%{}])\n", current));
}

// Options of passes that have no effect, or cannot run, with their defaults.
const std::map<std::string, PassOptions> kOptions = {
    {"decompose", {{"to", "aten::t+aten::mm+aten::clone+aten::zeros+aten::copy_+aten::mul+aten::add+aten::relu"}}},
    {"partition", {{"operators", "aten::mm+aten::mul+aten::add"}}},
    {"rewrite",
     {{"rules",
       "rule twice;%s = aten::add.Tensor(self=%a, other=%b);%y = aten::add.Tensor(self=%s, other=%a);return %y;"
       "=>;%y = aten::add.Tensor(self=%b, other=%a, alpha=2);return %y"}}},
};

double seconds_of(const Graph& graph, const Pass& pass, std::string& failure) {
  // Take the best of several runs, since the machine is shared.
  double best = 1e9;
  const int runs = graph.node_count() > 500000 ? 3 : graph.node_count() > 50000 ? 5 : 20;
  const auto options = kOptions.find(pass.name);
  for (int i = 0; i < runs; ++i) {
    Graph copy = clone(graph);
    try {
      best = std::min(best, bench::seconds([&] {
                        run_pass(copy, pass.name, options == kOptions.end() ? PassOptions() : options->second);
                      }));
    } catch (const std::exception& error) {
      failure = std::string(error.what()).substr(0, std::string_view(error.what()).find('\n'));
      return 0;
    }
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  const auto wanted = [&](const std::string& name) {
    for (int i = 1; i < argc; ++i) {
      if (name.starts_with(argv[i])) return true;
    }
    return argc < 2;
  };
  const Graph graphs[] = {generate(10000), generate(100000), generate(1000000)};
  Graph llama;
  try {
    llama = bench::adamw_step("llama3_8b", {.training = true});
  } catch (const std::exception& error) {
    fmt::print(stderr, "cannot capture the Llama 3 8B step: {}\n", error.what());
  }
  fmt::print(
      "| pass | us per node at 10k | at 100k | at 1M | 1M / 100k (aim 12) | Llama-3-8B step, {} nodes, ms |\n"
      "|---|---|---|---|---|---|\n",
      llama.node_count());
  bool good = true;
  for (const Pass* pass : all_passes()) {
    if (!wanted(pass->name)) continue;
    std::string failure;
    double per_node[3] = {};
    for (int i = 0; i < 3 && failure.empty(); ++i) {
      per_node[i] = seconds_of(graphs[i], *pass, failure) * 1e6 / graphs[i].node_count();
    }
    if (!failure.empty()) {
      fmt::print("| {} | {} | | | | |\n", pass->name, failure);
      good = false;
      continue;
    }
    const double at_llama = seconds_of(llama, *pass, failure);
    const double ratio = per_node[2] / per_node[1] * 10;
    good = good && ratio <= 12;
    fmt::print("| {} | {:.3f} | {:.3f} | {:.3f} | {:.1f} | {} |\n", pass->name, per_node[0], per_node[1], per_node[2],
               ratio, failure.empty() ? fmt::format("{:.1f}", at_llama * 1e3) : failure);
    std::fflush(stdout);
  }
  return good ? 0 : 1;
}
