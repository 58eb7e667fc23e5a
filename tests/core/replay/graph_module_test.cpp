// A forward graph as a module: outputs, gradients and buffers are bitwise equal to eager for every built-in model.
#include "shadowgraph/capture/graph_module.h"

#include <ATen/Parallel.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <unistd.h>

#include "ir/records.h"
#include "models/program.h"
#include "models/registry.h"
#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/capture/replay.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/text.h"
#include "tests/core/replay/same_bits.h"

namespace shadowgraph {
namespace {

constexpr uint64_t kModuleSeed = 11;

models::BuiltModel build_real(const std::string& name) {
  at::manual_seed(kModuleSeed);
  return models::build(name, {.tiny = true});
}

Graph forward_graph(const std::string& name) {
  const FakeTensorMode mode;
  const auto model = models::build(name, {.tiny = true});
  return capture_forward(models::program_of(model)).graph;
}

std::vector<at::Tensor> inputs_for(const GraphModule& module, const models::BuiltModel& model) {
  std::vector<at::Tensor> inputs;
  for (const std::string& name : module.input_names()) {
    const auto found = std::find(model.input_names.begin(), model.input_names.end(), name);
    inputs.push_back(model.inputs[static_cast<size_t>(found - model.input_names.begin())]);
  }
  return inputs;
}

class ModelAsGraphModule : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    threads_ = at::get_num_threads();
    at::set_num_threads(1);
  }
  void TearDown() override { at::set_num_threads(threads_); }

 private:
  int threads_ = 1;
};

