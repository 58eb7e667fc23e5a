#include "core/capture/exported/program.h"

#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>
#include <torch/csrc/export/pt2_archive_constants.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "core/capture/source_location.h"
#include "core/libtorch/error_text.h"
#include "shadowgraph/error.h"
#include "support/json.h"

namespace shadowgraph {

namespace {

namespace spec = torch::_export::archive_spec;

constexpr std::string_view kResaveHint =
    "; load it with torch.export.load in a PyTorch version that supports it and save it again with torch.export.save";

// Returns the name of the first record of a zip file, without using its directory, which a truncated file lacks.
std::string name_of_first_record(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string header(30, '\0');
  if (!file.read(header.data(), 30) || !header.starts_with("PK\x03\x04")) return {};
  const auto byte = [&](size_t i) { return static_cast<size_t>(static_cast<unsigned char>(header[i])); };
  std::string name(byte(26) | (byte(27) << 8), '\0');
  file.read(name.data(), static_cast<std::streamsize>(name.size()));
  name.resize(static_cast<size_t>(file.gcount()));
  return name;
}

// Returns whether the file was written by torch.export.save of PyTorch 2.7 or earlier. Its records have no folder,
// which PyTorchStreamReader rejects.
bool has_old_layout(std::string_view first) {
  return first == "version" || first.starts_with("serialized_exported_program") ||
         first.starts_with("serialized_state_dict");
}

bool begins_as_archive(std::string_view first) {
  const size_t folder = first.find('/');
  if (folder == std::string_view::npos) return has_old_layout(first);
  const std::string_view record = first.substr(folder + 1);
  return record.starts_with(spec::WEIGHTS_DIR) || record.starts_with(spec::CONSTANTS_DIR) ||
         record.starts_with(spec::AOTINDUCTOR_DIR) || record.starts_with(spec::MODELS_DIR) ||
         record == spec::ARCHIVE_FORMAT_PATH;
}

std::string first_line(const std::exception& error) {
  const std::string text = message_of(error);
  return text.substr(0, std::min<size_t>(text.find('\n'), 300));
}

}  // namespace

bool ExportArchive::looks_like_archive(const std::string& path) {
  std::error_code ignored;
  const std::string first = std::filesystem::is_regular_file(path, ignored) ? name_of_first_record(path) : "";
  if (first.empty()) return false;
  if (begins_as_archive(first)) return true;
  try {
    caffe2::serialize::PyTorchStreamReader reader(path);
    return reader.hasRecord(std::string(spec::ARCHIVE_FORMAT_PATH));
  } catch (const std::exception&) {
    return false;
  }
}

ExportArchive::ExportArchive(std::string path) : path_(std::move(path)) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path_, error)) throw FileError("cannot read " + path_ + ": no such file");
  file_bytes_ = std::filesystem::file_size(path_, error);
  const std::string first = name_of_first_record(path_);
  if (has_old_layout(first)) {
    throw Error(path_ + " is a torch.export archive written by PyTorch 2.7 or earlier" + std::string(kResaveHint));
  }
  try {
    reader_ = std::make_unique<caffe2::serialize::PyTorchStreamReader>(path_);
  } catch (const std::exception& failure) {
    throw Error(path_ + " is not a torch.export archive, or is truncated: " + first_line(failure));
  }
  find_model();
}

