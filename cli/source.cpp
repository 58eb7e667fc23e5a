#include "cli/source.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <torch/nn/module.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "cli/optimizer.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/tool.h"
#include "models/program.h"
#include "models/registry.h"
#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/exported_program.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/passes/pipeline.h"
#include "shadowgraph/units.h"
#include "support/json.h"
#include "support/suggestion.h"
#include "support/text.h"

namespace shadowgraph::cli {
namespace {

[[noreturn]] void refuse_source(const std::string& source) {
  std::error_code ignored;
  if (std::filesystem::is_directory(source, ignored))
    throw FileError("'" + source +
                    "' is a folder; give a model file or a built-in model (see 'shadowgraph list models')");
  std::vector<std::string> names;
  for (const auto& info : models::available()) names.push_back(info.name);
  const std::string near = closest(source, names);
  throw Error(fmt::format(
      "'{}' is neither a file nor a built-in model{}; give a file, some.module:factory, hf:CONFIG.json or one of {}",
      source, near.empty() ? "" : " (did you mean " + near + "?)", fmt::join(names, ", ")));
}

// Returns nullptr if there is no such model.
const models::ModelInfo* model_named(const std::string& name) {
  const auto& infos = models::available();
  const auto found = std::ranges::find(infos, name, &models::ModelInfo::name);
  return found == infos.end() ? nullptr : &*found;
}

// Splits "item0=2.5" into name and value.
std::pair<std::string, std::string> split_assignment(const std::string& text, const char* option, const char* example) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) {
    throw Error(fmt::format("{} '{}': expected NAME=VALUE, for example {}", option, text, example));
  }
  return {text.substr(0, equals), text.substr(equals + 1)};
}

c10::Scalar parse_host_read(const std::string& text, const std::string& value) {
  if (value == "true" || value == "false") return value == "true";
  if (const auto integer = parse_number<int64_t>(value)) return *integer;
  if (const auto real = parse_number<double>(value)) return *real;
  throw Error(fmt::format("--host-reads '{}': '{}' is not a number, true or false", text, value));
}

HostReads host_reads(const CaptureRequest& request) {
  HostReads reads;
  for (const std::string& text : request.host_reads) {
    if (text == "finite") {
      reads.finite = true;
    } else if (text == "mask-full") {
      reads.masks_full = true;
    } else {
      const auto [name, value] = split_assignment(text, "--host-reads", "item0=2.5, finite or mask-full");
      reads.values.insert_or_assign(name, parse_host_read(text, value));
    }
  }
  return reads;
}

NamedDataSizes data_sizes(const CaptureRequest& request) {
  NamedDataSizes sizes;
  for (const std::string& text : request.data_sizes) {
    const auto [name, value] = split_assignment(text, "--data-sizes", "nonzero0=17");
    const auto size = parse_number<int64_t>(value);
    if (!size)
      throw Error(fmt::format("--data-sizes '{}': '{}' is not a number of elements; give for example nonzero0=17", text,
                              value));
    sizes.insert_or_assign(name, *size);
  }
  return sizes;
}

FakeTensorOptions mode_options(const CaptureRequest& request) {
  FakeTensorOptions options{
      .device = request.device, .data_sizes = data_sizes(request), .host_reads = host_reads(request)};
  at::globalContext().setSDPUseFlash(request.attention != AttentionKernel::kMath);  // read by the kernel choice of CPUs
  if (request.attention != AttentionKernel::kDevice) allow_only(options.profile.emplace(), request.attention);
  return options;
}

void check_training_options(const CaptureRequest& request) {
  if (request.trains() || request.training == TrainingOptions()) return;
  const TrainingOptions& training = request.training;
  throw Error(fmt::format("{} applies to training only; add --mode train", training.accumulate != 1 ? "--accumulate"
                                                                           : training.clip_grad_norm
                                                                               ? "--clip-grad-norm"
                                                                           : training.grad_scaler ? "--grad-scaler"
                                                                           : training.ema         ? "--ema"
                                                                                                  : "--zero-grads"));
}

