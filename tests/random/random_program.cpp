#include <c10/core/GradMode.h>

#include <cstring>
#include <span>
#include <sstream>

#include "tests/random/program.h"
#include "tests/random/program_maker.h"

namespace shadowgraph::testing {

Registers fresh_inputs(const RandomProgramBody& body) {
  Registers inputs;
  for (const RandomProgramBody::Input& input : body.inputs) {
    c10::Storage storage;
    if (input.shares_with >= 0) {
      storage = inputs[static_cast<size_t>(input.shares_with)].storage();
    } else {
      const c10::Storage& original = input.original.storage();
      const at::Tensor copy = at::empty({static_cast<int64_t>(original.nbytes())}, at::kByte);
      if (original.nbytes() != 0) std::memcpy(copy.mutable_data_ptr(), original.data(), original.nbytes());
      storage = copy.storage();
    }
    at::Tensor tensor = at::empty({0}, input.original.scalar_type());
    tensor.set_(storage, input.original.storage_offset(), input.original.sizes(), input.original.strides());
    inputs.push_back(std::move(tensor));
  }
  return inputs;
}

RandomProgram RandomProgram::make(uint64_t seed, int size, const RandomProgramOptions& options) {
  return RandomProgram(seed, ProgramMaker(seed, options).make(size));
}

RandomProgram::Tensors RandomProgram::inputs() const { return fresh_inputs(*body_); }

RandomProgram::Tensors RandomProgram::run(const Tensors& inputs) const {
  const c10::NoGradGuard no_grad;
  Registers registers = inputs;
  for (const RandomInstruction& instruction : body_->instructions) {
    const Tensors results = instruction.row->run(instruction, registers);
    registers.insert(registers.end(), results.begin(), results.end());
  }
  Tensors outputs;
  for (const int output : body_->outputs) outputs.push_back(registers[static_cast<size_t>(output)]);
  return outputs;
}

std::string RandomProgram::describe() const {
  std::ostringstream text;
  const auto write_list = [&](const auto& list) {
    text << '[';
    for (size_t i = 0; i < list.size(); ++i) text << (i == 0 ? "" : ", ") << list[i];
    text << ']';
  };
  text << "random program, seed " << seed_ << '\n';
  for (size_t i = 0; i < body_->inputs.size(); ++i) {
    const at::Tensor& input = body_->inputs[i].original;
    text << "  %" << i << " = input " << input.scalar_type() << input.sizes() << input.strides() << '+'
         << input.storage_offset();
    if (body_->inputs[i].shares_with >= 0) text << " on the storage of %" << body_->inputs[i].shares_with;
    text << '\n';
  }
  for (const RandomInstruction& instruction : body_->instructions) {
    text << "  ";
    if (instruction.out >= 0) text << '%' << instruction.out << " = ";
    text << instruction.row->name << '(';
    for (const int operand : instruction.in) {
      if (operand < 0) {
        text << "new, ";
      } else {
        text << '%' << operand << ", ";
      }
    }
    if (!instruction.ints.empty()) write_list(instruction.ints);
    if (instruction.constant.defined()) {
      const auto* indices = instruction.constant.const_data_ptr<int64_t>();
      text << " indices ";
      write_list(std::span(indices, static_cast<size_t>(instruction.constant.numel())));
    }
    text << ' ' << instruction.number << ")\n";
  }
  text << "  return ";
  write_list(body_->outputs);
  text << '\n';
  return text.str();
}

}  // namespace shadowgraph::testing
