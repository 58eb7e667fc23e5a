// A forward graph, possibly transformed, as a torch::nn::Module.
//
//     auto module = std::make_shared<GraphModule>(capture_forward(net, {x}).graph, net);
//     at::Tensor y = module->forward({x})[0];
//     y.sum().backward();                          // gradients in module->parameters()
//     module->to(at::kDouble);
//     module->save("net.sg", "net.pt");
//     auto loaded = GraphModule::load("net.sg", "net.pt");
//
// Parameters and buffers have their names in the graph; dots create submodules, so named_parameters() and state dicts
// match those of the original. Tensors are shared, not copied: training one trains the other. Tensor constants of the
// graph become buffers "graph_constants.c0", ..., so that they are moved and saved, too.
//
// Gradients are computed by autograd as the operators run; the graph needs no backward. The first run throws Error if
// an operator lacks a derivative where the captured program had one.
//
// Fixed by the capture:
// - train() and eval() have no effect on dropout and batch norm. Capture the graph in the desired mode.
// - Input sizes must match (strides may differ; dtypes follow the module after a conversion).
// - Dtypes named by the program (`to(kFloat)`, arange) are unchanged by to(kHalf); to(device) moves everything.
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
  // Shares the tensors of `source` by name. Throws Error if `source` lacks a parameter or buffer or has it with another
  // dtype or shape, and for a graph with a backward or optimizer step.
  GraphModule(Graph graph, const torch::nn::Module& source);
  // Takes tensors by name.
  GraphModule(Graph graph, const std::map<std::string, at::Tensor>& tensors);
  ~GraphModule() override;

  // Takes one tensor per input name, on the module's device. Throws Error for their number and shapes; ReplayError.
  std::vector<at::Tensor> forward(const std::vector<at::Tensor>& inputs);
  const std::vector<std::string>& input_names() const { return input_names_; }
  const Graph& graph() const { return graph_; }

  // Writes the graph as text and the tensors as a dict readable by Python's torch.load, each atomically. The tensor
  // file contains a hash of the graph. Throws FileError.
  void save(const std::string& graph_file, const std::string& tensor_file) const;
  // Throws FileError, ParseError, GraphError, and Error for an invalid tensor file or one of another graph.
  static std::shared_ptr<GraphModule> load(const std::string& graph_file, const std::string& tensor_file);

 private:
  class Checked;
  // `converted`: dtypes may differ from the graph's, after to(kHalf).
  GraphModule(Graph graph, const std::map<std::string, at::Tensor>& tensors, bool converted);
  void own_constants();
  void refuse_training() const;
  void adopt(const std::map<std::string, at::Tensor>& tensors, bool converted);
  void prepare();

  Graph graph_;
  std::vector<std::string> input_names_;
  std::vector<ValueId> input_values_;
  std::map<std::string, at::Tensor> constants_;  // removed from the graph
  // By name in the graph. The module converts its tensors in place (set_data), so these remain its tensors.
  std::vector<std::pair<std::string, at::Tensor>> tensors_;
  std::unique_ptr<Checked> interpreter_;
  std::optional<c10::Device> prepared_for_;
};

}  // namespace shadowgraph
