// What a graph is written as code for: C++ or Python (shadowgraph/codegen.h).
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "shadowgraph/error.h"
#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"

namespace SHADOWGRAPH_API shadowgraph {

struct CodegenOptions {
  // The namespace, and the name of the files; made an identifier.
  std::string name = "graph";
  // What these values need, and return them, named by `only_names` if that has as many; empty: the whole graph.
  std::vector<ValueId> only;
  std::vector<std::string> only_names;
  // Every device in the graph means this one: a capture on fake CUDA as code for the CPU.
  std::optional<c10::Device> device;
  // Says what functions of the user's own are in the code, by name: {"my::add_relu", {"my_library::add_relu",
  // "my/add_relu.h"}}. `from` is the header that declares it. In Python it is the module of which `callee` is a member:
  // {"add_relu", "my.kernels"}. The function is called with the schema's arguments, in their order. Tensors are
  // at::Tensor, lists of them at::TensorList, numbers int64_t, double, bool or at::Scalar. Several results are a
  // std::tuple.
  struct Function {
    std::string callee;
    std::string from;
  };
  std::map<std::string, Function> functions;
  // Forward graphs: code that autograd differentiates, with checkpoint regions recomputed in backward. Otherwise the
  // code runs below autograd, where it was recorded.
  bool autograd = false;
  // Modules with fewer operators are not functions of their own.
  int min_function_nodes = 6;
  // A function with more statements is cut in parts.
  int max_function_items = 250;
  // Constants of more elements go to the side file.
  int64_t max_embedded_elements = 32;
};

// A graph that cannot be written as code: names the node and what to do.
class CodegenError : public Error {
 public:
  explicit CodegenError(const std::string& message, NodeId node = NodeId()) : Error(message), node_(node) {}
  NodeId node() const { return node_; }  // invalid if it is about none

 private:
  NodeId node_;
};

// Throws CodegenError with the node's text.
[[noreturn]] void refuse_node(const Graph& graph, NodeId node, const std::string& what);

}  // namespace shadowgraph
