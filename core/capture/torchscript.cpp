#include <ATen/core/ivalue.h>
#include <ATen/ops/zeros.h>
#include <caffe2/serialize/inline_container.h>
#include <fmt/format.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>

#include "core/capture/program_from_file.h"
#include "core/capture/recorder.h"
#include "core/libtorch/error_text.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/units.h"

namespace shadowgraph {
namespace {

// Operands of a pickle opcode: a number of bytes, a number of lines, or a length field followed by that many bytes.
// `memo`: `bytes` hold a memo index.
struct PickleOperand {
  const char* opcodes;
  int bytes = 0, lines = 0, length = 0;
  bool memo = false;
};

constexpr PickleOperand kPickleOperands[] = {
    {.opcodes = "(.012NQRbdeaslotu})]\x81\x85\x86\x87\x88\x89\x8f\x90\x91\x92\x93\x94"},
    {.opcodes = "K\x80\x82", .bytes = 1},
    {.opcodes = "M\x83", .bytes = 2},
    {.opcodes = "J\x84", .bytes = 4},
    {.opcodes = "G\x95", .bytes = 8},
    {.opcodes = "FILVSPpg", .lines = 1},
    {.opcodes = "ci", .lines = 2},
    {.opcodes = "UC\x8a\x8c", .length = 1},
    {.opcodes = "TXB\x8b", .length = 4},
    {.opcodes = "\x8d\x8e", .length = 8},
    {.opcodes = "qh", .bytes = 1, .memo = true},
    {.opcodes = "rj", .bytes = 4, .memo = true},
};

}  // namespace

void check_pickle_sizes(std::string_view pickle) {
  size_t at = 0;
  const auto fail = [&](const std::string& what) { throw Error("byte " + std::to_string(at) + ": " + what); };
  const auto number = [&](int bytes) {
    if (pickle.size() - at < static_cast<size_t>(bytes)) fail("truncated within an opcode");
    uint64_t value = 0;
    for (int i = 0; i < bytes; ++i) {
      value |= uint64_t{static_cast<unsigned char>(pickle[at + static_cast<size_t>(i)])} << (8 * i);
    }
    at += static_cast<size_t>(bytes);
    return value;
  };
  while (at < pickle.size()) {
    const char opcode = pickle[at];
    const auto* operand = std::ranges::find_if(
        kPickleOperands, [&](const auto& row) { return std::string_view(row.opcodes).find(opcode) != pickle.npos; });
    if (operand == std::end(kPickleOperands)) return fail("not a pickle opcode");
    ++at;
    const uint64_t value = number(operand->bytes);
    if (operand->memo && value > pickle.size()) fail("a memo index is larger than the record");
    for (int i = 0; i < operand->lines; ++i) {
      const size_t end = pickle.find('\n', at);
      if (end == std::string_view::npos) fail("unterminated line");
      at = end + 1;
    }
    const uint64_t length = number(operand->length);
    if (length > pickle.size() - at) fail("a length exceeds the rest of the record");
    at += length;
    if (opcode == '.') return;
  }
  fail("truncated");
}

// ---- Validates what libtorch's TorchScript reader trusts: sizes of records and in pickles, indices in debug records,
// the nesting depth of code.

namespace {

// TorchScript's parser recurses into brackets, nested blocks and operator chains.
constexpr int kMaxCodeDepth = 500;
constexpr size_t kMaxExpressionLength = 4000;  // characters without a comma or newline, outside of strings

void demand(bool holds, const std::string& what) {
  if (!holds) throw Error(what);
}

void check_code(std::string_view code) {
  int depth = 0;
  size_t length = 0;
  size_t blanks = 0;  // indentation
  char quote = 0;
  for (size_t at = 0; at < code.size(); ++at) {
    const char c = code[at];
    if (quote != 0) {
      at += c == '\\' ? 1 : 0;
      if (c == quote) quote = 0;
      continue;
    }
    if (c == '"' || c == '\'') quote = c;
    length = c == ',' || c == '\n' ? 0 : length + 1;
    blanks = c == '\n' ? 0 : blanks + (c == ' ' && blanks + 1 == length ? 1 : 0);
    depth += c == '(' || c == '[' || c == '{' ? 1 : 0;
    depth -= c == ')' || c == ']' || c == '}' ? 1 : 0;
    demand(depth < kMaxCodeDepth, "brackets are nested too deeply");
    demand(blanks < 2 * size_t{kMaxCodeDepth}, "blocks are nested too deeply");
    demand(length < kMaxExpressionLength, "an expression is too long");
  }
}

// The result refers to `tuple`.
const c10::ivalue::TupleElements& elements_of(const c10::IValue& tuple, size_t least) {
  demand(tuple.isTuple(), "a tuple is missing");
  const c10::ivalue::TupleElements& elements = tuple.toTupleRef().elements();
  demand(elements.size() >= least, "a tuple is too short");
  return elements;
}

int64_t integer_of(const c10::IValue& value, int64_t most) {
  demand(value.isInt() && value.toInt() >= 0 && value.toInt() <= most, "a number is missing or out of range");
  return value.toInt();
}

// Reads a debug record as libtorch does (torch/csrc/jit/serialization/source_range_serialization.cpp), with the checks
// that libtorch omits.
class DebugRecord {
 public:
  void check_all(const c10::IValue& record) {
    const auto& parts = elements_of(record, 1);
    c10::IValue ranges = record;
    if (parts[0].isString() && parts[0].toStringRef() == kWithTable) {
      demand(parts.size() == 3, "expected three parts");
      for (const c10::IValue& text : elements_of(parts[1], 0)) {
        demand(text.isString(), "the string table contains something other than a string");
        sizes_.push_back(static_cast<int64_t>(text.toStringRef().size()));
      }
      ranges = parts[2];
    }
    for (const c10::IValue& row : elements_of(ranges, 0)) {
      const auto& fields = elements_of(row, 2);
      demand(fields[0].isInt(), "an offset into the code is not a number");
      // Older files have no tag between them.
      check_range(fields[fields.size() == 2 || fields[1].isTuple() ? 1 : 2]);
    }
  }

