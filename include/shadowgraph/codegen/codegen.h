// Code generation: writes graphs as C++ or Python source code.
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
  // Namespace and base name of the files; converted to an identifier.
  std::string name = "graph";
  // Generate the code needed for these values and return them, named by `only_names` if of the same length; empty: all.
  std::vector<ValueId> only;
  std::vector<std::string> only_names;
  // Device that replaces all devices in the graph: a capture on fake CUDA as code for the CPU.
  std::optional<c10::Device> device;
  // Implementations of user-defined functions, by name: {"my::add_relu", {"my_library::add_relu", "my/add_relu.h"}}.
  // `from` is the header that declares it or, in Python, the module that contains `callee`: {"add_relu", "my.kernels"}.
  // The function is called with the schema's arguments, in order. Tensors are at::Tensor, lists of tensors
  // at::TensorList, numbers int64_t, double, bool or at::Scalar; several results are a std::tuple.
  struct Function {
    std::string callee;
    std::string from;
  };
  std::map<std::string, Function> functions;
  // Generate forward code for autograd, with checkpoint regions recomputed in backward. Forward graphs only.
  bool autograd = false;
  // Modules with fewer operators are inlined.
  int min_function_nodes = 6;
  // Functions with more statements are split.
  int max_function_items = 250;
  // Constants with more elements are stored in the constants file.
  int64_t max_embedded_elements = 32;
};

// Throws UnsupportedError with the node's text.
[[noreturn]] void refuse_node(const Graph& graph, NodeId node, const std::string& what);

// Generated source code, which depends on PyTorch only. Equal layers share one function.
struct GeneratedCode {
  std::map<std::string, std::string> files;                   // name -> text
  std::vector<std::pair<std::string, at::Tensor>> constants;  // in the constants file
  std::string constants_file;                                 // its name; "" if there is none
  int64_t functions = 0;                                      // number of functions
  int64_t calls = 0;                                          // number of their calls; higher for repeated blocks
  std::vector<std::string> libraries_of;                      // namespaces of operators outside of libtorch
};

// Sets `only` to the values that match the patterns, with wildcards * and ?. Values are named "%12" as in the text
// form, "output0", "gradient.layer.weight", or "layer.weight" (final value of a parameter, buffer or input). Throws
// UnsupportedError for a pattern without matches; the message lists the available names.
void choose_values(const Graph& graph, const std::vector<std::string>& patterns, CodegenOptions& options);

// Writes all files to `directory`, created if needed, each atomically, the constants file first. Throws FileError.
void write_code(const GeneratedCode& code, const std::string& directory);

// Generates C++ for a graph, or for the part needed for some values, that depends on libtorch only.
//
//     GeneratedCode code = emit_cpp(graph, {.name = "gpt2_step"});
//     write_code(code, "out");      // gpt2_step.cpp, gpt2_step.h, CMakeLists.txt, optionally gpt2_step_constants.pt
//
// gpt2_step.cpp is self-contained; gpt2_step.h declares its functions for callers:
//
//     namespace gpt2_step {
//     struct Inputs { at::Tensor transformer_wte_weight; ... };
//     struct Outputs { at::Tensor output0; at::Tensor gradient_of_transformer_wte_weight; ... };
//     Outputs run(Inputs in, std::optional<at::Generator> generator = std::nullopt);
//     std::map<std::string, at::Tensor> run_by_name(const std::map<std::string, at::Tensor>& tensors, ...);
//     }
//
// The code calls the operators of the graph in program order, so results are bitwise equal to those of the program.
// Tensors that are modified in place (parameters in an optimizer step) are modified in the caller's tensors.
//
// Throws UnsupportedError, naming the node, for functions without an implementation, opaque objects and constants whose
// contents are unavailable, and with `autograd` for a graph with a backward. Linear in the graph.

GeneratedCode emit_cpp(const Graph& graph, const CodegenOptions& options = {});

// Generates Python over torch.ops.
//
//     GeneratedCode code = emit_python(graph, {.name = "gpt2_step"});  // gpt2_step.py, maybe a constants file
//
//     import gpt2_step
//     outputs = gpt2_step.forward(tensors)        # {"transformer.wte.weight": tensor, ..., "input_ids": tensor}
//     outputs["output0"], outputs["gradient.transformer.wte.weight"]
//
// Has the same operators, order, functions and names as emit_cpp, bitwise equal results and the same errors.

GeneratedCode emit_python(const Graph& graph, const CodegenOptions& options = {});

}  // namespace shadowgraph
