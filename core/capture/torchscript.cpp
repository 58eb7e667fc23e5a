#include <ATen/ops/zeros.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/serialization/import.h>

#include <charconv>
#include <filesystem>

#include "core/capture/program_from_file.h"
#include "core/capture/recorder.h"
#include "core/capture/script_archive.h"
#include "core/capture/script_location.h"
#include "shadowgraph/capture.h"
#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

// TorchScript's optimising executor would specialise on the first shapes and differentiate on its own; the plain
// interpreter calls operators one by one. The switch is process-wide, so it is put back.
class PlainInterpreter {
 public:
  PlainInterpreter() : optimize_(torch::jit::getGraphExecutorOptimize()) {
    torch::jit::setGraphExecutorOptimize(false);
  }
  ~PlainInterpreter() { torch::jit::setGraphExecutorOptimize(optimize_); }
  PlainInterpreter(const PlainInterpreter&) = delete;
  PlainInterpreter& operator=(const PlainInterpreter&) = delete;

 private:
  bool optimize_;
};

// Nodes recorded while it lives carry the line of Python they come from.
class ScriptLocations {
 public:
  ScriptLocations()
      : recorder_(current_recorder()), outer_(recorder_ ? recorder_->set_locate(&script_location) : nullptr) {}
  ~ScriptLocations() {
    if (recorder_) recorder_->set_locate(outer_);
  }
  ScriptLocations(const ScriptLocations&) = delete;
  ScriptLocations& operator=(const ScriptLocations&) = delete;

 private:
  Recorder* recorder_;
  Recorder::Locate outer_;
};

void flatten(const c10::IValue& value, Tensors& tensors) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) tensors.push_back(value.toTensor());
  } else if (value.isTuple()) {
    for (const c10::IValue& element : value.toTupleRef().elements()) flatten(element, tensors);
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) flatten(element, tensors);
  } else if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) flatten(entry.value(), tensors);
  }
}

// Shortens an error. The interpreter puts what went wrong behind the source of every module on the way to it; this
// keeps that and the place.
std::string shortened(std::string_view message) {
  constexpr std::string_view kError = "\nRuntimeError: ";
  constexpr std::string_view kFrame = "\n  File \"";
  const size_t error = message.rfind(kError);
  if (error == std::string_view::npos) return std::string(message);
  std::string text(message.substr(error + kError.size()));
  while (text.ends_with('\n')) text.pop_back();
  const size_t frame = message.rfind(kFrame, error);
  if (frame != std::string_view::npos) {
    const std::string_view place = message.substr(frame + kFrame.size());
    text += " (at \"" + std::string(place.substr(0, place.find('\n'))) + ")";
  }
  return text;
}

// libtorch takes the sizes of storages as the file states them.
void check_weights(const torch::jit::Module& module, const std::string& path) {
  const uintmax_t file_bytes = std::filesystem::file_size(path);
  const auto check = [&](const auto& list) {
    for (const auto& [name, tensor] : list) {
      if (tensor.has_storage() && tensor.storage().nbytes() > file_bytes) {
        throw Error(path + " is damaged: " + name + " is said to be larger than the file");
      }
    }
  };
  check(module.named_parameters());
  check(module.named_buffers());
}

std::string text_of_error(const std::exception& error) {
  const auto* of_libtorch = dynamic_cast<const c10::Error*>(&error);
  return of_libtorch != nullptr ? of_libtorch->what_without_backtrace() : error.what();
}

void check_input_count(const c10::FunctionSchema& forward, size_t given) {
  const auto& arguments = forward.arguments();  // the first is the module itself
  size_t required = 0;
  std::string names;
  for (size_t i = 1; i < arguments.size(); ++i) {
    required += arguments[i].default_value().has_value() ? 0 : 1;
    names += (i == 1 ? "" : ", ") + arguments[i].name();
  }
  if (given < required || given + 1 > arguments.size()) {
    throw Error("forward takes " + std::to_string(arguments.size() - 1) + " inputs (" + names + "), but " +
                std::to_string(given) + " were given");
  }
}

