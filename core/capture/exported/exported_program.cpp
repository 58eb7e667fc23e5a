// Loads exported programs: creates fake weights and validates the user's inputs against the archive.
#include "shadowgraph/capture/exported_program.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <cstring>

#include "core/capture/exported/executor.h"
#include "core/capture/program_from_file.h"
#include "core/fake/known_contents.h"
#include "shadowgraph/error.h"

namespace shadowgraph {

namespace {

struct BoundInputs {
  std::vector<TensorSpec> tensors;            // of the user's tensors, in order
  std::vector<std::vector<int64_t>> strides;  // parallel; empty: contiguous
  std::vector<bool> requires_grad;
  SymbolValues symbols;
};

std::string range_text(const SymbolRange& range) {
  constexpr int64_t kEffectivelyUnbounded = int64_t{1} << 40;  // "no bound" is saved as one of several large numbers
  if (range.most >= kEffectivelyUnbounded) return "at least " + std::to_string(range.least);
  return std::to_string(range.least) + " to " + std::to_string(range.most);
}

std::string dimension_text(const SymbolicSize& size, const std::map<std::string, SymbolRange>& ranges) {
  if (!size.expression) return std::to_string(size.value);
  std::string text = size.expression->to_string();
  const auto range = ranges.find(text);
  if (size.value >= 0) text += " = " + std::to_string(size.value);
  if (range != ranges.end()) text += " (" + range_text(range->second) + ")";
  return text;
}

bool is_user_input(const SavedInput& spec) { return spec.kind == SavedInput::Kind::kUser; }
bool is_user_tensor(const SavedInput& spec) { return is_user_input(spec) && spec.geometry; }

class InputBinder {
 public:
  InputBinder(const SavedProgram& program, const std::string& path) : program_(program), path_(path) {}

  SymbolValues& symbols() { return symbols_; }

  // Solves the size for a symbol that has no value yet.
  void bind(const SavedInput& spec, size_t dimension, int64_t given) {
    const SymbolicSize& size = spec.geometry->sizes[dimension];
    if (!size.expression) return;
    const auto symbol = size.expression->unknown(symbols_);
    if (!symbol) return;
    const auto value = size.expression->solve(*symbol, given, symbols_);
    if (!value) return;
    const auto range = program_.ranges.find(*symbol);
    if (range != program_.ranges.end() && (*value < range->second.least || *value > range->second.most)) {
      refuse(spec, dimension, given,
             *symbol + " must be " + range_text(range->second) +
                 (size.expression->to_string() == *symbol ? "" : ", not " + std::to_string(*value)));
    }
    symbols_[*symbol] = *value;
  }

  void check(const SavedInput& spec, size_t dimension, int64_t given) const {
    const SymbolicSize& size = spec.geometry->sizes[dimension];
    if (!size.expression) {
      if (size.value != given) refuse(spec, dimension, given, "the archive fixes it at " + std::to_string(size.value));
      return;
    }
    const auto expected = size.expression->evaluate(symbols_);
    if (expected && *expected != given) {
      refuse(spec, dimension, given,
             "it equals " + size.expression->to_string() + ", which is " + std::to_string(*expected) +
                 " for the other sizes given");
    }
    if (!expected && size.expression->unknown(symbols_)) {
      refuse(spec, dimension, given, "it equals " + size.expression->to_string());
    }
  }

 private:
  [[noreturn]] void refuse(const SavedInput& spec, size_t dimension, int64_t given, const std::string& why) const {
    throw Error(path_ + ": dimension " + std::to_string(dimension) + " of input '" + spec.name + "' cannot be " +
                std::to_string(given) + ": " + why);
  }

