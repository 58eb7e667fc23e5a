// One text file per case: tests/passes/PURPOSE/NAME.sg, run as PassFile.GivesWhatItSays/PURPOSE_NAME.
//
//     # dce,cse{phases=merge}             the pipeline
//     # any more comments                 "# not replayed: why" among them, if the graph cannot run here
//     shadowgraph 1 libtorch 2.13.0       the graph
//     ...
//     ==== after                          or "==== unchanged", or "==== error" and the message
//     ...                                 the graph after the pipeline
//     ==== report                         if the passes report anything
//     ...
//
// A second run of the passes must change nothing. Both graphs are then run on the same random numbers and must agree in
// their outputs and in what they write to their inputs, so a wrong golden fails, too. UPDATE_GOLDEN=1 rewrites
// everything from the first ==== line on; read the diff.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "shadowgraph/capture/replay.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/graph/verify.h"
#include "shadowgraph/passes/pipeline.h"
#include "tests/this_libtorch.h"

namespace shadowgraph {
namespace {

namespace fs = std::filesystem;

const fs::path kPassFiles = fs::path(SHADOWGRAPH_SOURCE_DIR) / "tests/passes";

std::vector<std::string> pass_files() {
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(kPassFiles)) {
    if (entry.path().extension() == ".sg") names.push_back(fs::relative(entry.path(), kPassFiles).string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

struct RunOfGraph {
  std::vector<at::Tensor> inputs;
  ReplayResult result;
};

// The n-th placeholder of a name gets the same tensor in every graph: small numbers of both signs, without zeros, which
// may be divisors.
RunOfGraph run_on_random_inputs(const Graph& graph) {
  RunOfGraph run;
  Bindings bindings;
  for (const NodeId n : graph.nodes()) {
    if (graph.node(n).target.index > target_of(Builtin::kInput).index) continue;
    const Argument& name = graph.arguments(n)[0];
    const ValueId v = graph.results(n)[0].ref.value;
    at::manual_seed(std::hash<std::string>()(std::string(graph.text(name.string))));
    const at::Tensor numbers = at::rand(graph.sizes(v)).add_(0.5) * at::randint(0, 2, graph.sizes(v)).mul_(2).sub_(1);
    const at::Tensor tensor = at::empty_strided(graph.sizes(v), graph.strides(v), graph.value(v).dtype);
    bindings.bind(std::string(graph.text(name.string)), tensor.copy_(numbers));
    run.inputs.push_back(tensor);
  }
  at::manual_seed(1);
  run.result = Interpreter(graph, {.device = c10::Device(c10::DeviceType::CPU), .check_results = true}).run(bindings);
  return run;
}

void expect_same_tensor(const at::Tensor& before, const at::Tensor& after, const std::string& what) {
  ASSERT_EQ(before.defined(), after.defined()) << what;
  if (!before.defined()) return;
  ASSERT_EQ(before.scalar_type(), after.scalar_type()) << what;
  ASSERT_EQ(before.sizes(), after.sizes()) << what;
  EXPECT_TRUE(at::allclose(before, after, 1e-4, 1e-5, /*equal_nan=*/true)) << what << '\n' << before << '\n' << after;
}

void expect_same_run(const Graph& before, const Graph& after) {
  const RunOfGraph a = run_on_random_inputs(before);
  const RunOfGraph b = run_on_random_inputs(after);
  ASSERT_EQ(a.result.outputs.size(), b.result.outputs.size());
  for (size_t i = 0; i < a.result.outputs.size(); ++i) {
    expect_same_tensor(a.result.outputs[i], b.result.outputs[i], "output " + std::to_string(i));
  }
  ASSERT_EQ(a.result.gradients.size(), b.result.gradients.size());
  for (const auto& [name, gradient] : a.result.gradients) {
    expect_same_tensor(gradient, b.result.gradients.at(name), "gradient of " + name);
  }
  if (a.inputs.size() != b.inputs.size()) return;  // passes may remove unused inputs
  for (size_t i = 0; i < a.inputs.size(); ++i) {
    expect_same_tensor(a.inputs[i], b.inputs[i], "what is left in placeholder " + std::to_string(i));
  }
}

// Returns the expectations below the graph of the file.
std::string expectation(const std::string& source) {
  Graph graph = parse(source);
  const Graph before = clone(graph);
  const Pipeline pipeline = Pipeline::parse(source.substr(2, source.find('\n') - 2));
  PipelineReport report;
  try {
    report = pipeline.run(graph, PipelineOptions::checked());
  } catch (const Error& error) {
    EXPECT_EQ(first_difference(before, graph), std::nullopt) << "the graph was changed although the pass failed";
    return std::string("==== error\n") + error.what() + "\n";
  }
  std::string said;
  for (const PassRun& run : report.runs) said += run.result.report;
  if (!said.empty()) said = "==== report\n" + said;
  if (!report.changed()) return "==== unchanged\n" + said;

  Graph again = clone(graph);
  EXPECT_FALSE(pipeline.run(again, PipelineOptions::checked()).changed()) << "a second run changes the graph again";
  if (source.find("\n# not replayed: ") == std::string::npos) expect_same_run(before, graph);
  return "==== after\n" + to_text(graph) + said;
}

class PassFile : public ::testing::TestWithParam<std::string> {};

TEST_P(PassFile, GivesWhatItSays) {
  const fs::path path = kPassFiles / GetParam();
  std::stringstream file;
  file << std::ifstream(path).rdbuf();
  const std::string text = file.str();
  const size_t end = text.find("\n====");
  const std::string source = end == std::string::npos ? text : text.substr(0, end + 1);
  ASSERT_TRUE(source.starts_with("# ")) << "the first line names the passes";
  const std::string expected = expectation(source);
  if (std::getenv("UPDATE_GOLDEN") != nullptr)
    std::ofstream(path) << source << expected;
  else
    EXPECT_EQ(of_this_libtorch(text.substr(source.size())), expected) << path << "; UPDATE_GOLDEN=1 rewrites it";
}

INSTANTIATE_TEST_SUITE_P(Purpose, PassFile, ::testing::ValuesIn(pass_files()), [](const auto& info) {
  std::string name = info.param.substr(0, info.param.size() - std::string(".sg").size());
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
});

}  // namespace
}  // namespace shadowgraph