void ExportArchive::find_model() {
  const std::string format(spec::ARCHIVE_FORMAT_PATH);
  if (!has(format) || size_of(format) > 64 || bytes_of(format) != spec::ARCHIVE_FORMAT_VALUE) {
    refuse("is a zip file, but not a torch.export archive: record '" + format + "' is missing or is not 'pt2'");
  }
  const std::string version_record(spec::ARCHIVE_VERSION_PATH);
  if (has(version_record)) {
    const std::string version = bytes_of(version_record);
    if (version != spec::ARCHIVE_VERSION_VALUE) {
      refuse("is a torch.export archive of version '" + version.substr(0, 20) + "'; only version " +
             std::string(spec::ARCHIVE_VERSION_VALUE) + " is supported");
    }
  }
  std::vector<std::string> models;
  bool compiled = false;
  for (const std::string& record : reader_->getAllRecords()) {
    compiled = compiled || record.starts_with(spec::AOTINDUCTOR_DIR);
    if (!record.starts_with(spec::MODELS_DIR) || !record.ends_with(".json")) continue;
    models.push_back(record.substr(spec::MODELS_DIR.size(), record.size() - spec::MODELS_DIR.size() - 5));
  }
  if (models.empty()) {
    refuse(compiled ? "holds code compiled by AOTInductor, not a graph; save the exported program itself with "
                      "torch.export.save(program, file)"
                    : "is a torch.export archive without a program (no record models/*.json)");
  }
  if (std::find(models.begin(), models.end(), "model") != models.end()) models = {"model"};
  if (models.size() > 1) {
    refuse("holds several programs (" + c10::Join(", ", models) +
           ") and none is named 'model'; save each in a separate file");
  }
  model_ = models.front();
  if (has(std::string(spec::WEIGHTS_DIR) + model_ + ".pt")) {
    refuse("stores its weights as pickled Python objects, as PyTorch 2.8 did" + std::string(kResaveHint));
  }
}

void ExportArchive::refuse(const std::string& why) const { throw Error(path_ + " " + why); }

size_t ExportArchive::size_of(const std::string& record) const {
  if (!has(record)) refuse("is damaged: it has no record " + record);
  try {
    const size_t bytes = reader_->getRecordSize(record);
    // PyTorch's writer does not compress, so a record larger than the file means a damaged directory.
    if (bytes > file_bytes_) refuse("is damaged: record " + record + " is larger than the file");
    return bytes;
  } catch (const c10::Error& failure) {
    refuse("is damaged at record " + record + ": " + first_line(failure));
  }
}

std::string ExportArchive::bytes_of(const std::string& record) const {
  std::string bytes(size_of(record), '\0');
  try {
    if (!bytes.empty()) reader_->getRecord(record, bytes.data(), bytes.size());
  } catch (const c10::Error& failure) {
    refuse("is damaged at record " + record + ": " + first_line(failure));
  }
  return bytes;
}

nlohmann::json ExportArchive::json_of(const std::string& record) const {
  return parse_json(bytes_of(record), path_ + " is damaged: " + record);
}

namespace {

// Interns the module stacks of nodes in `stacks`.
class ModuleStacks {
 public:
  explicit ModuleStacks(std::vector<std::vector<SavedModuleCall>>& stacks) : stacks_(stacks) { stacks_.emplace_back(); }
  // `text`, from a node's metadata: "key,path,class;key,path,class", outermost module first.
  uint32_t intern(const std::string& text) {
    const auto [known, added] = known_.try_emplace(text, static_cast<uint32_t>(stacks_.size()));
    if (!added) return known->second;
    std::vector<SavedModuleCall> stack;
    for (std::string_view rest = text; !rest.empty();) {
      const std::string_view entry = rest.substr(0, rest.find(';'));
      rest.remove_prefix(std::min(entry.size() + 1, rest.size()));
      const size_t first = entry.find(','), last = entry.rfind(',');
      if (first == std::string_view::npos || first == last) continue;
      SavedModuleCall call{std::string(entry.substr(0, first)), std::string(entry.substr(first + 1, last - first - 1)),
                           std::string(entry.substr(entry.rfind('.') + 1))};
      // Added by PyTorch's own passes, outside of any module.
      if (call.key == "_empty_nn_module_stack_from_metadata_hook") continue;
      // Strict export in older versions writes "L['self'].layers.0".
      constexpr std::string_view kSelf = "L['self']";
      if (call.path.starts_with(kSelf)) call.path.erase(0, kSelf.size() + (call.path.size() > kSelf.size() ? 1 : 0));
      stack.push_back(std::move(call));
    }
    stacks_.push_back(std::move(stack));
    return known->second;
  }