  const SavedProgram& program_;
  const std::string& path_;
  SymbolValues symbols_;
};

TensorSpec example_of(const SavedInput& spec, const std::string& path, c10::ScalarType dtype) {
  TensorSpec example{.dtype = dtype};
  for (size_t i = 0; i < spec.geometry->sizes.size(); ++i) {
    const int64_t size = spec.geometry->sizes[i].value;
    if (size < 0) {
      throw Error(path + " has no example size for dimension " + std::to_string(i) + " of input '" + spec.name +
                  "'; specify the input sizes");
    }
    example.sizes.push_back(size);
  }
  return example;
}

// Returns the archive's strides; empty if they are contiguous.
std::vector<int64_t> strides_for(const SavedGeometry& geometry, const std::vector<int64_t>& sizes,
                                 const SymbolValues& symbols) {
  std::vector<int64_t> strides;
  for (const SymbolicSize& stride : geometry.strides) {
    const auto value = stride.expression ? stride.expression->evaluate(symbols) : std::optional(stride.value);
    if (!value || *value < 0) return {};
    strides.push_back(*value);
  }
  int64_t contiguous = 1;
  bool differs = false;
  for (size_t i = sizes.size(); i-- > 0;) {
    differs = differs || (strides[i] != contiguous && sizes[i] > 1);
    contiguous *= std::max<int64_t>(sizes[i], 1);
  }
  return differs ? strides : std::vector<int64_t>();
}

// Describes the user's tensor inputs in order: "x f32[s77 = 4 (2 to 64), 8]".
std::vector<std::string> describe_inputs(const SavedProgram& program) {
  std::vector<std::string> texts;
  for (const SavedInput& spec : program.inputs) {
    if (!is_user_tensor(spec)) continue;
    std::vector<std::string> sizes;
    for (const SymbolicSize& size : spec.geometry->sizes) sizes.push_back(dimension_text(size, program.ranges));
    texts.push_back(spec.name + " " + name_of_dtype(spec.geometry->dtype) + "[" + c10::Join(", ", sizes) + "]");
  }
  return texts;
}

// `given` has one entry for each tensor input, or is empty to use the sizes of the example inputs. Floating-point
// inputs are expected to be `dtype` if it is given. Throws Error that names the input and the dimension.
BoundInputs bind_inputs(const SavedProgram& program, const std::string& path, std::span<const TensorSpec> given,
                        std::optional<c10::ScalarType> dtype) {
  std::vector<const SavedInput*> specs;
  for (const SavedInput& spec : program.inputs) {
    if (is_user_tensor(spec)) specs.push_back(&spec);
  }
  if (!given.empty() && given.size() != specs.size()) {
    throw Error(path + " takes " + std::to_string(specs.size()) + " inputs (" +
                c10::Join(", ", describe_inputs(program)) + "), but " + std::to_string(given.size()) + " were given");
  }
  BoundInputs bound;
  for (size_t i = 0; i < specs.size(); ++i) {
    const SavedGeometry& geometry = *specs[i]->geometry;
    const c10::ScalarType expected = dtype && at::isFloatingType(geometry.dtype) ? *dtype : geometry.dtype;
    bound.tensors.push_back(given.empty() ? example_of(*specs[i], path, expected) : given[i]);
    const TensorSpec& spec = bound.tensors.back();
    if (spec.dtype != expected) {
      throw Error(path + ": input '" + specs[i]->name + "' must be " + name_of_dtype(expected) + ", not " +
                  name_of_dtype(spec.dtype));
    }
    if (spec.sizes.size() != geometry.sizes.size()) {
      throw Error(path + ": input '" + specs[i]->name + "' must have " + std::to_string(geometry.sizes.size()) +
                  " dimensions, not " + std::to_string(spec.sizes.size()));
    }
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    int64_t elements = 1;
    for (const int64_t size : bound.tensors[i].sizes) {
      if (size != 0 && (__builtin_mul_overflow(elements, size, &elements) || elements > (int64_t{1} << 58))) {
        throw Error(path + ": input '" + specs[i]->name + "' has too many elements (at most 2^58)");
      }
    }
  }
  InputBinder binder(program, path);
  const auto for_each_size = [&](auto f) {
    for (size_t i = 0; i < specs.size(); ++i) {
      for (size_t d = 0; d < bound.tensors[i].sizes.size(); ++d) f(*specs[i], d, bound.tensors[i].sizes[d]);
    }
  };
  // Two rounds: one input may have s0 + s1, and a later one s1.
  for (int round = 0; round < 2; ++round) {
    for_each_size([&](const SavedInput& spec, size_t d, int64_t size) { binder.bind(spec, d, size); });
  }
  for_each_size([&](const SavedInput& spec, size_t d, int64_t size) { binder.check(spec, d, size); });
  bound.symbols = std::move(binder.symbols());
  for (size_t i = 0; i < specs.size(); ++i) {
    bound.strides.push_back(strides_for(*specs[i]->geometry, bound.tensors[i].sizes, bound.symbols));
    bound.requires_grad.push_back(specs[i]->geometry->requires_grad);
  }
  return bound;
}

// Returns the value of an integer input: derived from the tensors' sizes, or else that of the example.
int64_t number_for(const SavedInput& spec, const SymbolValues& symbols, const std::string& path) {
  const auto value = spec.number.expression ? spec.number.expression->evaluate(symbols) : std::nullopt;
  if (value) return *value;
  if (spec.number.expression && spec.number.value < 0) {
    throw Error(path + " has no example value for the integer input '" + spec.name + "'");
  }
  return spec.number.value;
}

// Parameters, buffers and constants of an exported program as fake tensors.
struct FakeWeights {
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> idle;  // parallel to program.idle
};

// Position ids and masks of small models fit; anything larger is more likely a lookup table.
constexpr size_t kMaxBytesRead = 64 * 1024;

struct FixedGeometry {
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;
  auto operator<=>(const FixedGeometry&) const = default;
};

// All weights in one record of the archive.
struct SharedRecord {
  at::Tensor base;   // 1-D over the whole record; created on demand
  at::Tensor whole;  // the first weight, if it covers the record
  std::map<FixedGeometry, at::Tensor> tensors;
};

class WeightBuilder {
 public:
  WeightBuilder(const ExportArchive& archive, std::optional<c10::ScalarType> dtype)
      : archive_(archive), dtype_(dtype) {}