CaptureResult run(ProgramToCapture program, const CaptureRequest& request, const Tensors& parameters) {
  check_training_options(request);
  program.training = request.training;
  program.autocast = request.autocast;
  if (!request.trains()) {
    const at::NoGradGuard no_grad;
    return capture_forward(program);
  }
  const auto optimizer = make_optimizer(request, parameters);
  program.optimizer = optimizer.get();
  if (request.run_steps > 0) return capture_training_run(program, request.run_steps);
  program.warmup_steps = request.steady_state ? 1 : 0;
  return capture_training_step(program);
}

void describe(Graph& graph, const CaptureRequest& request, const std::string& name,
              std::optional<c10::ScalarType> dtype) {
  Metadata& metadata = graph.metadata;
  metadata.model = name;
  metadata.mode = request.trains() ? ProgramMode::kTrain : ProgramMode::kInfer;
  const c10::Device device = request.device;
  metadata.device = device.is_cuda() && !device.has_index() ? c10::Device(device.type(), 0) : device;
  metadata.dtype = dtype;
  if (request.trains()) {
    metadata.optimizer = to_string(request.optimizer);
    if (request.run_steps == 0) metadata.step = request.steady_state ? TrainingStep::kSteady : TrainingStep::kFirst;
    const TrainingOptions& training = request.training;
    if (training.accumulate > 1) metadata.other["accumulate"] = std::to_string(training.accumulate);
    if (training.clip_grad_norm) metadata.other["clip_grad_norm"] = fmt::format("{}", *training.clip_grad_norm);
    if (training.grad_scaler) metadata.other["grad_scaler"] = "true";
    if (training.ema) metadata.other["ema"] = fmt::format("{}", *training.ema);
    if (training.zero_grads) metadata.other["zero_grads"] = "true";
  }
  if (request.autocast) metadata.other["autocast"] = *request.autocast == c10::kBFloat16 ? "bf16" : "f16";
  if (request.batch > 0) metadata.batch = request.batch;
  if (request.seq > 0) metadata.seq = request.seq;
}

// Checks the options of --mode prefill and --mode decode.
void check_generation(const CaptureRequest& request, SourceKind kind) {
  const bool decode = request.mode == CaptureMode::kDecode;
  if (request.context > 0 && !decode) throw Error("--context applies to decoding only; add --mode decode");
  if (request.cache && !request.generates()) {
    throw Error("--cache applies to generation only; add --mode prefill or --mode decode");
  }
  if (!request.generates()) return;
  if (kind != SourceKind::kModel) {
    throw Error(fmt::format(
        "--mode {} requires a built-in language model, not {}; for other models, pass the KV cache as an --input",
        to_string(request.mode), request.source));
  }
  if (decode && request.context == 0)
    throw Error("--mode decode requires --context, the number of tokens in the KV cache: --context 4096");
  if (decode && request.seq != 0)
    throw Error("--mode decode processes one token: remove --seq; --context gives the tokens before it");
  if (request.autocast) {
    throw Error(fmt::format("--autocast is not supported with --mode {}; use --dtype", to_string(request.mode)));
  }
}

LoadedGraph capture_model(const CaptureRequest& request) {
  if (!request.inputs.empty())
    throw Error("--input applies to TorchScript, torch.export and Python models; " + request.source +
                " has fixed inputs: use --batch and --seq");
  const FakeTensorMode mode(mode_options(request));
  const bool decodes = request.mode == CaptureMode::kDecode;
  models::BuiltModel model = with_progress("building " + request.source, [&] {
    return models::build(request.source,
                         {.batch = request.batch,
                          .seq = decodes && model_named(request.source)->default_seq != 0 ? 1 : request.seq,
                          .layers = request.layers,
                          .dtype = request.dtype.value_or(c10::kFloat),
                          .training = request.trains()});
  });
  const Progress progress("capturing " + request.source);
  if (request.generates()) check_training_options(request);
  CaptureResult capture = request.generates()
                              ? models::capture_generation(model, {.prefill = request.mode == CaptureMode::kPrefill,
                                                                   .context = request.context,
                                                                   .static_cache = request.cache == CacheKind::kStatic})
                              : run(models::program_of(model), request, model.module->parameters());
  describe(capture.graph, request, request.source, request.dtype.value_or(c10::kFloat));
  return {std::move(capture.graph), capture.seconds, request.source};
}