 private:
  std::vector<std::vector<SavedModuleCall>>& stacks_;  // the first is empty
  std::unordered_map<std::string, uint32_t> known_;
};

// Limits nested graphs and nested lists.
constexpr int kMaxGraphDepth = 50;

// schema.py has its own numbering of dtypes, from 1 and from 28.
constexpr c10::ScalarType kSavedDtypes[] = {
    c10::kByte,   c10::kChar,        c10::kShort,        c10::kInt,           c10::kLong, c10::kHalf,    c10::kFloat,
    c10::kDouble, c10::kComplexHalf, c10::kComplexFloat, c10::kComplexDouble, c10::kBool, c10::kBFloat16};
constexpr int64_t kFirstLater = 28;
constexpr c10::ScalarType kLaterDtypes[] = {c10::kUInt16,          c10::kFloat8_e4m3fn,   c10::kFloat8_e5m2,
                                            c10::kFloat8_e4m3fnuz, c10::kFloat8_e5m2fnuz, c10::kFloat8_e8m0fnu,
                                            c10::kUInt32,          c10::kUInt64};

constexpr c10::Layout kSavedLayouts[] = {c10::Layout::Sparse,    c10::Layout::SparseCsr, c10::Layout::SparseCsc,
                                         c10::Layout::SparseBsr, c10::Layout::SparseBsc, c10::Layout::Mkldnn,
                                         c10::Layout::Strided};
constexpr int64_t kSavedStrided = 7;
constexpr c10::MemoryFormat kSavedMemoryFormats[] = {c10::MemoryFormat::Contiguous, c10::MemoryFormat::ChannelsLast,
                                                     c10::MemoryFormat::ChannelsLast3d, c10::MemoryFormat::Preserve};

// The format numbers entries from 1; 0 is unknown.
template <class T, size_t n>
int64_t from_table(const JsonPlace& place, const T (&table)[n], const char* what) {
  const int64_t number = place.integer();
  if (number < 1 || number > static_cast<int64_t>(n)) place.fail("is not a known " + std::string(what));
  return static_cast<int64_t>(table[number - 1]);
}

c10::ScalarType read_dtype(const JsonPlace& place) {
  const int64_t number = place.integer();
  if (number >= 1 && number <= std::ssize(kSavedDtypes)) return kSavedDtypes[number - 1];
  if (number >= kFirstLater && number - kFirstLater < std::ssize(kLaterDtypes)) {
    return kLaterDtypes[number - kFirstLater];
  }
  place.fail("is " + std::to_string(number) + ", which is not a known dtype");
}

// Reads a number, or an expression with its value for the example inputs.
SymbolicSize read_symbolic_size(const JsonPlace& place) {
  const auto [kind, inside] = place.alternative();
  if (kind == "as_int") return {.value = inside.integer()};
  if (kind != "as_expr") inside.fail("is not a known kind of size");
  const JsonPlace text = inside["expr_str"];
  auto expression = SizeExpression::parse(text.text());
  if (!expression) text.fail("is not a valid size expression: " + text.text().substr(0, 100));
  const auto hint = inside.find("hint");
  return {hint ? (*hint)["as_int"].integer() : -1, std::move(expression)};
}

SavedGeometry read_geometry(const JsonPlace& place) {
  SavedGeometry geometry;
  geometry.dtype = read_dtype(place["dtype"]);
  const JsonPlace sizes = place["sizes"];
  const JsonPlace strides = place["strides"];
  if (strides.size() != sizes.size()) strides.fail("and the sizes differ in length");
  for (size_t i = 0; i < sizes.size(); ++i) {
    geometry.sizes.push_back(read_symbolic_size(sizes[i]));
    geometry.strides.push_back(read_symbolic_size(strides[i]));
    if (!geometry.sizes[i].expression && geometry.sizes[i].value < 0) sizes[i].fail("is a negative size");
    if (!geometry.strides[i].expression && geometry.strides[i].value < 0) strides[i].fail("is a negative stride");
  }
  geometry.offset = read_symbolic_size(place["storage_offset"]);
  geometry.requires_grad = place["requires_grad"].boolean();
  if (place["layout"].integer() != kSavedStrided) place["layout"].fail("is not the strided layout");
  return geometry;
}

ExportedOperand literal(c10::IValue value) { return {.literal = std::move(value)}; }

ExportedOperand unsupported(std::string what) {
  return {.kind = ExportedOperand::Kind::kUnsupported, .literal = std::move(what)};
}

c10::Device read_device(const JsonPlace& place) {
  std::string name = place["type"].text();
  if (const auto index = place.find("index")) name += ":" + std::to_string(index->integer());
  try {
    return c10::Device(name);
  } catch (const c10::Error&) {
    place.fail("'" + name + "' is not a device");
  }
}

// Returns the user's line from a stack trace, outermost frame first:
// 'File "/net.py", line 12, in forward\n    code\n  File ...'.
std::string source_of(std::string_view trace) {
  constexpr std::string_view kFile = "File \"";
  constexpr std::string_view kLine = "\", line ";
  UserFrame place;
  while (!place.found()) {
    const size_t start = trace.rfind(kFile);
    if (start == std::string_view::npos) break;
    const std::string_view frame = trace.substr(start + kFile.size());
    const size_t line = frame.find(kLine);
    // Code generated by Dynamo has file names such as "<eval_with_key>.12".
    if (line != std::string_view::npos && !frame.starts_with('<')) {
      const std::string_view number = frame.substr(line + kLine.size());
      place.add(frame.substr(0, line), number.substr(0, number.find_first_not_of("0123456789")));
    }
    trace = trace.substr(0, start);
  }
  return std::move(place).text();
}

class GraphReader {
 public:
  GraphReader(ModuleStacks& modules, int depth) : modules_(modules), depth_(depth) {}

