// Programs from torch.export archives: a graph with its signature, symbolic sizes and weights, read and run here
// without Python.
//
//     auto program = shadowgraph::ExportedProgram::load("net.pt2");
//     shadowgraph::FakeTensorMode mode({.device = at::kCUDA, .map_devices_to_default = true});
//     program.make_fake(mode);
//     auto capture = shadowgraph::capture_forward(program.program(program.make_inputs()));
//
// The archive is what torch.export.save of PyTorch 2.9 to 2.13 writes (schema version 8). Its nodes are called one by
// one, as they were exported: what was decided while exporting (train() or eval(), branches on sizes) stays so. Each
// node that is recorded carries the modules that it was called in, with their classes, and its line of Python. Weights
// become fakes by their sizes alone; tied ones stay tied. docs/captures.md says what is supported.
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
  // Whether the file is an archive of torch.export, or begins as one, by what it holds, not by its name. Never throws.
  static bool is_archive(const std::string& path);

  // Reads the graph, none of the weights. Throws FileError if there is no such file. Throws Error if it is no such
  // archive, is damaged, is of another version, or holds script objects, a joint graph or compiled code.
  static ExportedProgram load(const std::string& path);
  ~ExportedProgram();
  ExportedProgram(ExportedProgram&&) noexcept;
  ExportedProgram& operator=(ExportedProgram&&) noexcept;

  // The tensors that the user gives, in order: "x f32[s77 = 4 (2 to 64), 8]".
  std::vector<std::string> inputs() const;

  // Parameters, buffers and constants, on the mode's device; floating-point ones become `dtype` if one is given. Small
  // integers keep their values, which are read from the archive. Call once, with the mode active.
  void make_fake(FakeTensorMode& mode, std::optional<c10::ScalarType> dtype = std::nullopt);
  // Distinct ones.
  std::vector<at::Tensor> parameters() const;

  // Makes tensors to run on, on the active mode's device; call it after make_fake. They have the sizes that the program
  // was exported with, or those given, one for each input. Throws Error that names the input and the dimension if a
  // size contradicts the archive: a static one, another of the same symbol, a range.
  Tensors make_inputs(const std::vector<TensorSpecText>& given = {});

  // Forward on tensors of make_inputs: tensors of the result, nested or not, are the outputs, in order; numbers are
  // left out. Buffers and inputs that the program writes to are written to. The loss is that of ScriptProgram. The
  // program refers to this object, which must outlive it. An error within names the file, the node and its line.
  ProgramToCapture program(Tensors inputs) const;

 private:
  struct State;
  explicit ExportedProgram(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace shadowgraph