// Replaces `name` by `size`: "f32[batch,3]" with a batch of 8 becomes "f32[8,3]". Sets `named` if `name` was found.
std::string with_size(const std::string& text, const std::string& name, int64_t size, bool& named) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find_first_of("[, ]", at), text.size());
    const bool is_size = text.substr(at, end - at) == name;
    named |= is_size;
    result += is_size ? std::to_string(size) : text.substr(at, end - at);
    if (end < text.size()) result += text[end];
    at = end + 1;
  }
  return result;
}

// Returns the input specs of a file, with `batch` and `seq` replaced by --batch and --seq.
std::vector<TensorSpec> inputs_of_file(const CaptureRequest& request, const char* what) {
  std::vector<TensorSpec> specs;
  bool batch = false, seq = false;
  for (const std::string& text : request.inputs) {
    std::string sized = text;
    if (request.batch != 0) sized = with_size(sized, "batch", request.batch, batch);
    if (request.seq != 0) sized = with_size(sized, "seq", request.seq, seq);
    specs.push_back(parse_tensor_spec(sized));
  }
  if ((request.batch != 0 && !batch) || (request.seq != 0 && !seq)) {
    throw Error(
        fmt::format("--batch and --seq have no effect: give {} with --input, and write 'batch' and 'seq' as sizes: "
                    "--input 'f32[batch,3,224,224]'",
                    what));
  }
  return specs;
}

// Returns the parameters with the dtypes that the file has.
std::vector<at::Tensor> saved_parameters(ScriptProgram& script, FakeTensorMode&) { return script.parameters(); }
std::vector<at::Tensor> saved_parameters(ExportedProgram& program, FakeTensorMode& mode) {
  program.make_fake(mode);
  return program.parameters();
}

// Returns the dtype with the most elements; empty without parameters.
std::optional<c10::ScalarType> usual_dtype(const std::vector<at::Tensor>& parameters) {
  std::map<c10::ScalarType, int64_t> elements;
  for (const at::Tensor& parameter : parameters) elements[parameter.scalar_type()] += parameter.numel();
  const auto most = std::ranges::max_element(elements, {}, [](const auto& entry) { return entry.second; });
  return most == elements.end() ? std::nullopt : std::optional(most->first);
}

// "--dtype converted 8,030,261,248 elements of parameters from bfloat16 to float32"; empty if nothing changes.
std::string converted_text(const std::vector<at::Tensor>& parameters, c10::ScalarType dtype) {
  std::map<c10::ScalarType, int64_t> elements;
  for (const at::Tensor& parameter : parameters) {
    const c10::ScalarType from = parameter.scalar_type();
    if (from != dtype && at::isFloatingType(from)) elements[from] += parameter.numel();
  }
  std::vector<std::string> parts;
  for (const auto& [from, count] : elements) {
    parts.push_back(fmt::format("{} elements of parameters from {}", exact_count(count), dtype_name(from)));
  }
  return parts.empty() ? ""
                       : fmt::format("--dtype converted {} to {}; omit it to keep them", fmt::join(parts, ", "),
                                     dtype_name(dtype));
}

CaptureResult capture_program(ScriptProgram& script, const std::vector<TensorSpec>& specs,
                              const CaptureRequest& request) {
  script.train(request.trains());
  Tensors inputs;
  for (const TensorSpec& spec : specs) inputs.push_back(spec.make());
  return run(script.program(std::move(inputs)), request, script.parameters());
}
CaptureResult capture_program(ExportedProgram& program, const std::vector<TensorSpec>& specs,
                              const CaptureRequest& request) {
  return run(program.program(program.make_inputs(specs)), request, program.parameters());
}

