// Programs from TorchScript files: traced or scripted in Python, loaded and run here without it.
//
//     auto script = shadowgraph::ScriptProgram::load("net.pt");
//     shadowgraph::FakeTensorMode mode({.device = at::kCUDA, .map_devices_to_default = true});
//     script.make_fake(mode);
//     auto capture = shadowgraph::capture_forward(script.program({shadowgraph::parse_tensor_spec("f32[8,3,224,224]").make()}),
//                                                 {.device = at::kCUDA, .map_devices_to_default = true});
//
// Loading reads the real weights; make_fake then replaces every parameter and buffer by a fake one and drops the data. A
// trace carries the device it was made on as constants: map_devices_to_default maps those to the mode's device.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/capture/capture.h"

namespace shadowgraph {

// "f32[8,3,224,224]": dtype (f64 f32 f16 bf16 i64 i32 i16 i8 u8 bool c64 c128) and sizes; "i64[]" is a scalar.
struct TensorSpecText {
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<int64_t> sizes;
  // A tensor of zeros on the active mode's device.
  at::Tensor make() const;
};
// Throws Error that says what is wrong and shows the form.
TensorSpecText parse_tensor_spec(std::string_view text);

class ScriptProgram {
 public:
  // Throws FileError if the file cannot be read, Error if it is not TorchScript.
  static ScriptProgram load(const std::string& path);
  ~ScriptProgram();
  ScriptProgram(ScriptProgram&&) noexcept;
  ScriptProgram& operator=(ScriptProgram&&) noexcept;

  // Floating-point parameters and buffers become `dtype` if one is given. Call once, with the mode active.
  void make_fake(FakeTensorMode& mode, std::optional<c10::ScalarType> dtype = std::nullopt);
  void train(bool on);

  std::vector<at::Tensor> parameters() const;
  // Forward on these inputs: tensors inside tuples, lists and dicts of the result are the outputs, in order. The loss is
  // the first output that is floating-point and requires grad: itself if it is a scalar, otherwise its mean.
  // The program refers to this object, which must outlive it.
  ProgramToCapture program(Tensors inputs) const;

 private:
  struct Module;
  explicit ScriptProgram(std::unique_ptr<Module> module);
  std::unique_ptr<Module> module_;
};

}  // namespace shadowgraph