// Prepares a graph for its first run, which folds what can be computed from constants. That must happen on real
// tensors: the results stay in the module, and are constants of the program, not calls that it makes.
void compile(const torch::jit::Module& module, const std::vector<c10::IValue>& arguments) {
  const UnfakeGuard real;
  torch::jit::Stack stack{module._ivalue()};
  stack.insert(stack.end(), arguments.begin(), arguments.end());
  auto& function = torch::jit::toGraphFunction(module.get_method("forward").function());
  function.get_executor().getPlanFor(stack);
}

struct DtypeName {
  std::string_view name;
  c10::ScalarType dtype;
};
constexpr DtypeName kDtypeNames[] = {
    {"f64", c10::ScalarType::Double},       {"f32", c10::ScalarType::Float},
    {"f16", c10::ScalarType::Half},         {"bf16", c10::ScalarType::BFloat16},
    {"i64", c10::ScalarType::Long},         {"i32", c10::ScalarType::Int},
    {"i16", c10::ScalarType::Short},        {"i8", c10::ScalarType::Char},
    {"u8", c10::ScalarType::Byte},          {"bool", c10::ScalarType::Bool},
    {"c64", c10::ScalarType::ComplexFloat}, {"c128", c10::ScalarType::ComplexDouble},
};

[[noreturn]] void refuse_spec(std::string_view text, const std::string& why) {
  throw Error("input '" + std::string(text) + "': " + why + "; write for example f32[8,3,224,224] or i64[2,128]");
}

}  // namespace

at::Tensor first_output_loss(const Tensors& outputs) {
  for (const at::Tensor& output : outputs) {
    if (output.is_floating_point() && output.requires_grad()) return output.dim() == 0 ? output : output.mean();
  }
  throw Error("no output is floating-point and requires grad, so there is nothing to train; use --mode infer");
}

std::string name_of_dtype(c10::ScalarType dtype) {
  for (const DtypeName& row : kDtypeNames) {
    if (row.dtype == dtype) return std::string(row.name);
  }
  return c10::toString(dtype);
}

at::Tensor TensorSpecText::make() const { return at::zeros(sizes, at::TensorOptions().dtype(dtype)); }

TensorSpecText parse_tensor_spec(std::string_view text) {
  TensorSpecText spec;
  const size_t bracket = text.find('[');
  if (bracket == std::string_view::npos || !text.ends_with(']')) refuse_spec(text, "the sizes in brackets are missing");
  const std::string_view dtype = text.substr(0, bracket);
  const auto found = std::find_if(std::begin(kDtypeNames), std::end(kDtypeNames),
                                  [&](const DtypeName& row) { return row.name == dtype; });
  if (found == std::end(kDtypeNames)) refuse_spec(text, "'" + std::string(dtype) + "' is not a dtype");
  spec.dtype = found->dtype;
  std::string_view rest = text.substr(bracket + 1, text.size() - bracket - 2);
  int64_t elements = 1;
  while (!rest.empty()) {
    int64_t size = 0;
    while (rest.starts_with(' ')) rest.remove_prefix(1);
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), size);
    if (error != std::errc() || size < 0) refuse_spec(text, "'" + std::string(rest) + "' does not start with a size");
    rest.remove_prefix(static_cast<size_t>(end - rest.data()));
    while (rest.starts_with(' ')) rest.remove_prefix(1);
    if (size != 0 && __builtin_mul_overflow(elements, size, &elements)) refuse_spec(text, "too many elements");
    spec.sizes.push_back(size);
    if (rest.empty()) break;
    if (rest.front() != ',' || rest.size() == 1) refuse_spec(text, "sizes are separated by single commas");
    rest.remove_prefix(1);
  }
  if (elements > (int64_t{1} << 58)) refuse_spec(text, "too many elements");
  return spec;
}

struct ScriptProgram::Module {
  torch::jit::Module module;
};

ScriptProgram::ScriptProgram(std::unique_ptr<Module> module) : module_(std::move(module)) {}
ScriptProgram::~ScriptProgram() = default;
ScriptProgram::ScriptProgram(ScriptProgram&&) noexcept = default;
ScriptProgram& ScriptProgram::operator=(ScriptProgram&&) noexcept = default;