  at::Tensor make(const SavedInput& spec, const SavedPayload& payload) {
    const FixedGeometry geometry = fixed(spec, payload.geometry);
    SharedRecord& record = records_[payload.record];
    at::Tensor& tensor = record.tensors[geometry];
    if (tensor.defined()) return tensor;
    const c10::ScalarType target_dtype = dtype_ && at::isFloatingType(geometry.dtype) ? *dtype_ : geometry.dtype;
    const auto options = at::TensorOptions().dtype(target_dtype);
    const at::NoGradGuard no_grad;
    const int64_t elements = elements_of(spec, payload, geometry);
    const bool is_first = record.tensors.size() == 1;
    if (is_first && geometry.offset == 0 && elements == extent(spec, geometry)) {
      tensor = record.whole = at::empty_strided(geometry.sizes, geometry.strides, options);
    } else {
      if (!record.base.defined()) {
        record.base = record.whole.defined() ? record.whole.as_strided({elements}, {1}, 0).detach()
                                             : at::empty({elements}, options);
      }
      if (record.base.scalar_type() != target_dtype) refuse(spec, "shares a record with a weight of a different dtype");
      tensor = record.base.as_strided(geometry.sizes, geometry.strides, geometry.offset).detach();
    }
    if (spec.kind != SavedInput::Kind::kParameter && target_dtype == geometry.dtype)
      read_contents(payload, geometry, tensor);
    if (spec.kind == SavedInput::Kind::kParameter &&
        (at::isFloatingType(target_dtype) || at::isComplexType(target_dtype))) {
      tensor.set_requires_grad(payload.geometry.requires_grad);
    }
    return tensor;
  }

 private:
  [[noreturn]] void refuse(const SavedInput& spec, const std::string& why) const {
    throw Error(archive_.path() + " is damaged: weight '" + spec.target + "' " + why);
  }

