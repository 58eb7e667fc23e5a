// What a graph is written as code for: C++ or Python (shadowgraph/codegen/codegen.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shadowgraph/error.h"
#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"

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

// Throws UnsupportedError with the node's text.
[[noreturn]] void refuse_node(const Graph& graph, NodeId node, const std::string& what);

// Graphs as source code, C++ or Python, that needs PyTorch alone.
//
// For programs that shall run, or be read, without shadowgraph. Writing is linear in the graph; equal layers become one
// function, so the text grows with the kinds of layers.

struct GeneratedCode {
  std::map<std::string, std::string> files;                   // name -> text
  std::vector<std::pair<std::string, at::Tensor>> constants;  // of the side file
  std::string constants_file;                                 // its name; "" if there is none
  int64_t functions = 0;                                      // written
  int64_t calls = 0;                                          // of them; more where one stands for repeated blocks
  std::vector<std::string> libraries_of;                      // namespaces of operators that are not libtorch's own
};

// Sets `only` to what patterns name, with * and ? as in a shell. They name "%12" as the text of the graph numbers
// values, "output0", "gradient.layer.weight", or "layer.weight" (a parameter, buffer or input, as the graph leaves it).
// Throws UnsupportedError for a pattern that matches nothing; the message lists what there is.
void choose_values(const Graph& graph, const std::vector<std::string>& patterns, CodegenOptions& options);

// Writes all files into `directory`, which is made if it is not there: each whole or not at all, the side file first.
// Throws FileError.
void write_code(const GeneratedCode& code, const std::string& directory);

// ---------------------------------------------------------------------------------------------------------------------
// A graph, or the slice of it that some values need, as C++ that needs libtorch and nothing else.
//
//     GeneratedCode code = emit_cpp(graph, {.name = "gpt2_step"});
//     write_code(code, "out");      // gpt2_step.cpp, gpt2_step.h, CMakeLists.txt, perhaps gpt2_step_constants.pt
//
// gpt2_step.cpp stands alone; gpt2_step.h declares the same for callers:
//
//     namespace gpt2_step {
//     struct Inputs { at::Tensor transformer_wte_weight; ... };
//     struct Outputs { at::Tensor output0; at::Tensor gradient_of_transformer_wte_weight; ... };
//     Outputs run(Inputs in, std::optional<at::Generator> generator = std::nullopt);
//     std::map<std::string, at::Tensor> run_by_name(const std::map<std::string, at::Tensor>& tensors, ...);
//     }
//
// The code calls the operators of the graph in its order, so it gives bit for bit what the program gave. What is
// written in place (parameters in an optimizer step) is written in the tensors that are given. docs/weights-and-code.md
// tells the rest.
//
// Throws UnsupportedError, naming the node, for functions that nothing describes, objects that a graph does not hold,
// and constants whose contents are gone. Throws it, too, for `autograd` on a graph with a backward. Linear in the
// graph.

GeneratedCode emit_cpp(const Graph& graph, const CodegenOptions& options = {});

// ---------------------------------------------------------------------------------------------------------------------
// A graph, or the slice of it that some values need, as Python over torch.ops.
//
//     GeneratedCode code = emit_python(graph, {.name = "gpt2_step"});      // gpt2_step.py, perhaps gpt2_step_constants.pt
//
//     import gpt2_step
//     outputs = gpt2_step.forward(tensors)        # {"transformer.wte.weight": tensor, ..., "input_ids": tensor}
//     outputs["output0"], outputs["gradient.transformer.wte.weight"]
//
// The same operators in the same order as emit_cpp, with the same functions and names, so the same bits. Throws
// UnsupportedError as emit_cpp does.

GeneratedCode emit_python(const Graph& graph, const CodegenOptions& options = {});

}  // namespace shadowgraph