template <class Program>
LoadedGraph capture_file(const CaptureRequest& request, const char* what) {
  const std::vector<TensorSpec> specs = inputs_of_file(request, what);
  FakeTensorOptions options = mode_options(request);
  options.map_devices_to_default = true;
  // Tensors in a file's code are constants that sizes may depend on.
  options.real_tensors = RealTensors::kConstant;
  Program program = with_progress("loading " + request.source, [&] { return Program::load(request.source); });
  FakeTensorMode mode(options);
  std::optional<c10::ScalarType> dtype = request.dtype;
  std::string converted;
  if (const auto saved = saved_parameters(program, mode); dtype) {  // freed here
    converted = converted_text(saved, *dtype);
  } else {
    dtype = usual_dtype(saved);
  }
  program.make_fake(mode, request.dtype);
  const Progress progress("capturing " + request.source);
  const std::string name = std::filesystem::path(request.source).stem().string();
  CaptureResult capture = capture_program(program, specs, request);
  describe(capture.graph, request, name, dtype);
  if (!converted.empty()) capture.graph.metadata.other["assumed"] = converted;
  return {std::move(capture.graph), capture.seconds, name};
}

bool is_dotted_name(std::string_view text) {
  bool begins = true;  // a name
  for (const unsigned char letter : text) {
    const bool starts = letter >= 0x80 || letter == '_' || std::isalpha(letter) != 0;
    if (letter == '.' ? begins : !starts && (begins || std::isdigit(letter) == 0)) return false;
    begins = letter == '.';
  }
  return !begins;
}

bool is_python_source(const std::string& source) {
  const size_t colon = source.find(':');
  if (colon == source.npos) return false;
  const std::string_view text = source;
  return text.starts_with("hf:") || (is_dotted_name(text.substr(0, colon)) && is_dotted_name(text.substr(colon + 1)));
}

const Python& python_for(const std::string& source) { return needed_python(source + " is a Python model"); }

// Returns the inputs of a Python model as [name or null, "f32[8,3]"] pairs.
nlohmann::json inputs_in_python(const CaptureRequest& request) {
  std::vector<std::string> texts = request.inputs;
  if (texts.empty() && request.source.starts_with("hf:")) {
    texts.emplace_back("input_ids=i64[batch,seq]");
    if (request.trains()) texts.emplace_back("labels=i64[batch,seq]");
  }
  if (texts.empty()) {
    throw Error(request.source +
                " requires input specs: give one --input per input, for example --input 'f32[batch,3,224,224]'");
  }
  auto inputs = nlohmann::json::array();
  for (const std::string& text : texts) {
    const size_t equals = text.rfind('=');
    const std::string name = equals == text.npos ? "" : text.substr(0, equals);
    bool named = false;
    std::string spec = with_size(text.substr(equals + 1), "batch", request.batch == 0 ? 1 : request.batch, named);
    spec = with_size(spec, "seq", request.seq == 0 ? 512 : request.seq, named);
    parse_tensor_spec(spec);  // throws
    inputs.push_back(nlohmann::json::array({name.empty() ? nlohmann::json() : nlohmann::json(name), spec}));
  }
  return inputs;
}

nlohmann::json host_reads_in_python(const HostReads& reads) {
  auto answers = nlohmann::json::array();
  if (reads.finite) answers.push_back("finite");
  if (reads.masks_full) answers.push_back("mask full");
  for (const auto& [name, value] : reads.values) {
    nlohmann::json answer = value.toDouble();
    if (value.isBoolean()) answer = value.toBool();
    if (value.isIntegral(/*includeBool=*/false)) answer = value.toLong();
    answers.push_back(nlohmann::json::object({{name, answer}}));
  }
  return answers;
}

nlohmann::json or_null(const std::optional<double>& value) { return value ? nlohmann::json(*value) : nullptr; }
nlohmann::json or_null(const std::optional<c10::ScalarType>& dtype) {
  return dtype ? nlohmann::json(dtype_name(*dtype)) : nullptr;
}