 private:
  static constexpr std::string_view kWithTable = "FORMAT_WITH_STRING_TABLE";

  void check_range(const c10::IValue& range) {
    const auto& fields = elements_of(range, 3);
    // The tracer's ranges end one past their call stack.
    integer_of(fields[1], integer_of(fields[2], bytes_of_source(fields[0]) + 1));
  }
  int64_t bytes_of_source(const c10::IValue& source) {
    const auto& fields = elements_of(source, 3);
    demand(fields[2].isInt(), "a line number is not a number");
    if (sizes_.empty()) {
      demand(fields[0].isString(), "a source text is missing");
      demand(fields[1].isNone() || fields[1].isString(), "a file name is not a string");
      return static_cast<int64_t>(fields[0].toStringRef().size());
    }
    const auto last = static_cast<int64_t>(sizes_.size()) - 1;
    integer_of(fields[1], last);
    demand(fields[0].isIntList(), "a source is not a list of strings");
    int64_t bytes = 0;
    for (const int64_t text : fields[0].toIntVector()) {
      bytes = saturating_add(bytes, sizes_[static_cast<size_t>(integer_of(text, last))]);
    }
    return bytes;
  }

  std::vector<int64_t> sizes_;  // of the texts in the table
};

void check_record(caffe2::serialize::PyTorchStreamReader& reader, const std::string& name, uintmax_t file_bytes) {
  // PyTorch does not compress, and allocates the size stated in the file for each record.
  demand(reader.getRecordSize(name) <= file_bytes, "compressed, or larger than the file");
  const bool debug = name.ends_with(".debug_pkl");
  const bool code = name.ends_with(".py");
  if (!debug && !code && !name.ends_with(".pkl")) return;
  const auto [data, bytes] = reader.getRecord(name);
  const std::string_view text(static_cast<const char*>(data.get()), bytes);
  if (code) return check_code(text);
  check_pickle_sizes(text);
  if (debug) DebugRecord().check_all(torch::jit::unpickle(text.data(), text.size()));
}

// Disables TorchScript's optimizing executor, which specializes on the first shapes and differentiates by itself; the
// plain interpreter calls operators one by one. The switch is process-wide, so it is restored.
struct PlainInterpreter {
  PlainInterpreter() { torch::jit::setGraphExecutorOptimize(false); }
  ~PlainInterpreter() { torch::jit::setGraphExecutorOptimize(before); }
  C10_DISABLE_COPY_AND_ASSIGN(PlainInterpreter);
  const bool before = torch::jit::getGraphExecutorOptimize();
};

// Shortens an interpreter error to the final message and its location; the full text contains the source of every
// module on the call path.
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

// libtorch trusts the storage sizes stated in the file.
void check_weights(const torch::jit::Module& module, const std::string& path) {
  const uintmax_t file_bytes = std::filesystem::file_size(path);
  const auto check = [&](const auto& list) {
    for (const auto& [name, tensor] : list) {
      if (tensor.has_storage() && tensor.storage().nbytes() > file_bytes) {
        throw Error(path + " is damaged: " + name + " is larger than the file");
      }
    }
  };
  check(module.named_parameters());
  check(module.named_buffers());
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

// Compiles the graph before its first run, which folds constants. That must happen on real tensors: the results stay in
// the module and are constants of the program, not calls.
void compile(const torch::jit::Module& module, const std::vector<c10::IValue>& arguments) {
  const UnfakeGuard real;
  torch::jit::Stack stack{module._ivalue()};
  stack.insert(stack.end(), arguments.begin(), arguments.end());
  auto& function = torch::jit::toGraphFunction(module.get_method("forward").function());
  function.get_executor().getPlanFor(stack);
}

constexpr std::string_view kSpecDtypes[] = {"f64", "f32", "f16", "bf16", "i64", "i32",
                                            "i16", "i8",  "u8",  "bool", "c64", "c128"};

bool is_spec_dtype(std::string_view word) { return std::ranges::find(kSpecDtypes, word) != std::end(kSpecDtypes); }

[[noreturn]] void refuse_spec(std::string_view text, const std::string& why) {
  throw Error("input '" + std::string(text) + "': " + why + "; expected for example f32[8,3,224,224] or i64[2,128]");
}

}  // namespace

constexpr std::string_view kFiles = "may read or write files";

// TorchScript operators that are refused by name, with the reason. The interpreter runs tolist() without the dispatcher.
constexpr std::pair<std::string_view, std::string_view> kRefusedOperators[] = {
    {"save", kFiles}, {"from_file", kFiles}, {"tolist", "reads contents that fake tensors lack"}};

// Skips what separates tokens: blanks, line breaks, continued lines and comments.
size_t next_token(std::string_view code, size_t at) {
  while (at < code.size()) {
    if (code[at] == '#') at = std::min(code.find('\n', at), code.size());
    if (at == code.size() || (std::isspace(static_cast<unsigned char>(code[at])) == 0 && code[at] != '\\')) break;
    ++at;
  }
  return at;
}

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Returns the attribute named by getattr(object, "name"), whose arguments begin at `at`; std::nullopt if it is not
// written as torch.jit.save writes it: one literal without escapes.
std::optional<std::string_view> getattr_name(std::string_view code, size_t at) {
  size_t comma = std::string_view::npos;
  int depth = 0;
  for (; at < code.size(); ++at) {
    const char c = code[at];
    if (c == '#') return std::nullopt;
    if (c == '"' || c == '\'') {
      const size_t first = at + 1;
      at = code.find(c, first);
      if (at == code.npos || code.substr(first, at - first).find('\\') != code.npos) return std::nullopt;
    } else if (c == '(') {
      ++depth;
    } else if (c == ',' && depth == 1) {
      comma = at;
    } else if (c == ')' && --depth == 0) {
      break;
    }
  }
  if (at >= code.size() || comma == code.npos) return std::nullopt;
  std::string_view name = code.substr(comma + 1, at - comma - 1);
  name.remove_prefix(std::min(name.find_first_not_of(' '), name.size()));
  if (name.size() < 2 || name.front() != '"' || name.find('"', 1) != name.size() - 1) return std::nullopt;
  return name.substr(1, name.size() - 2);
}

// Loading a file runs its __setstate__, and capturing it runs forward. Refuses kRefusedOperators by the names of
// attributes in the code, before any of it is compiled.
void check_operators(std::string_view code, const std::string& path) {
  const auto check = [&](std::string_view name) {
    for (const auto& [refused, why] : kRefusedOperators) {
      if (name != refused) continue;
      throw Error(
          fmt::format("{} calls '{}', which {}, so it is not loaded; remove the call (a method of this name "
                      "must be renamed) and save the program again",
                      path, name, why));
    }
  };
  for (size_t at = 0; at < code.size();) {
    const bool is_attribute = code[at] == '.';
    const size_t begin = at = is_attribute ? next_token(code, at + 1) : at;
    while (at < code.size() && is_word(code[at])) ++at;
    const std::string_view name = code.substr(begin, at - begin);
    if (is_attribute) check(name);
    if (name == "getattr") check(getattr_name(code, next_token(code, at)).value_or(kRefusedOperators[0].first));
    if (at == begin && !is_attribute) ++at;
  }
}

// Throws Error that names the record. Reads pickles and code, but no weights.
void check_script_archive(const std::string& path) {
  caffe2::serialize::PyTorchStreamReader reader(path);
  const uintmax_t file_bytes = std::filesystem::file_size(path);
  const bool is_legacy = reader.hasRecord("model.json");  // names its records of code itself
  for (std::string name : reader.getAllRecords()) {
    // libtorch looks records up without regard to case: CODE/__torch__.PY is code, too.
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    try {
      check_record(reader, name, file_bytes);
    } catch (const std::exception& error) {
      throw Error(path + " is damaged: " + name + ": " + message_of(error));
    }
    if (is_legacy || (name.starts_with("code/") && name.ends_with(".py"))) {
      const auto [data, size] = reader.getRecord(name);
      check_operators({static_cast<const char*>(data.get()), size}, path);
    }
  }
}

void add_tensors(const c10::IValue& value, Tensors& tensors) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) tensors.push_back(value.toTensor());
  } else if (value.isTuple()) {
    for (const c10::IValue& element : value.toTupleRef().elements()) add_tensors(element, tensors);
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) add_tensors(element, tensors);
  } else if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) add_tensors(entry.value(), tensors);
  }
}

