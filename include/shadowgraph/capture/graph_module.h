// A forward graph, rewritten or not, as a torch::nn::Module.
//
//     auto module = std::make_shared<GraphModule>(capture_forward(net, {x}).graph, net);
//     at::Tensor y = module->forward({x})[0];
//     y.sum().backward();                          // gradients in module->parameters()
//     module->to(at::kDouble); module->save("net.sg", "net.pt"); auto again = GraphModule::load("net.sg", "net.pt");
//
// Parameters and buffers have the names that the graph gives them; dots make submodules, so named_parameters() and
// state dicts look like the original's. They are the tensors given, not copies: training one trains the other. Tensor
// constants of the graph become buffers "graph_constants.c0", ..., so that they move and are saved too.
//
// Gradients come from autograd as the operators run; the graph itself needs no backward. The first run checks that no
// operator lacks a derivative where the captured program had one: otherwise Error.
//
// What the graph keeps of its capture, whatever the module is told later:
// - train() and eval() change nothing: dropout and batch norm are what they were. Capture the graph in the mode you want.
// - sizes: inputs must have those of the capture (strides may differ, dtypes follow the module once it was converted).
// - dtypes that the program itself named (`to(kFloat)`, arange) stay after to(kHalf); to(device) moves everything.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shadowgraph/error.h"
#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/graph/ids.h"

namespace SHADOWGRAPH_API shadowgraph {

class GraphModule : public torch::nn::Module {
 public:
  // Takes what the graph names from `source`, shared. Throws Error if `source` lacks a parameter or buffer,
  // or has it in another dtype or shape. Throws it for a graph with a backward or an optimizer step, too.
  GraphModule(Graph graph, const torch::nn::Module& source);
  // The same from tensors by name.
  GraphModule(Graph graph, const std::map<std::string, at::Tensor>& tensors);
  ~GraphModule() override;

  // One tensor for each of input_names(), on the module's device. Throws Error for a wrong number or shape,
  // and ReplayError for what fails inside.
  std::vector<at::Tensor> forward(const std::vector<at::Tensor>& inputs);
  const std::vector<std::string>& input_names() const { return input_names_; }
  const Graph& graph() const { return graph_; }

  // The graph as text and the tensors as a dict that Python's torch.load reads, each written whole or not at all. The
  // tensors name the graph that they belong to by its hash. Throws FileError.
  void save(const std::string& graph_file, const std::string& tensor_file) const;
  // Throws FileError, ParseError, GraphError, and Error for a broken tensor file or one of another graph.
  static std::shared_ptr<GraphModule> load(const std::string& graph_file, const std::string& tensor_file);

 private:
  class Checked;
  // `converted`: dtypes may be others than the graph's, after to(kHalf).
  GraphModule(Graph graph, const std::map<std::string, at::Tensor>& tensors, bool converted);
  void own_constants();
  void refuse_training() const;
  void adopt(const std::map<std::string, at::Tensor>& tensors, bool converted);
  void prepare();

  Graph graph_;
  std::vector<std::string> input_names_;
  std::vector<ValueId> input_values_;
  std::map<std::string, at::Tensor> constants_;  // taken out of the graph
  // By the graph's names. A module converts its tensors in place (set_data), so these stay the module's own.
  std::vector<std::pair<std::string, at::Tensor>> tensors_;
  std::unique_ptr<Checked> interpreter_;
  std::optional<c10::Device> prepared_for_;
};

}  // namespace shadowgraph