// Rejects options that only Python models support.
void check_for_cpp(const CaptureRequest& request) {
  const char* option = request.dtype == c10::kHalf                      ? "--dtype f16"
                       : request.optimizer == OptimizerKind::kAdafactor ? "--optimizer adafactor"
                       : request.world > 0                              ? "--world"
                       : request.debug                                  ? "--debug"
                                                                        : nullptr;
  if (option == nullptr) return;
  throw Error(fmt::format("{} requires a Python model (some.module:factory or hf:CONFIG.json), not {}", option,
                          request.source));
}

LoadedGraph capture_in_python(const CaptureRequest& request) {
  const Python& python = python_for(request.source);
  check_training_options(request);
  const Progress progress("capturing " + request.source);
  auto [graph, seconds] = python.capture(python_request(request));
  std::string name = graph.metadata.model.value_or("captured");
  return {std::move(graph), seconds, std::move(name)};
}

LoadedGraph load_without_checkpoint(const CaptureRequest& request) {
  const SourceKind kind = kind_of_source(request.source);
  check_generation(request, kind);
  if (kind != SourceKind::kPython) check_for_cpp(request);
  switch (kind) {
    case SourceKind::kModel:
      return capture_model(request);
    case SourceKind::kTorchScript:
      if (!request.inputs.empty()) return capture_file<ScriptProgram>(request, "a TorchScript file's shapes");
      throw Error(
          "a TorchScript file requires input specs: give one --input per argument of forward, in order, for example "
          "--input 'f32[8,3,224,224]'");
    case SourceKind::kExported:
      return capture_file<ExportedProgram>(request, "a torch.export archive's sizes");
    case SourceKind::kPython:
      return capture_in_python(request);
    case SourceKind::kGraph:
      break;
  }
  const Progress progress("reading " + request.source);
  LoadedGraph loaded{read_saved_graph(request.source), std::nullopt, {}};
  loaded.name = loaded.graph.metadata.model.value_or(std::filesystem::path(request.source).stem().string());
  return loaded;
}

// The code that each kind of source runs, other than ours and PyTorch's.
struct SourceCode {
  SourceKind kind;
  std::string_view prefix;
  const char* input;
  const char* code;  // nullptr: none
};
constexpr SourceCode kSourceCode[] = {
    {SourceKind::kModel, "", "a built-in model", nullptr},
    {SourceKind::kGraph, "", "a saved graph", nullptr},
    {SourceKind::kExported, "", "a torch.export archive", nullptr},
    {SourceKind::kTorchScript, "", "a TorchScript file",
     "`__setstate__` when it is loaded, `forward` when it is captured"},
    {SourceKind::kPython, "hf:", "a transformers configuration", nullptr},
    {SourceKind::kPython, "", "a Python model", "the Python module, as `import` does"},
};

}  // namespace

nlohmann::json python_request(const CaptureRequest& request) {
  const TrainingOptions& training = request.training;
  return {{"source", request.source},
          {"inputs", inputs_in_python(request)},
          {"mode", to_string(request.mode)},
          {"optimizer", to_string(request.optimizer)},
          {"foreach", request.foreach},
          {"device", request.device.str()},
          {"dtype", or_null(request.dtype)},
          {"attention", to_string(request.attention)},
          {"layers", request.layers},
          {"steady_state", request.steady_state},
          {"run_steps", request.run_steps},
          {"host_reads", host_reads_in_python(host_reads(request))},
          {"data_sizes", data_sizes(request)},
          {"world", request.world},
          {"debug", request.debug},
          {"training",
           {{"autocast", or_null(request.autocast)},
            {"accumulate", training.accumulate},
            {"clip_grad_norm", or_null(training.clip_grad_norm)},
            {"grad_scaler", training.grad_scaler},
            {"ema", or_null(training.ema)},
            {"zero_grads", training.zero_grads}}}};
}

