// Defines and registers a custom pass, and runs it in a pipeline with built-in passes.
//
// drop-dropout removes dropout from a graph captured in training mode:
//
//     %5, %6 = aten::native_dropout(input=%4, p=0.5, train=true)        removed; %5 is replaced by %4
//
// The capture simulates a GPU, where dropout is this operator; on the CPU it consists of bernoulli_, div_ and mul.
#include <shadowgraph/capture/capture.h>
#include <shadowgraph/graph/analysis.h>
#include <shadowgraph/graph/text.h>
#include <shadowgraph/passes/pass.h>
#include <shadowgraph/passes/pipeline.h>
#include <torch/nn.h>

#include <iostream>

namespace sg = shadowgraph;

// Options of the pass. Each field has a row in the table that defines its text form.
struct DropDropoutOptions {
  enum class Written : uint8_t { kKeep, kDrop };
  Written written = Written::kKeep;

  static sg::OptionTable<DropDropoutOptions> table() {
    return sg::OptionTable<DropDropoutOptions>().choice("written", &DropDropoutOptions::written, {"keep", "drop"},
                                                        "keep or drop dropouts whose result is modified in place");
  }
};

// Result of the pass. summary() is used in the pipeline report.
struct DropDropoutResult {
  int64_t dropouts = 0;
  sg::PassResult summary() const { return {.changed = dropouts != 0, .counters = {{"dropouts", dropouts}}}; }
};

DropDropoutResult drop_dropout(sg::Graph& graph, const DropDropoutOptions& options = {}) {
  const sg::Effects effects = sg::Effects::of(graph);
  std::vector<sg::NodeId> dead;
  for (const sg::NodeId node : graph.nodes()) {
    if (graph.target(node).name() != "aten::native_dropout") continue;
    const auto results = graph.results(node);
    const sg::ValueId kept = results[0].ref.value;
    const sg::ValueId mask = results[1].ref.value;
    const sg::ValueId input = graph.find_argument(node, "input")->ref.value;
    // Keep the node if backward uses the mask, or if the result is modified, which must not modify the input.
    if (graph.has_uses(mask)) continue;
    if (options.written == DropDropoutOptions::Written::kKeep && effects.final_version(graph.value(kept).storage) != 0)
      continue;
    graph.replace_all_uses_with(kept, input);
    dead.push_back(node);
  }
  graph.erase(dead);
  return {.dropouts = static_cast<int64_t>(dead.size())};
}

struct NetImpl : torch::nn::Module {
  NetImpl()
      : hidden(register_module("hidden", torch::nn::Linear(32, 64))),
        dropout(register_module("dropout", torch::nn::Dropout(0.5))),
        head(register_module("head", torch::nn::Linear(64, 10))) {}

  at::Tensor forward(const at::Tensor& x) {
    sg::ModuleScope scope(*this);
    return head(dropout(torch::relu(hidden(x))));
  }

  torch::nn::Linear hidden;
  torch::nn::Dropout dropout;
  torch::nn::Linear head;
};
TORCH_MODULE(Net);

int main() {
  sg::register_pass(
      sg::pass_row("drop-dropout", "Removes dropout from a graph captured in training mode", drop_dropout));

  sg::FakeTensorMode mode({.device = at::kCUDA});
  Net net;
  const at::NoGradGuard no_grad;
  sg::Graph graph = sg::capture_forward(*net, {at::empty({8, 32})}).graph;

  const auto pipeline = sg::Pipeline::parse("drop-dropout{written=keep},canonicalize,cse,dce");
  const sg::PipelineReport report = pipeline.run(graph, sg::PipelineOptions::checked());
  std::cout << sg::to_text(report) << "\n" << sg::to_text(graph, sg::PrintPreset::kShort);

  const bool right = report.runs[0].result.changed && sg::to_text(graph).find("native_dropout") == std::string::npos;
  std::cout << (right ? "as expected\n" : "not as expected\n");
  return right ? 0 : 1;
}