  FixedGeometry fixed(const SavedInput& spec, const SavedGeometry& geometry) const {
    FixedGeometry result{.dtype = geometry.dtype};
    const auto number = [&](const SymbolicSize& size) {
      if (size.expression) refuse(spec, "has a symbolic geometry");
      return size.value;
    };
    for (const SymbolicSize& size : geometry.sizes) result.sizes.push_back(number(size));
    for (const SymbolicSize& stride : geometry.strides) result.strides.push_back(number(stride));
    result.offset = number(geometry.offset);
    if (result.offset < 0) refuse(spec, "has a negative offset");
    return result;
  }

  // Returns the number of elements from the start of the storage to the tensor's last one.
  int64_t extent(const SavedInput& spec, const FixedGeometry& geometry) const {
    int64_t last = geometry.offset;
    for (size_t i = 0; i < geometry.sizes.size(); ++i) {
      if (geometry.sizes[i] == 0) return 0;
      int64_t reach = 0;
      if (__builtin_mul_overflow(geometry.sizes[i] - 1, geometry.strides[i], &reach) ||
          __builtin_add_overflow(last, reach, &last) || last >= (int64_t{1} << 58)) {
        refuse(spec, "has too many elements");
      }
    }
    return last + 1;
  }

  int64_t elements_of(const SavedInput& spec, const SavedPayload& payload, const FixedGeometry& geometry) const {
    const int64_t extent = this->extent(spec, geometry);
    const auto bytes = static_cast<int64_t>(archive_.size_of(payload.record));
    // A model exported under FakeTensorMode has no data.
    if (bytes == 0) return extent;
    const int64_t elements = bytes / static_cast<int64_t>(c10::elementSize(geometry.dtype));
    if (elements < extent) refuse(spec, "is larger than its record " + payload.record);
    return elements;
  }

  void read_contents(const SavedPayload& payload, const FixedGeometry& geometry, const at::Tensor& fake) const {
    const size_t bytes = archive_.size_of(payload.record);
    const bool may_decide = c10::isIntegralType(geometry.dtype, /*includeBool=*/true) || fake.numel() == 1;
    if (!may_decide || bytes == 0 || bytes > kMaxBytesRead) return;
    const std::string contents = archive_.bytes_of(payload.record);
    const RealCalls real_calls;
    const auto elements = static_cast<int64_t>(bytes / c10::elementSize(geometry.dtype));
    at::Tensor real = at::empty({elements}, at::TensorOptions().dtype(geometry.dtype).device(at::kCPU));
    std::memcpy(real.mutable_data_ptr(), contents.data(), real.nbytes());
    set_contents(fake, real.as_strided(geometry.sizes, geometry.strides, geometry.offset));
  }

  const ExportArchive& archive_;
  std::optional<c10::ScalarType> dtype_;
  std::map<std::string, SharedRecord> records_;
};

// `inputs` is parallel to program.inputs, undefined for user inputs. All are on the active mode's device. Weights in
// the same record share a storage; those of the same geometry are one tensor. Floating-point weights become `dtype`.
// Data is read only where its values may affect control flow or shapes: single numbers, and integer or boolean tensors
// that are not parameters, up to 64 KiB.
FakeWeights make_weights(const ExportArchive& archive, const SavedProgram& program,
                         std::optional<c10::ScalarType> dtype) {
  WeightBuilder maker(archive, dtype);
  const auto make = [&](const SavedInput& spec) {
    if (spec.kind == SavedInput::Kind::kUser || spec.kind == SavedInput::Kind::kConstant) return at::Tensor();
    const auto payload = program.payloads.find(spec.target);
    if (payload == program.payloads.end()) {
      throw Error(archive.path() + " is damaged: weight '" + spec.target + "' is missing");
    }
    try {
      return maker.make(spec, payload->second);
    } catch (const c10::Error& error) {
      throw Error(archive.path() + ": weight '" + spec.target + "': " + error.what_without_backtrace());
    }
  };
  FakeWeights weights;
  for (const SavedInput& spec : program.inputs) weights.inputs.push_back(make(spec));
  for (const SavedInput& spec : program.idle) weights.idle.push_back(make(spec));
  return weights;
}

}  // namespace

struct ExportedProgram::State {
  explicit State(const std::string& path) : archive(path), saved(read_program(archive)) {}