  ExportedGraph read(const JsonPlace& place) {
    if (depth_ > kMaxGraphDepth) place.fail("is nested deeper than " + std::to_string(kMaxGraphDepth) + " graphs");
    for (const JsonPlace& input : place["inputs"].elements()) graph_.inputs.push_back(read_operand(input, true));
    for (const JsonPlace& node : place["nodes"].elements()) graph_.nodes.push_back(read_node(node));
    for (const JsonPlace& output : place["outputs"].elements()) graph_.outputs.push_back(read_operand(output, false));
    find_last_uses();
    return std::move(graph_);
  }

 private:
  ExportedNode read_node(const JsonPlace& place) {
    ExportedNode node;
    node.target = place["target"].text();
    for (const JsonPlace& input : place["inputs"].elements()) {
      node.inputs.push_back({input["name"].text(), read_operand(input["arg"], false)});
    }
    for (const JsonPlace& output : place["outputs"].elements()) node.outputs.push_back(read_operand(output, true));
    if (const auto name = place.find("name")) {
      node.name = name->text();
    } else {
      node.name = node.outputs.empty() || node.outputs[0].kind != ExportedOperand::Kind::kValue
                      ? node.target
                      : graph_.value_names[node.outputs[0].value];
    }
    if (const auto metadata = place.find("metadata")) {
      if (const auto stack = metadata->find("nn_module_stack")) node.module_stack = modules_.intern(stack->text());
      if (const auto trace = metadata->find("stack_trace")) node.source = source_of(trace->text());
    }
    return node;
  }

  ExportedOperand value(const JsonPlace& name, bool is_made) {
    if (is_made) {
      numbers_[name.text()] = static_cast<uint32_t>(graph_.value_names.size());
      graph_.value_names.push_back(name.text());
    }
    const auto found = numbers_.find(name.text());
    if (found == numbers_.end()) name.fail("is '" + name.text() + "', which no earlier node defines");
    return {.kind = ExportedOperand::Kind::kValue, .value = found->second};
  }

  template <class Read>
  ExportedOperand list(const JsonPlace& place, Read read) {
    ExportedOperand operand{.kind = ExportedOperand::Kind::kList};
    for (size_t i = 0; i < place.size(); ++i) operand.elements.push_back(read(place[i]));
    return operand;
  }