TEST_P(ModelAsGraphModule, HasTheGradientsOfEager) {
  const auto eager = build_real(GetParam());
  at::manual_seed(kModuleSeed + 1);
  const auto expected = eager.forward(eager.inputs);
  eager.loss(expected, eager.inputs).backward();

  const auto real = build_real(GetParam());
  GraphModule module(forward_graph(GetParam()), *real.module);
  at::manual_seed(kModuleSeed + 1);
  const auto outputs = module.forward(inputs_for(module, real));
  ASSERT_EQ(outputs.size(), expected.size());
  for (size_t i = 0; i < outputs.size(); ++i) EXPECT_TRUE(same_contents(expected[i], outputs[i])) << i;
  real.loss(outputs, real.inputs).backward();
  const auto parameters = module.named_parameters();
  size_t compared = 0;
  for (const auto& entry : eager.module->named_parameters()) {
    const at::Tensor* found = parameters.find(entry.key());
    if (found == nullptr) continue;  // the second name of a tied parameter
    EXPECT_TRUE(same_contents(entry.value().grad(), found->grad())) << entry.key();
    ++compared;
  }
  EXPECT_EQ(compared, parameters.size());
  EXPECT_GT(compared, 3U);
  const auto buffers = module.named_buffers();
  for (const auto& entry : eager.module->named_buffers()) {
    const at::Tensor* found = buffers.find(entry.key());
    if (found == nullptr) continue;
    EXPECT_TRUE(same_contents(entry.value(), *found)) << entry.key();
  }
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const auto& info : models::available()) names.push_back(info.name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(Zoo, ModelAsGraphModule, ::testing::ValuesIn(model_names()),
                         [](const auto& name) { return name.param; });

// y = x @ weight + constant, captured without gradients.
Graph linear_graph(const at::Tensor& constant) {
  const c10::NoGradGuard no_grad;
  const at::Tensor real_x = at::ones({2, 3});
  const at::Tensor real_weight = at::ones({3, 4}).requires_grad_();
  Capture session;
  session.name_input(real_x, "x");
  session.name_input(real_weight, "layer.0.weight");
  const at::Tensor x = session.mode().from_real(real_x);
  const at::Tensor weight = session.mode().from_real(real_weight);
  Graph graph = session.finish({at::mm(x, weight) + constant});
  for (const NodeId node : graph.nodes()) {
    if (graph.node(node).target != target_of(Builtin::kInput)) continue;
    if (graph.text(graph.arguments(node)[0].string) == "layer.0.weight") {
      mutable_node(graph, node).target = target_of(Builtin::kParameter);
      graph.set_requires_grad(graph.results(node)[0].ref.value, true);
    }
  }
  return graph;
}

class SavedModule : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("graph_module_" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string file(const std::string& name) const { return (folder_ / name).string(); }

 private:
  std::filesystem::path folder_;
};

TEST_F(SavedModule, RegistersUnderDottedNamesSharesMovesAndComesBack) {
  const at::Tensor weight = at::randn({3, 4}).requires_grad_();
  const at::Tensor constant = at::arange(4, at::kFloat);
  GraphModule module(linear_graph(constant), {{"layer.0.weight", weight}});
  EXPECT_TRUE(module.named_parameters()["layer.0.weight"].is_same(weight));
  EXPECT_EQ(module.named_buffers().size(), 1U);  // the constant
  const at::Tensor x = at::randn({2, 3});
  const at::Tensor expected = at::mm(x, weight) + constant;
  EXPECT_TRUE(same_contents(module.forward({x})[0], expected));
  module.forward({x})[0].sum().backward();
  EXPECT_TRUE(same_contents(weight.grad(), at::mm(x.t(), at::ones({2, 4}))));

  module.to(at::kDouble);
  const at::Tensor wide = module.forward({x.to(at::kDouble)})[0];
  EXPECT_EQ(wide.scalar_type(), at::kDouble);
  EXPECT_TRUE(at::allclose(wide, expected.to(at::kDouble), 1e-4, 1e-5));

  module.save(file("net.sg"), file("net.pt"));
  const auto again = GraphModule::load(file("net.sg"), file("net.pt"));
  EXPECT_TRUE(same_contents(again->forward({x.to(at::kDouble)})[0], wide));
  EXPECT_TRUE(again->named_parameters()["layer.0.weight"].requires_grad());
  EXPECT_TRUE(again->named_parameters()["layer.0.weight"].is_leaf());
}

TEST_F(SavedModule, RefusesFilesThatDoNotBelongTogether) {
  GraphModule one(linear_graph(at::arange(4, at::kFloat)), {{"layer.0.weight", at::ones({3, 4})}});
  one.save(file("one.sg"), file("one.pt"));
  Graph other = clone(one.graph());
  other.metadata.other["edited"] = "yes";
  write_graph_file(file("other.sg"), other);
  EXPECT_THROW(GraphModule::load(file("other.sg"), file("one.pt")), Error);
  write_file(file("torn.pt"), read_file(file("one.pt")).substr(0, 200));
  EXPECT_THROW(GraphModule::load(file("one.sg"), file("torn.pt")), Error);
  write_file(file("torn.sg"), read_file(file("one.sg")).substr(0, 120));
  EXPECT_THROW(GraphModule::load(file("torn.sg"), file("one.pt")), ParseError);
  EXPECT_THROW(GraphModule::load(file("absent.sg"), file("one.pt")), FileError);
}

TEST_F(SavedModule, RefusesWrongTensorsAndTrainingGraphs) {
  const auto graph = [] { return linear_graph(at::arange(4, at::kFloat)); };
  using Named = std::map<std::string, at::Tensor>;
  EXPECT_THROW(GraphModule(graph(), Named{}), Error);
  EXPECT_THROW(GraphModule(graph(), Named{{"layer.0.weight", at::ones({3, 5})}}), Error);
  EXPECT_THROW(GraphModule(graph(), Named{{"layer.0.weight", at::ones({3, 4}, at::kDouble)}}), Error);
  GraphModule module(graph(), Named{{"layer.0.weight", at::ones({3, 4})}});
  EXPECT_THROW(module.forward({}), Error);
  EXPECT_THROW(module.forward({at::ones({2, 4})}), Error);
  EXPECT_THROW(module.forward({at::Tensor()}), Error);

  Graph training = graph();
  for (const NodeId node : training.nodes()) mutable_node(training, node).phase = Graph::kBackward;
  EXPECT_THROW(GraphModule(std::move(training), Named{{"layer.0.weight", at::ones({3, 4})}}), Error);
}

TEST(ReplayExecutor, RunsByPositionAndByNameAndOwnsItsGraph) {
  ReplayExecutor executor(linear_graph(at::arange(4, at::kFloat)));
  EXPECT_THAT(executor.input_names(), ::testing::UnorderedElementsAre("x", "layer.0.weight"));
  const at::Tensor x = at::randn({2, 3});
  const at::Tensor weight = at::randn({3, 4});
  const at::Tensor expected = at::mm(x, weight) + at::arange(4, at::kFloat);
  std::vector<at::Tensor> ordered;
  for (const std::string& name : executor.input_names()) ordered.push_back(name == "x" ? x : weight);
  EXPECT_TRUE(same_contents(executor.run(ordered)[0], expected));
  EXPECT_TRUE(same_contents(executor.run(Bindings().bind("x", x).bind("layer.0.weight", weight)).outputs[0], expected));
  EXPECT_THROW(executor.run({x}), ReplayError);
  EXPECT_THROW(executor.run({at::zeros({1}), at::zeros({1})}), ReplayError);
  EXPECT_THROW(executor.run(Bindings().bind("x", x)), ReplayError);
}

}  // namespace
}  // namespace shadowgraph