at::Tensor first_output_loss(const Tensors& outputs) {
  for (const at::Tensor& output : outputs) {
    if (output.is_floating_point() && output.requires_grad()) return output.dim() == 0 ? output : output.mean();
  }
  throw Error(
      "no output is floating-point and requires grad, so there is no loss to differentiate; use --mode infer to "
      "capture forward only");
}

std::string name_of_dtype(c10::ScalarType dtype) {
  return is_spec_dtype(dtype_word(dtype)) ? std::string(dtype_word(dtype)) : c10::toString(dtype);
}

at::Tensor TensorSpec::make() const { return at::zeros(sizes, at::TensorOptions().dtype(dtype)); }

TensorSpec parse_tensor_spec(std::string_view text) {
  TensorSpec spec;
  const size_t bracket = text.find('[');
  if (bracket == std::string_view::npos || !text.ends_with(']')) refuse_spec(text, "missing sizes in brackets");
  const std::string_view dtype = text.substr(0, bracket);
  if (!is_spec_dtype(dtype)) refuse_spec(text, "unknown dtype '" + std::string(dtype) + "'");
  spec.dtype = parse_dtype(dtype).value();
  std::string_view rest = text.substr(bracket + 1, text.size() - bracket - 2);
  const auto skip_blanks = [&] { rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size())); };
  int64_t elements = 1;
  while (!rest.empty()) {
    int64_t size = 0;
    skip_blanks();
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), size);
    if (error != std::errc() || size < 0) refuse_spec(text, "expected a size at '" + std::string(rest) + "'");
    rest.remove_prefix(static_cast<size_t>(end - rest.data()));
    skip_blanks();
    if (size != 0 && __builtin_mul_overflow(elements, size, &elements)) refuse_spec(text, "too many elements");
    spec.sizes.push_back(size);
    if (rest.empty()) break;
    if (rest.front() != ',' || rest.size() == 1) refuse_spec(text, "sizes must be separated by single commas");
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
  } catch (const std::exception& load_error) {  // from the zip reader, the unpickler or the compiler
    throw Error(path +
                " is not a TorchScript file that this libtorch can load (save one in Python with "
                "torch.jit.trace(model, inputs).save(path)): " +
                message_of(load_error).substr(0, 300));
  }
}

