// Functionalized programs behave as before: outputs, contents of inputs after the run, and aliases.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/optim.h>

#include "models/program.h"
#include "models/registry.h"
#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/capture/replay.h"
#include "shadowgraph/graph/analysis.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/graph/verify.h"
#include "shadowgraph/passes/functional.h"
#include "tests/codegen/fixtures/odd_storage_program.h"
#include "tests/random/program.h"

namespace shadowgraph::testing {
namespace {

constexpr int kFunctionalizedShards = 20;

Graph functionalized(const Graph& graph) {
  Graph result = parse(to_text(graph));
  functionalize(result);
  const NodeId left = first_mutation(result);
  if (left.valid()) throw Error("a write is left: " + to_text(result, left));
  Graph again = parse(to_text(result));
  if (functionalize(again).changed) throw Error("functionalizing again changes the graph");
  if (const auto difference = first_difference(result, again)) throw Error(*difference);
  return result;
}

// For each storage, the ordinal of the last node that writes it.
IdMap<StorageId, uint32_t> last_writes(const Graph& graph) {
  const Effects effects = Effects::of(graph);
  IdMap<StorageId, uint32_t> last;
  uint32_t ordinal = 0;
  for (const NodeId n : graph.nodes()) {
    ++ordinal;
    for (const auto& write : effects.writes(n)) last[write.storage] = ordinal;
  }
  return last;
}

// Returns the first node with a saved tensor that is written later, or an invalid id.
NodeId first_written_after_saved(const Graph& graph) {
  const IdMap<StorageId, uint32_t> last = last_writes(graph);
  uint32_t ordinal = 0;
  for (const NodeId n : graph.nodes()) {
    ++ordinal;
    for (const SavedTensor& saved : graph.saved(n)) {
      const StorageId storage = graph.value(saved.value).storage;
      if (storage.valid() && last[storage] > ordinal) return n;
    }
  }
  return {};
}

// Marks saved tensors as in a forward pass without backward. Every third node saves its first operand or result, if the
// program does not write it.
// operand or result, if the program itself leaves that alone.
void save_some(Graph& graph) {
  const IdMap<StorageId, uint32_t> last = last_writes(graph);
  uint32_t ordinal = 0;
  for (const NodeId n : graph.nodes()) {
    if (++ordinal % 3 != 0 || graph.target(n).kind() != TargetKind::kOperator) continue;
    const bool result = ordinal % 2 == 0;
    const auto kept = result ? graph.results(n) : graph.arguments(n);
    if (kept.empty() || kept[0].kind != ArgumentKind::kValue) continue;
    const Value& value = graph.value(kept[0].ref.value);
    if (value.kind != ValueKind::kTensor || !value.storage.valid() || last[value.storage] > ordinal) continue;
    const SavedTensor saved[] = {
        {.value = kept[0].ref.value, .role = result ? SavedRole::kResult : SavedRole::kArgument}};
    graph.set_saved(n, saved);
  }
}

Graph in_place(Graph graph) {
  reinplace(graph);
  if (const NodeId n = first_written_after_saved(graph); n.valid()) {
    throw Error("what autograd keeps of this node is written: " + to_text(graph, n) + "\n" + to_text(graph));
  }
  return graph;
}

// Functionalizes, then makes writes in place again where that is safe: a different graph with the same behavior.
Graph there_and_back(const Graph& graph) { return in_place(functionalized(graph)); }

// The reinplacing pass also accepts programs that were not functionalized.
Graph reinplaced(const Graph& graph) { return in_place(parse(to_text(graph))); }

Graph reinplaced_with_saved(const Graph& graph) {
  Graph result = parse(to_text(graph));
  save_some(result);
  return in_place(std::move(result));
}

// Found by seed 144544: bytes after the last whole element of the written dtype were lost.
TEST(FunctionalCalls, CopyStoragesOfNoWholeNumberOfElements) {
  Graph graph;
  {
    const FakeTensorMode mode;
    const at::Tensor x = at::empty({5});
    Capture session;
    session.name_input(x, "x");
    graph = session.finish(odd_storage_program(x));
  }
  graph = functionalized(graph);
  EXPECT_NE(to_text(graph).find("sg_functional::aten___foreach_copy_"), std::string::npos) << to_text(graph);
  const at::Tensor x = at::randn({5});
  const std::vector<at::Tensor> expected = odd_storage_program(x);
  const ReplayResult result = Interpreter(graph, {.check_results = true}).run(Bindings().bind("x", x));
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::equal(expected[i], result.outputs[i])) << i;
}

class FunctionalizedPrograms : public ::testing::TestWithParam<int> {};

TEST_P(FunctionalizedPrograms, ReplayAsTheyRun) {
  expect_same_behavior_of_shard(GetParam(), kFunctionalizedShards, random_program_count(10000), 100000,
                                {functionalized, there_and_back, reinplaced, reinplaced_with_saved});
}
INSTANTIATE_TEST_SUITE_P(Shard, FunctionalizedPrograms, ::testing::Range(0, kFunctionalizedShards));

// ---- The built-in models, whose replay is known to equal eager (models_replay_test.cpp)

struct AfterStep {
  std::map<std::string, at::Tensor> tensors;  // outputs, gradients, parameters, buffers
};

AfterStep run_step(const Graph& graph, const std::string& name) {
  at::manual_seed(2025);
  const auto model = models::build(name, {.tiny = true});
  Bindings bindings;
  bindings.module(*model.module);
  for (size_t i = 0; i < model.inputs.size(); ++i) bindings.bind(model.input_names[i], model.inputs[i]);
  Interpreter interpreter(graph, {.check_results = true});
  at::manual_seed(2026);
  const ReplayResult result = interpreter.run(bindings);
  AfterStep after;
  for (size_t i = 0; i < result.outputs.size(); ++i) after.tensors["output " + std::to_string(i)] = result.outputs[i];
  for (const auto& [parameter, gradient] : result.gradients) after.tensors["gradient of " + parameter] = gradient;
  for (const auto& entry : model.module->named_parameters()) after.tensors[entry.key()] = entry.value().detach();
  for (const auto& entry : model.module->named_buffers()) after.tensors[entry.key()] = entry.value().detach();
  return after;
}

void expect_same(const AfterStep& a, const AfterStep& b) {
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (const auto& [name, x] : a.tensors) {
    const auto found = b.tensors.find(name);
    ASSERT_NE(found, b.tensors.end()) << name;
    const at::Tensor& y = found->second;
    EXPECT_EQ(x.strides(), y.strides()) << name;
    ASSERT_EQ(x.sizes(), y.sizes()) << name;
    const at::Tensor p = x.contiguous();
    const at::Tensor q = y.contiguous();
    EXPECT_TRUE(p.nbytes() == 0 || std::memcmp(p.const_data_ptr(), q.const_data_ptr(), p.nbytes()) == 0) << name;
  }
}

class FunctionalizedModels : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    threads_ = at::get_num_threads();
    at::set_num_threads(1);
  }
  void TearDown() override { at::set_num_threads(threads_); }

  static void expect_same_step(
      const std::function<std::unique_ptr<torch::optim::Optimizer>(const std::vector<at::Tensor>& parameters)>&
          make_optimizer) {
    Graph graph;
    {
      const FakeTensorMode mode;
      const auto model = models::build(GetParam(), {.tiny = true});
      const auto optimizer = make_optimizer(model.module->parameters());
      graph = capture_training_step(models::program_of(model, optimizer.get())).graph;
    }
    Graph functional = clone(graph);
    const FunctionalizeResult result = functionalize(functional);
    verify(functional);
    EXPECT_TRUE(result.changed);
    const NodeId left = first_mutation(functional);
    EXPECT_FALSE(left.valid()) << to_text(functional, left);
    expect_same(run_step(graph, GetParam()), run_step(functional, GetParam()));
    const uint32_t nodes = functional.node_count();
    const int64_t in_place = reinplace(functional).operators;
    verify(functional);
    EXPECT_GT(in_place, 0);
    EXPECT_LE(functional.node_count(), nodes);
    expect_same(run_step(graph, GetParam()), run_step(functional, GetParam()));
    // Trained values are written back: every parameter with a gradient has changed.
    size_t gradients = 0;
    for (const NodeId n : graph.nodes()) gradients += graph.node(n).target == target_of(Builtin::kGradient);
    EXPECT_GE(result.mutated.size(), gradients);
  }

 private:
  int threads_ = 1;
};

TEST_P(FunctionalizedModels, TrainWithSgd) {
  expect_same_step([](const auto& parameters) {
    return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
  });
}
TEST_P(FunctionalizedModels, TrainWithAdamW) {
  expect_same_step([](const auto& parameters) {
    return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(1e-3));
  });
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const auto& info : models::available()) names.push_back(info.name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(Zoo, FunctionalizedModels, ::testing::ValuesIn(model_names()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace shadowgraph::testing
