#include "shadowgraph/exported_program.h"

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>

#include <unordered_set>

#include "core/capture/program_from_file.h"
#include "core/exported/archive.h"
#include "core/exported/executor.h"
#include "core/exported/inputs.h"
#include "core/exported/program.h"
#include "core/exported/weights.h"
#include "shadowgraph/error.h"

namespace shadowgraph {

struct ExportedProgram::State {
  explicit State(const std::string& path) : archive(path), saved(read_program(archive)) {}

  ExportArchive archive;
  SavedProgram saved;
  std::optional<c10::ScalarType> dtype;
  MadeWeights weights;
  SymbolValues symbols;  // of the inputs made last

  // Calls f(spec, tensor) for parameters, buffers and constants; those that the graph does not take come last.
  template <class F>
  void for_each_weight(F f) const {
    for (size_t i = 0; i < weights.inputs.size(); ++i) {
      if (weights.inputs[i].defined()) f(saved.inputs[i], weights.inputs[i]);
    }
    for (size_t i = 0; i < weights.idle.size(); ++i) f(saved.idle[i], weights.idle[i]);
  }
};

namespace {

void add_tensors(const c10::IValue& value, Tensors& tensors) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) tensors.push_back(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) add_tensors(element, tensors);
  }
}

bool is_of_user(const SavedInput& spec) { return spec.kind == SavedInput::Kind::kUser; }

// Returns what a mutation writes to, among the inputs of the graph.
size_t target_of_mutation(const SavedProgram& saved, const SavedOutput& output, const std::string& path) {
  for (size_t i = 0; i < saved.inputs.size(); ++i) {
    const SavedInput& input = saved.inputs[i];
    const bool of_user = output.kind == SavedOutput::Kind::kUserInputMutation;
    if (of_user ? is_of_user(input) && input.name == output.target : input.target == output.target) return i;
  }
  throw Error(path + " is damaged: it writes to '" + output.target + "', which is none of its inputs");
}

void write_back(const at::Tensor& target, const at::Tensor& value, const SavedOutput& output, const std::string& path) {
  try {
    target.copy_(value);
  } catch (const c10::Error& error) {
    throw Error(path + ": writing to '" + output.target + "': " + error.what_without_backtrace());
  }
}

}  // namespace

ExportedProgram::ExportedProgram(std::unique_ptr<State> state) : state_(std::move(state)) {}
ExportedProgram::~ExportedProgram() = default;
ExportedProgram::ExportedProgram(ExportedProgram&&) noexcept = default;
ExportedProgram& ExportedProgram::operator=(ExportedProgram&&) noexcept = default;

bool ExportedProgram::is_archive(const std::string& path) { return ExportArchive::looks_like_one(path); }

ExportedProgram ExportedProgram::load(const std::string& path) {
  return ExportedProgram(std::make_unique<State>(path));
}

std::vector<std::string> ExportedProgram::inputs() const { return describe_inputs(state_->saved); }

void ExportedProgram::make_fake(FakeTensorMode& /*active*/, std::optional<c10::ScalarType> dtype) {
  state_->dtype = dtype;
  state_->weights = make_weights(state_->archive, state_->saved, dtype);
}

std::vector<at::Tensor> ExportedProgram::parameters() const {
  std::vector<at::Tensor> parameters;
  std::unordered_set<const c10::TensorImpl*> seen;
  state_->for_each_weight([&](const SavedInput& spec, const at::Tensor& weight) {
    if (spec.kind == SavedInput::Kind::kParameter && seen.insert(weight.unsafeGetTensorImpl()).second) {
      parameters.push_back(weight);
    }
  });
  return parameters;
}

Tensors ExportedProgram::make_inputs(const std::vector<TensorSpecText>& given) {
  BoundInputs bound = bind_inputs(state_->saved, state_->archive.path(), given, state_->dtype);
  state_->symbols = std::move(bound.symbols);
  Tensors tensors;
  for (size_t i = 0; i < bound.tensors.size(); ++i) {
    const TensorSpecText& spec = bound.tensors[i];
    try {
      tensors.push_back(bound.strides[i].empty()
                            ? spec.make()
                            : at::empty_strided(spec.sizes, bound.strides[i], at::TensorOptions().dtype(spec.dtype)));
      if (bound.requires_grad[i]) tensors.back().set_requires_grad(true);
    } catch (const c10::Error& error) {
      throw Error(state_->archive.path() + ": an input: " + error.what_without_backtrace());
    }
  }
  return tensors;
}

ProgramToCapture ExportedProgram::program(Tensors inputs) const {
  const SavedProgram& saved = state_->saved;
  const std::string& path = state_->archive.path();
  if (state_->weights.inputs.size() != saved.inputs.size()) throw Error(path + ": make_fake comes before program");
  ProgramToCapture program;
  state_->for_each_weight([&](const SavedInput& spec, const at::Tensor& weight) {
    auto& list = spec.kind == SavedInput::Kind::kParameter ? program.parameters : program.buffers;
    list.emplace_back(spec.target, weight);
  });
  for (const SavedInput& spec : saved.inputs) {
    if (is_of_user(spec) && spec.geometry) program.input_names.push_back(spec.name);
  }
  if (inputs.size() != program.input_names.size()) {
    throw Error(path + " takes " + std::to_string(program.input_names.size()) + " tensors, but " +
                std::to_string(inputs.size()) + " were given");
  }
  program.inputs = std::move(inputs);
  for (const SavedOutput& output : saved.outputs) {
    if (output.kind != SavedOutput::Kind::kUser) target_of_mutation(saved, output, path);
  }
  program.forward = [this](const Tensors& tensors) {
    const SavedProgram& saved = state_->saved;
    const std::string& path = state_->archive.path();
    std::vector<c10::IValue> arguments;
    size_t next = 0;
    for (size_t i = 0; i < saved.inputs.size(); ++i) {
      const SavedInput& spec = saved.inputs[i];
      if (is_of_user(spec)) {
        arguments.push_back(spec.geometry ? c10::IValue(tensors.at(next++))
                                          : c10::IValue(number_for(spec, state_->symbols, path)));
      } else {
        const at::Tensor& weight = state_->weights.inputs[i];
        arguments.push_back(weight.defined() ? c10::IValue(weight) : c10::IValue());
      }
    }
    const std::vector<c10::IValue> written = arguments;  // no more than the caller and this object hold
    const std::vector<c10::IValue> results = ExportedExecutor(saved, path).run(std::move(arguments));
    Tensors outputs;
    for (size_t i = 0; i < results.size() && i < saved.outputs.size(); ++i) {
      const SavedOutput& spec = saved.outputs[i];
      if (spec.kind == SavedOutput::Kind::kUser) {
        add_tensors(results[i], outputs);
      } else if (results[i].isTensor()) {
        const c10::IValue& target = written[target_of_mutation(saved, spec, path)];
        if (target.isTensor()) write_back(target.toTensor(), results[i].toTensor(), spec, path);
      }
    }
    return outputs;
  };
  program.loss = [path](const Tensors& outputs) {
    try {
      return first_output_loss(outputs);
    } catch (const Error& error) {
      throw Error(path + ": " + error.what());
    }
  };
  return program;
}

}  // namespace shadowgraph