void ScriptProgram::make_fake(FakeTensorMode& mode, std::optional<c10::ScalarType> dtype) {
  // One tensor may be an attribute of several modules (tied weights). The mode's memo returns the same fake; converted
  // ones are memoized here, with the real tensor, whose address must not be reused.
  std::unordered_map<const c10::TensorImpl*, std::pair<at::Tensor, at::Tensor>> converted;
  const auto fake_of = [&](const at::Tensor& real, bool is_parameter) {
    auto [entry, added] = converted.try_emplace(real.unsafeGetTensorImpl(), real, at::Tensor());
    at::Tensor& fake = entry->second.second;
    if (!added) return fake;
    const at::NoGradGuard no_grad;
    fake = mode.from_real(real);
    if (dtype && at::isFloatingType(real.scalar_type()) && real.scalar_type() != *dtype) {
      fake = fake.to(*dtype).detach();
    }
    if (is_parameter) fake.set_requires_grad(real.requires_grad());
    return fake;
  };
  for (torch::jit::Module submodule : module_->module.modules()) {
    for (const auto& [name, parameter] : submodule.named_parameters(/*recurse=*/false)) {
      submodule.setattr(name, fake_of(parameter, true));
    }
    for (const auto& [name, buffer] : submodule.named_buffers(/*recurse=*/false)) {
      submodule.setattr(name, fake_of(buffer, false));
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
  const torch::jit::Module& module = module_->module;
  for (const auto& [name, value] : module.named_parameters()) program.parameters.emplace_back(name, value);
  for (const auto& [name, value] : module.named_buffers()) program.buffers.emplace_back(name, value);
  program.inputs = std::move(inputs);
  const auto schema = module.get_method("forward").function().getSchema();
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
      const LocateScope locations(&script_location);
      add_tensors(module_->module.forward(std::move(arguments)), outputs);
    } catch (const std::exception& error) {
      if (dynamic_cast<const c10::Error*>(&error) != nullptr || dynamic_cast<const Error*>(&error) != nullptr) throw;
      // The interpreter rethrows operator errors under its own type.
      throw Error("the TorchScript program failed: " + shortened(error.what()));
    }
    return outputs;
  };
  program.loss = &first_output_loss;
  return program;
}

}  // namespace shadowgraph
