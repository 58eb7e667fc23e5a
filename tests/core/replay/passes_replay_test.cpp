// The classic passes keep programs bitwise equal. They run on random programs and on training steps of built-in models,
// each pass alone and all in sequence.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <cstring>

#include "models/program.h"
#include "models/registry.h"
#include "shadowgraph/capture/replay.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/passes/pipeline.h"
#include "tests/passes/model_captures.h"
#include "tests/random/program.h"

namespace shadowgraph::testing {
namespace {

constexpr int kPipelineShards = 16;
const char* const kPipelines[] = {
    "dce",
    "cse",
    "cse{phases=merge}",
    "const-fold",
    "canonicalize",
    "dead-storage",
    "const-fold,merge-constants",
    "canonicalize,cse,const-fold,dead-storage,dce,canonicalize,cse,dead-storage,dce",
    "collapse{level=composite;bodies=keep}",
};

// Only for models: random programs have no modules, and nothing in them is decomposed.
const char* const kModelPipelines[] = {
    "collapse{bodies=keep}",
    "collapse{depth=2;bodies=keep}",
    "functionalize,collapse{bodies=keep}",
    "functionalize,canonicalize,cse,const-fold,dead-storage,dce,reinplace",
    "find-repeats,fuse-groups,partition,shape-prop",
};

Graph optimized(const Graph& graph, const std::string& pipeline) {
  Graph result = clone(graph);
  Pipeline::parse(pipeline).run(result, PipelineOptions::checked());
  // A single pass is idempotent.
  if (pipeline.find(',') >= pipeline.find('{')) {
    const PipelineReport again = Pipeline::parse(pipeline).run(result, PipelineOptions::checked());
    if (again.changed()) throw Error("a second run changes something:\n" + to_text(again));
  }
  return result;
}

class OptimizedPrograms : public ::testing::TestWithParam<int> {};

TEST_P(OptimizedPrograms, ReplayAsTheyRun) {
  std::vector<Rewrite> rewrites;
  for (const char* const pipeline : kPipelines) {
    rewrites.emplace_back([pipeline](const Graph& graph) { return optimized(graph, pipeline); });
  }
  expect_same_behavior_of_shard(GetParam(), kPipelineShards, random_program_count(1500), 500000, rewrites);
}

INSTANTIATE_TEST_SUITE_P(Shard, OptimizedPrograms, ::testing::Range(0, kPipelineShards));

// ---- Models

constexpr uint64_t kPipelineSeed = 2025;

struct Left {
  models::BuiltModel model;
  ReplayResult result;
};

Left replay_step(const std::string& name, const Graph& graph) {
  at::manual_seed(kPipelineSeed);
  Left left{.model = models::build(name, {.training = true, .tiny = true})};
  Bindings bindings;
  bindings.module(*left.model.module);
  for (size_t i = 0; i < left.model.inputs.size(); ++i) bindings.bind(left.model.input_names[i], left.model.inputs[i]);
  at::manual_seed(kPipelineSeed + 1);
  left.result = Interpreter(graph).run(bindings);
  return left;
}

void expect_same(const at::Tensor& a, const at::Tensor& b, const std::string& what) {
  ASSERT_EQ(a.defined(), b.defined()) << what;
  if (!a.defined()) return;
  EXPECT_EQ(a.strides(), b.strides()) << what;
  const at::Tensor x = a.contiguous();
  const at::Tensor y = b.contiguous();
  EXPECT_EQ(x.nbytes(), y.nbytes()) << what;
  EXPECT_EQ(std::memcmp(x.const_data_ptr(), y.const_data_ptr(), std::min(x.nbytes(), y.nbytes())), 0) << what;
}

class OptimizedModels : public ::testing::TestWithParam<std::string> {};

TEST_P(OptimizedModels, TrainAsBefore) {
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const Graph graph = capture_tiny(GetParam(), {});
  const Left expected = replay_step(GetParam(), graph);
  std::vector<const char*> pipelines(std::begin(kPipelines), std::end(kPipelines));
  pipelines.insert(pipelines.end(), std::begin(kModelPipelines), std::end(kModelPipelines));
  for (const char* pipeline : pipelines) {
    SCOPED_TRACE(pipeline);
    const Graph rewritten = optimized(graph, pipeline);
    const Left left = replay_step(GetParam(), rewritten);
    ASSERT_EQ(left.result.outputs.size(), expected.result.outputs.size());
    for (size_t i = 0; i < left.result.outputs.size(); ++i) {
      expect_same(left.result.outputs[i], expected.result.outputs[i], "output " + std::to_string(i));
    }
    ASSERT_EQ(left.result.gradients.size(), expected.result.gradients.size());
    for (const auto& [parameter, gradient] : expected.result.gradients) {
      expect_same(left.result.gradients.at(parameter), gradient, "gradient of " + parameter);
    }
    const auto parameters = left.model.module->named_parameters();
    for (const auto& entry : expected.model.module->named_parameters()) {
      expect_same(parameters[entry.key()].detach(), entry.value().detach(), entry.key());
    }
    const auto buffers = left.model.module->named_buffers();
    for (const auto& entry : expected.model.module->named_buffers()) {
      expect_same(buffers[entry.key()], entry.value(), entry.key());
    }
  }
  at::set_num_threads(threads);
}

INSTANTIATE_TEST_SUITE_P(BuiltIn, OptimizedModels,
                         ::testing::Values("resnet18", "resnet50", "vit_b_16", "bert_base", "gpt2", "llama3_8b", "unet",
                                           "lstm_lm"));

}  // namespace
}  // namespace shadowgraph::testing