  // `is_made`: names define new values.
  ExportedOperand read_operand(const JsonPlace& place, bool is_made) {
    const auto [kind, inside] = place.alternative();
    const auto tensor = [&](const JsonPlace& p) { return value(p["name"], is_made); };
    const auto integer = [](const JsonPlace& p) { return literal(p.integer()); };
    const auto number = [](const JsonPlace& p) { return literal(p.number()); };
    const auto boolean = [](const JsonPlace& p) { return literal(p.boolean()); };
    const auto text = [](const JsonPlace& p) { return literal(p.text()); };
    const auto symbolic = [&](const JsonPlace& p) {
      const auto [which, content] = p.alternative();
      if (which == "as_name") return value(content, is_made);
      if (which == "as_int") return integer(content);
      if (which == "as_float") return number(content);
      if (which == "as_bool") return boolean(content);
      content.fail("is not a known kind of symbolic number");
    };
    const auto optional_tensor = [&](const JsonPlace& p) {
      const auto [which, content] = p.alternative();
      return which == "as_none" ? ExportedOperand() : tensor(content);
    };
    const auto lists_of = [&](auto element) {
      return [this, element](const JsonPlace& p) { return list(p, element); };
    };
    if (kind == "as_none") return {};
    if (kind == "as_tensor") return tensor(inside);
    if (kind == "as_tensors") return list(inside, tensor);
    if (kind == "as_optional_tensor") return optional_tensor(inside);
    if (kind == "as_optional_tensors") return list(inside, optional_tensor);
    if (kind == "as_nested_tensors") return list(inside, lists_of(tensor));
    if (kind == "as_int") return integer(inside);
    if (kind == "as_ints") return list(inside, integer);
    if (kind == "as_int_lists") return list(inside, lists_of(integer));
    if (kind == "as_float") return number(inside);
    if (kind == "as_floats") return list(inside, number);
    if (kind == "as_float_lists") return list(inside, lists_of(number));
    if (kind == "as_bool") return boolean(inside);
    if (kind == "as_bools") return list(inside, boolean);
    if (kind == "as_string") return text(inside);
    if (kind == "as_strings") return list(inside, text);
    if (kind == "as_sym_int" || kind == "as_sym_float" || kind == "as_sym_bool") return symbolic(inside);
    if (kind == "as_sym_ints" || kind == "as_sym_floats" || kind == "as_sym_bools") return list(inside, symbolic);
    if (kind == "as_complex") return literal(c10::complex<double>(inside["real"].number(), inside["imag"].number()));
    if (kind == "as_scalar_type") return literal(static_cast<int64_t>(read_dtype(inside)));
    if (kind == "as_memory_format") return literal(from_table(inside, kSavedMemoryFormats, "memory format"));
    if (kind == "as_layout") return literal(from_table(inside, kSavedLayouts, "layout"));
    if (kind == "as_device") return literal(read_device(inside));
    if (kind == "as_graph") {
      ExportedGraph graph = GraphReader(modules_, depth_ + 1).read(inside["graph"]);
      return {.kind = ExportedOperand::Kind::kGraph, .graph = std::make_shared<const ExportedGraph>(std::move(graph))};
    }
    if (kind == "as_custom_obj") return unsupported("an object of class " + inside["class_fqn"].text());
    if (kind == "as_operator") return unsupported("the operator " + inside.text());
    if (kind == "as_string_to_argument") return unsupported("a dictionary");
    return unsupported("an argument of kind " + kind);
  }

  void find_last_uses() {
    constexpr size_t kNever = SIZE_MAX;
    std::vector<size_t> last(graph_.value_names.size(), kNever);
    std::vector<const ExportedOperand*> pending;
    const auto note = [&](const ExportedOperand& operand, size_t position) {
      pending.push_back(&operand);
      while (!pending.empty()) {
        const ExportedOperand& next = *pending.back();
        pending.pop_back();
        if (next.kind == ExportedOperand::Kind::kValue) last[next.value] = position;
        for (const ExportedOperand& element : next.elements) pending.push_back(&element);
      }
    };
    const size_t end = graph_.nodes.size();
    for (const ExportedOperand& input : graph_.inputs) note(input, end + 1);
    for (size_t i = 0; i < end; ++i) {
      for (const ExportedOperand& output : graph_.nodes[i].outputs)
        note(output, i);  // an unused result is dropped immediately
      for (const NamedOperand& input : graph_.nodes[i].inputs) note(input.operand, i);
    }
    for (const ExportedOperand& output : graph_.outputs) note(output, end);
    for (uint32_t value = 0; value < last.size(); ++value) {
      if (last[value] < end) graph_.nodes[last[value]].unused.push_back(value);
      if (last[value] == end + 1) graph_.unused.push_back(value);
    }
  }

