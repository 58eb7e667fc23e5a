// A pass of one's own, outside shadowgraph's tree: written, registered, and run in a pipeline with the built-in ones.
//
// drop-dropout takes dropout out of a graph that was captured in training mode:
//
//     %5, %6 = aten::native_dropout(input=%4, p=0.5, train=true)        users of %5 use %4; the node goes
//
// That is dropout on a GPU, so the capture pretends one; on the CPU it is bernoulli_, div_ and mul.
#include <shadowgraph/capture/capture.h>
#include <shadowgraph/graph/analysis.h>
#include <shadowgraph/graph/text.h>
#include <shadowgraph/passes/pass.h>
#include <shadowgraph/passes/pipeline.h>
#include <torch/nn.h>

#include <iostream>

namespace sg = shadowgraph;

// What it takes: a field an option, and a row of the table for the text form of each.
struct DropDropoutOptions {
  enum class Written : uint8_t { kKeep, kDrop };
  Written written = Written::kKeep;

  static sg::OptionTable<DropDropoutOptions> table() {
    return sg::OptionTable<DropDropoutOptions>().choice("written", &DropDropoutOptions::written, {"keep", "drop"},
                                                        "keep, or drop: dropouts whose result is written in place");
  }
};

// What it did: for C++, and for people.
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
    // Backward reads the mask; a write to the result must not reach the input.
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
      sg::pass_row("drop-dropout", "Takes dropout out of a graph captured in training mode", drop_dropout));

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