bool has_size(const CaptureRequest& request, std::string_view size) {
  const SourceKind kind = kind_of_source(request.source);
  if (kind == SourceKind::kModel) return true;
  if (kind == SourceKind::kPython && request.inputs.empty()) return request.source.starts_with("hf:");
  return std::ranges::any_of(request.inputs, [&](const std::string& text) { return text.find(size) != text.npos; });
}

std::string name_of_source(const std::string& source) {
  if (source.starts_with("hf:")) return std::filesystem::path(source.substr(3)).stem().string();
  return kind_of_source(source) == SourceKind::kPython ? source : std::filesystem::path(source).stem().string();
}

SourceKind kind_of_source(const std::string& source) {
  std::error_code ignored;
  const bool is_file = std::filesystem::is_regular_file(source, ignored);
  if (!is_file && model_named(source) != nullptr) return SourceKind::kModel;
  if (!is_file && is_python_source(source)) return SourceKind::kPython;
  if (!is_file) refuse_source(source);
  std::ifstream file(source, std::ios::binary);
  std::string head(12, '\0');
  file.read(head.data(), static_cast<std::streamsize>(head.size()));
  if (head.starts_with("PK\x03\x04")) {
    return ExportedProgram::is_archive(source) ? SourceKind::kExported : SourceKind::kTorchScript;
  }
  const bool is_graph = head.starts_with("shadowgraph") || head.starts_with("{");
  if (!is_graph && std::filesystem::path(source).extension().string().starts_with(".pt")) {
    throw Error(fmt::format("'{}' is not a zip archive, as torch.export.save and torch.jit.save write them", source));
  }
  return SourceKind::kGraph;  // the parser reports other contents
}

void refuse_code(const std::string& source) {
  const SourceKind kind = kind_of_source(source);
  const auto* const row = std::ranges::find_if(
      kSourceCode, [&](const SourceCode& row) { return row.kind == kind && source.starts_with(row.prefix); });
  if (row->code == nullptr) return;
  throw Error(
      fmt::format("{} is {}, which runs {}: refused by --untrusted; ask for a saved graph (.sg) or a torch.export "
                  "archive (.pt2), which run nothing",
                  source, row->input, row->code));
}

SourceLayers layers_of_source(const std::string& source) {
  const SourceKind kind = kind_of_source(source);
  if (kind == SourceKind::kPython) {
    const auto found = nlohmann::json::parse(python_for(source).ask("layers", {{"source", source}}));
    return {.count = found[0], .first = found[1]};
  }
  if (kind != SourceKind::kModel) return {};
  const models::ModelInfo* model = model_named(source);
  return {.count = model->layers, .first = model->first_layers};
}

Graph read_saved_graph(const std::string& path) {
  const std::string text = read_file(path);
  if (!text.starts_with('{')) return parse(text, path);
  const nlohmann::json json = parse_json(text, path);
  try {
    return from_json(json);
  } catch (const ParseError& error) {  // "json:/nodes/3: what"
    throw ParseError(path + std::string(error.what()).substr(std::string_view("json").size()), error.line(),
                     error.column());
  }
}

LoadedGraph load(const CaptureRequest& request) {
  LoadedGraph loaded = load_without_checkpoint(request);
  if (request.checkpoint.empty()) return loaded;
  const PassResult done = run_pass(loaded.graph, "checkpoint", {{"modules", request.checkpoint}});
  for (const std::string& warning : done.warnings) {
    print_log("shadowgraph: --checkpoint {}: {}\n", request.checkpoint, warning);
  }
  return loaded;
}

LoadedGraph load_run(CaptureRequest request, int steps) {
  if (!request.checkpoint.empty()) {
    throw Error("--run does not support --checkpoint; remove it, or use torch.utils.checkpoint in the model");
  }
  if (kind_of_source(request.source) == SourceKind::kGraph) {
    throw Error("--run captures several steps and needs a model; " + request.source + " is a saved graph");
  }
  if (!request.trains()) throw Error("--run applies to training only; add --mode train");
  request.run_steps = steps;
  return load(request);
}

}  // namespace shadowgraph::cli