  ExportArchive archive;
  SavedProgram saved;
  std::optional<c10::ScalarType> dtype;
  FakeWeights weights;
  SymbolValues symbols;  // of the latest make_inputs()

  // Calls f(spec, tensor) for parameters, buffers and constants; those not used by the graph come last.
  template <class F>
  void for_each_weight(F f) const {
    for (size_t i = 0; i < weights.inputs.size(); ++i) {
      if (weights.inputs[i].defined()) f(saved.inputs[i], weights.inputs[i]);
    }
    for (size_t i = 0; i < weights.idle.size(); ++i) f(saved.idle[i], weights.idle[i]);
  }
};

namespace {

// Returns the index of the graph input that a mutation writes to.
size_t target_of_mutation(const SavedProgram& saved, const SavedOutput& output, const std::string& path) {
  for (size_t i = 0; i < saved.inputs.size(); ++i) {
    const SavedInput& input = saved.inputs[i];
    const bool of_user = output.kind == SavedOutput::Kind::kUserInputMutation;
    if (of_user ? is_user_input(input) && input.name == output.target : input.target == output.target) return i;
  }
  throw Error(path + " is damaged: it writes to '" + output.target + "', which is not one of its inputs");
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

bool ExportedProgram::is_archive(const std::string& path) { return ExportArchive::looks_like_archive(path); }

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

Tensors ExportedProgram::make_inputs(const std::vector<TensorSpec>& given) {
  BoundInputs bound = bind_inputs(state_->saved, state_->archive.path(), given, state_->dtype);
  state_->symbols = std::move(bound.symbols);
  Tensors tensors;
  for (size_t i = 0; i < bound.tensors.size(); ++i) {
    const TensorSpec& spec = bound.tensors[i];
    try {
      tensors.push_back(bound.strides[i].empty()
                            ? spec.make()
                            : at::empty_strided(spec.sizes, bound.strides[i], at::TensorOptions().dtype(spec.dtype)));
      if (bound.requires_grad[i]) tensors.back().set_requires_grad(true);
    } catch (const c10::Error& error) {
      throw Error(state_->archive.path() + ": cannot create input " + std::to_string(i) + ": " +
                  error.what_without_backtrace());
    }
  }
  return tensors;
}

ProgramToCapture ExportedProgram::program(Tensors inputs) const {
  const SavedProgram& saved = state_->saved;
  const std::string& path = state_->archive.path();
  if (state_->weights.inputs.size() != saved.inputs.size()) throw Error(path + ": call make_fake() before program()");
  ProgramToCapture program;
  state_->for_each_weight([&](const SavedInput& spec, const at::Tensor& weight) {
    auto& list = spec.kind == SavedInput::Kind::kParameter ? program.parameters : program.buffers;
    list.emplace_back(spec.target, weight);
  });
  for (const SavedInput& spec : saved.inputs) {
    if (is_user_tensor(spec)) program.input_names.push_back(spec.name);
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
      if (is_user_input(spec)) {
        arguments.push_back(spec.geometry ? c10::IValue(tensors.at(next++))
                                          : c10::IValue(number_for(spec, state_->symbols, path)));
      } else {
        const at::Tensor& weight = state_->weights.inputs[i];
        arguments.push_back(weight.defined() ? c10::IValue(weight) : c10::IValue());
      }
    }
    const std::vector<c10::IValue> written = arguments;  // the caller and this object hold them as well
    const std::vector<c10::IValue> results = run_exported(saved, path, std::move(arguments));
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