  ModuleStacks& modules_;
  int depth_;
  ExportedGraph graph_;
  std::unordered_map<std::string, uint32_t> numbers_;
};

// schema.py increases the major version for breaking changes only.
constexpr int64_t kSchemaVersion = 8;

void check_version(const ExportArchive& archive, const JsonPlace& program) {
  const int64_t major = program["schema_version"]["major"].integer();
  if (major == kSchemaVersion) return;
  const auto by = program.find("torch_version");
  throw Error(archive.path() + " has torch.export schema version " + std::to_string(major) +
              (by ? ", written by PyTorch " + by->text() : "") + "; only version " + std::to_string(kSchemaVersion) +
              " is supported");
}

[[noreturn]] void refuse_part(const ExportArchive& archive, const std::string& what) {
  throw Error(archive.path() + " contains " + what + ", which is not supported");
}

SavedInput read_input(const ExportArchive& archive, const JsonPlace& place) {
  const auto [kind, inside] = place.alternative();
  SavedInput spec;
  if (kind == "user_input") {
    const auto [type, argument] = inside["arg"].alternative();
    spec.kind = SavedInput::Kind::kUser;
    if (type == "as_tensor") {
      spec.name = argument["name"].text();
    } else if (type == "as_sym_int") {
      const auto [which, content] = argument.alternative();
      spec.name = which == "as_name" ? content.text() : "";
    } else if (type == "as_custom_obj") {
      refuse_part(archive,
                  "the input '" + argument["name"].text() + "', an object of class " + argument["class_fqn"].text());
    } else {
      spec.kind = SavedInput::Kind::kConstant;
    }
  } else if (kind == "constant_input") {
    spec.kind = SavedInput::Kind::kConstant;
    spec.name = inside["name"].text();
  } else if (kind == "parameter") {
    spec = {.kind = SavedInput::Kind::kParameter, .target = inside["parameter_name"].text()};
  } else if (kind == "buffer") {
    spec = {.kind = SavedInput::Kind::kBuffer, .target = inside["buffer_name"].text()};
  } else if (kind == "tensor_constant") {
    spec = {.kind = SavedInput::Kind::kTensorConstant, .target = inside["tensor_constant_name"].text()};
  } else if (kind == "custom_obj") {
    refuse_part(archive,
                "the object '" + inside["custom_obj_name"].text() + "' of class " + inside["arg"]["class_fqn"].text());
  } else {
    refuse_part(archive, "an input of kind '" + kind + "'");
  }
  if (!spec.target.empty()) spec.name = inside["arg"]["name"].text();
  return spec;
}

SavedOutput read_output(const ExportArchive& archive, const JsonPlace& place) {
  const auto [kind, inside] = place.alternative();
  if (kind == "user_output" || kind == "loss_output") return {};
  if (kind == "buffer_mutation") return {SavedOutput::Kind::kBufferMutation, inside["buffer_name"].text()};
  if (kind == "parameter_mutation") return {SavedOutput::Kind::kParameterMutation, inside["parameter_name"].text()};
  if (kind == "user_input_mutation") return {SavedOutput::Kind::kUserInputMutation, inside["user_input_name"].text()};
  if (kind.starts_with("gradient_to_")) {
    refuse_part(archive, "a joint forward-backward graph; export the forward alone");
  }
  refuse_part(archive, "an output of kind '" + kind + "'");
}

// Returns the names of the payloads that are parameters.
std::set<std::string> read_payloads(const ExportArchive& archive, const std::string& folder, const std::string& config,
                                    std::map<std::string, SavedPayload>& payloads) {
  std::set<std::string> parameters;
  const nlohmann::json json = archive.json_of(config);
  const std::string heading = archive.path() + " is damaged: " + config;
  for (const auto& [name, entry] : JsonPlace(json, heading)["config"].members()) {
    SavedPayload payload;
    payload.record = folder + entry["path_name"].text();
    // A script object has no geometry; it is rejected where the program uses it.
    if (const auto geometry = entry.find("tensor_meta")) payload.geometry = read_geometry(*geometry);
    if (entry["use_pickle"].boolean() && entry.find("tensor_meta")) {
      refuse_part(archive, "'" + name + "', a Python tensor subclass");
    }
    if (entry["is_param"].boolean()) parameters.insert(name);
    payloads.emplace(name, std::move(payload));
  }
  return parameters;
}

// Finds weights that strict export omits from the graph because they are unused, such as num_batches_tracked of a batch
// norm in eval().
void find_unused_weights(const std::set<std::string>& parameters, SavedProgram& program) {
  std::set<std::string> used;
  for (const SavedInput& input : program.inputs) used.insert(input.target);
  for (const auto& [name, payload] : program.payloads) {
    if (used.contains(name)) continue;
    const auto kind = parameters.contains(name) ? SavedInput::Kind::kParameter : SavedInput::Kind::kBuffer;
    program.idle.push_back({.kind = kind, .target = name});
  }
}

std::string config_record(std::string_view format, const std::string& model) {
  std::string record(format);
  return record.replace(record.find("{}"), 2, model);
}

void read_signature(const ExportArchive& archive, const JsonPlace& module, SavedProgram& program) {
  const JsonPlace signature = module["signature"];
  const JsonPlace inputs = signature["input_specs"];
  const JsonPlace outputs = signature["output_specs"];
  if (inputs.size() != program.graph.inputs.size()) inputs.fail("and the graph's inputs differ in number");
  if (outputs.size() != program.graph.outputs.size()) outputs.fail("and the graph's outputs differ in number");
  const JsonPlace tensors = module["graph"]["tensor_values"];
  const JsonPlace numbers = module["graph"]["sym_int_values"];
  for (size_t i = 0; i < inputs.size(); ++i) {
    SavedInput spec = read_input(archive, inputs[i]);
    const ExportedOperand& input = program.graph.inputs[i];
    if (spec.kind != SavedInput::Kind::kConstant) {
      if (input.kind != ExportedOperand::Kind::kValue || program.graph.value_names[input.value] != spec.name) {
        inputs[i].fail("is for '" + spec.name + "', which is not the graph's input at that position");
      }
      if (const auto geometry = tensors.find(spec.name.c_str())) {
        spec.geometry = read_geometry(*geometry);
      } else {
        spec.number = read_symbolic_size(numbers[spec.name.c_str()]);
      }
      if (spec.kind != SavedInput::Kind::kUser && !spec.geometry) inputs[i].fail("is not a tensor");
    }
    program.inputs.push_back(std::move(spec));
  }
  for (const JsonPlace& output : outputs.elements()) program.outputs.push_back(read_output(archive, output));
}

}  // namespace

