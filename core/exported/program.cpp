#include "core/exported/program.h"

#include <torch/csrc/export/pt2_archive_constants.h>

#include <optional>
#include <set>

#include "core/exported/archive.h"
#include "core/exported/read_graph.h"
#include "shadowgraph/error.h"
#include "support/json_place.h"

namespace shadowgraph {
namespace {

// Counts the breaking changes of schema.py; its smaller ones add to it.
constexpr int64_t kSchemaVersion = 8;

void check_version(const ExportArchive& archive, const JsonPlace& program) {
  const int64_t major = program["schema_version"]["major"].integer();
  if (major == kSchemaVersion) return;
  const auto by = program.find("torch_version");
  throw Error(archive.path() + " is of schema version " + std::to_string(major) + " of torch.export" +
              (by ? ", written by PyTorch " + by->text() : "") + "; only version " + std::to_string(kSchemaVersion) +
              " is known here");
}

[[noreturn]] void refuse_part(const ExportArchive& archive, const std::string& what) {
  throw Error(archive.path() + " holds a program with " + what + ", which is not supported");
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
    refuse_part(archive, "its own backward (a joint graph); export the forward alone");
  }
  refuse_part(archive, "an output of kind '" + kind + "'");
}

// Returns the payloads that are parameters.
std::set<std::string> read_payloads(const ExportArchive& archive, const std::string& folder, const std::string& config,
                                    std::map<std::string, SavedPayload>& payloads) {
  std::set<std::string> parameters;
  const nlohmann::json json = archive.json_of(config);
  const std::string heading = archive.path() + " is damaged: " + config;
  for (const auto& [name, entry] : JsonPlace(json, heading)["config"].members()) {
    SavedPayload payload;
    payload.record = folder + entry["path_name"].text();
    // A script object has no geometry; it is refused where the program takes it.
    if (const auto geometry = entry.find("tensor_meta")) payload.geometry = read_geometry(*geometry);
    if (entry["use_pickle"].boolean() && entry.find("tensor_meta")) {
      refuse_part(archive, "'" + name + "', a tensor of a Python class");
    }
    if (entry["is_param"].boolean()) parameters.insert(name);
    payloads.emplace(name, std::move(payload));
  }
  return parameters;
}

// Finds weights that strict export leaves out of the graph because it does not use them: num_batches_tracked of a batch
// norm in eval().
void find_idle(const std::set<std::string>& parameters, SavedProgram& program) {
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
  if (inputs.size() != program.graph.inputs.size()) inputs.fail("and the graph's inputs are not as many");
  if (outputs.size() != program.graph.outputs.size()) outputs.fail("and the graph's outputs are not as many");
  const JsonPlace tensors = module["graph"]["tensor_values"];
  const JsonPlace numbers = module["graph"]["sym_int_values"];
  for (size_t i = 0; i < inputs.size(); ++i) {
    SavedInput spec = read_input(archive, inputs[i]);
    const ExportedOperand& input = program.graph.inputs[i];
    if (spec.kind != SavedInput::Kind::kConstant) {
      if (input.kind != ExportedOperand::Kind::kValue || program.graph.value_names[input.value] != spec.name) {
        inputs[i].fail("is of '" + spec.name + "', which is not the graph's input there");
      }
      if (const auto geometry = tensors.find(spec.name.c_str())) {
        spec.geometry = read_geometry(*geometry);
      } else {
        spec.number = read_symbolic_size(numbers[spec.name.c_str()]);
      }
      if (spec.kind != SavedInput::Kind::kUser && !spec.geometry) inputs[i].fail("is not of a tensor");
    }
    program.inputs.push_back(std::move(spec));
  }
  for (size_t i = 0; i < outputs.size(); ++i) program.outputs.push_back(read_output(archive, outputs[i]));
}

}  // namespace

SavedProgram read_program(const ExportArchive& archive) {
  namespace spec = torch::_export::archive_spec;
  const std::string record = config_record(spec::MODELS_FILENAME_FORMAT, archive.model());
  const nlohmann::json json = archive.json_of(record);
  const std::string heading = archive.path() + " is damaged: " + record;
  const JsonPlace place(json, heading);
  check_version(archive, place);

  SavedProgram program;
  ModuleStacks modules;
  const JsonPlace module = place["graph_module"];
  program.graph = read_graph(module["graph"], modules);
  program.module_stacks = std::move(modules).take();
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
  find_idle(parameters, program);
  read_payloads(archive, std::string(spec::CONSTANTS_DIR),
                config_record(spec::CONSTANTS_CONFIG_FILENAME_FORMAT, archive.model()), program.payloads);
  return program;
}

}  // namespace shadowgraph
