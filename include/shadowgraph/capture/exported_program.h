// torch.export archives: a graph with its signature, symbolic sizes and weights, read and run without Python.
//
//     auto program = shadowgraph::ExportedProgram::load("net.pt2");
//     shadowgraph::FakeTensorMode mode({.device = at::kCUDA, .map_devices_to_default = true});
//     program.make_fake(mode);
//     auto capture = shadowgraph::capture_forward(program.program(program.make_inputs()));
//
// Supports archives of torch.export.save of PyTorch 2.9 to 2.13 (schema version 8). Nodes are called as exported.
// Recorded nodes have the stack of modules, with their classes, and the Python source line of the exported node.
// Weights become fakes without being read; tied weights remain tied. See docs/captures.md for what is supported.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/export.h"

namespace SHADOWGRAPH_API shadowgraph {

class ExportedProgram {
 public:
  // Returns whether the file is a torch.export archive or a truncated one, judged by its contents. Never throws.
  static bool is_archive(const std::string& path);

  // Reads the graph without weights. Throws FileError if the file cannot be read. Throws Error if it is not such an
  // archive, is damaged, has another version, or contains script objects, a joint graph or compiled code.
  static ExportedProgram load(const std::string& path);
  ~ExportedProgram();
  ExportedProgram(ExportedProgram&&) noexcept;
  ExportedProgram& operator=(ExportedProgram&&) noexcept;

  // Returns a description of each user input, in order: "x f32[s77 = 4 (2 to 64), 8]".
  std::vector<std::string> inputs() const;

  // Creates fakes of parameters, buffers and constants on the mode's device, with floating-point ones converted to
  // `dtype` if given. The values of small integer tensors are read from the archive. Call once, in the mode.
  void make_fake(FakeTensorMode& mode, std::optional<c10::ScalarType> dtype = std::nullopt);
  // Returns the parameters without duplicates.
  std::vector<at::Tensor> parameters() const;

  // Creates input tensors on the active mode's device, with the sizes used for the export or those given, one spec per
  // input. Call after make_fake. Throws Error that names the input and dimension if a size contradicts the archive: a
  // static size, another size of the same symbol, a range.
  Tensors make_inputs(const std::vector<TensorSpec>& given = {});

  // Returns the forward program on inputs from make_inputs. Its outputs are the tensors in the result, including nested
  // ones, in order. Buffers and inputs are mutated as in the exported program. The loss is defined as for
  // ScriptProgram. The program refers to this object, which must outlive it. Errors name file, node and source line.
  ProgramToCapture program(Tensors inputs) const;

 private:
  struct State;
  explicit ExportedProgram(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace shadowgraph