SavedProgram read_program(const ExportArchive& archive) {
  const std::string record = config_record(spec::MODELS_FILENAME_FORMAT, archive.model());
  const nlohmann::json json = archive.json_of(record);
  const std::string heading = archive.path() + " is damaged: " + record;
  const JsonPlace place(json, heading);
  check_version(archive, place);

  SavedProgram program;
  ModuleStacks modules(program.module_stacks);
  const JsonPlace module = place["graph_module"];
  program.graph = GraphReader(modules, 0).read(module["graph"]);
  read_signature(archive, module, program);
  for (const auto& [symbol, range] : place["range_constraints"].members()) {
    SymbolRange bounds;
    if (const auto least = range.find("min_val")) bounds.least = least->integer();
    if (const auto most = range.find("max_val")) bounds.most = most->integer();
    program.ranges.emplace(symbol, bounds);
  }
  const std::set<std::string> parameters =
      read_payloads(archive, std::string(spec::WEIGHTS_DIR),
                    config_record(spec::WEIGHTS_CONFIG_FILENAME_FORMAT, archive.model()), program.payloads);
  find_unused_weights(parameters, program);
  read_payloads(archive, std::string(spec::CONSTANTS_DIR),
                config_record(spec::CONSTANTS_CONFIG_FILENAME_FORMAT, archive.model()), program.payloads);
  return program;
}

}  // namespace shadowgraph