ScriptProgram ScriptProgram::load(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) throw FileError("cannot read " + path + ": no such file");
  try {
    const UnfakeGuard real;
    check_script_archive(path);
    auto module = std::make_unique<Module>();
    module->module = torch::jit::load(path, c10::Device(c10::DeviceType::CPU));
    check_weights(module->module, path);
    return ScriptProgram(std::move(module));
  } catch (const Error&) {
    throw;
  } catch (const std::exception& load_error) {  // of the zip, of pickles, of the code
    throw Error(path +
                " is not a TorchScript file that this libtorch can load (save one in Python with "
                "torch.jit.trace(model, inputs).save(path)): " +
                text_of_error(load_error).substr(0, 300));
  }
}

void ScriptProgram::make_fake(FakeTensorMode& mode, std::optional<c10::ScalarType> dtype) {
  const auto convert = [&](const at::Tensor& real, bool is_parameter) {
    const at::NoGradGuard no_grad;
    at::Tensor fake = mode.from_real(real);
    if (dtype && at::isFloatingType(real.scalar_type()) && real.scalar_type() != *dtype) {
      fake = fake.to(*dtype).detach();
    }
    if (is_parameter) fake.set_requires_grad(real.requires_grad());
    return fake;
  };
  // One tensor may be an attribute of several modules (tied weights): the memo gives the same fake, converted ones
  // here.
  std::unordered_map<const c10::TensorImpl*, at::Tensor> converted;
  const auto fake_of = [&](const at::Tensor& real, bool is_parameter) {
    auto [entry, added] = converted.try_emplace(real.unsafeGetTensorImpl());
    if (added) entry->second = convert(real, is_parameter);
    return entry->second;
  };
  std::vector<at::Tensor> keep_real;  // addresses are keys above: nothing may be freed meanwhile
  for (torch::jit::Module submodule : module_->module.modules()) {
    for (const auto& parameter : submodule.named_parameters(/*recurse=*/false)) {
      keep_real.push_back(parameter.value);
      submodule.setattr(parameter.name, fake_of(parameter.value, true));
    }
    for (const auto& buffer : submodule.named_buffers(/*recurse=*/false)) {
      keep_real.push_back(buffer.value);
      submodule.setattr(buffer.name, fake_of(buffer.value, false));
    }
  }
}

void ScriptProgram::train(bool on) { module_->module.train(on); }

std::vector<at::Tensor> ScriptProgram::parameters() const {
  std::vector<at::Tensor> parameters;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const at::Tensor& parameter : module_->module.parameters()) {
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) parameters.push_back(parameter);
  }
  return parameters;
}

ProgramToCapture ScriptProgram::program(Tensors inputs) const {
  ProgramToCapture program;
  for (const auto& parameter : module_->module.named_parameters()) {
    program.parameters.emplace_back(parameter.name, parameter.value);
  }
  for (const auto& buffer : module_->module.named_buffers()) program.buffers.emplace_back(buffer.name, buffer.value);
  program.inputs = std::move(inputs);
  const auto schema = module_->module.get_method("forward").function().getSchema();
  check_input_count(schema, program.inputs.size());
  for (size_t i = 1; i < schema.arguments().size() && program.input_names.size() < program.inputs.size(); ++i) {
    program.input_names.push_back(schema.arguments()[i].name());
  }
  program.forward = [this](const Tensors& tensors) {
    const PlainInterpreter plain;
    std::vector<c10::IValue> arguments(tensors.begin(), tensors.end());
    Tensors outputs;
    try {
      compile(module_->module, arguments);
      const ScriptLocations locations;
      flatten(module_->module.forward(std::move(arguments)), outputs);
    } catch (const c10::Error&) {
      throw;
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {  // whatever an operator threw, once the interpreter has had it
      throw Error("the TorchScript program failed: " + shortened(error.what()));
    }
    return outputs;
  };
  program.loss = &first_output_loss;
  return program;
}

}  // namespace shadowgraph
