// `shadowgraph emit`: generates code from a graph, or writes the initial weights of a model.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <filesystem>
#include <fnmatch.h>

#include "cli/option_checks.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/source_options.h"
#include "cli/verbs.h"
#include "models/registry.h"
#include "shadowgraph/codegen/codegen.h"
#include "shadowgraph/deferred/deferred.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/profile/profile.h"
#include "support/suggestion.h"

namespace shadowgraph::cli {
namespace {

enum class Language : uint8_t { kCpp, kPython };
constexpr auto enum_names(Language) { return names_in_order<Language>("cpp", "python"); }

struct EmitRequest {
  CaptureRequest capture;
  std::string output;  // folder for code, file for weights
  Language language = Language::kCpp;
  std::string name;                    // empty: the file's name
  std::vector<std::string> only;       // "%12", "gradient.*", globs over weights; empty: all
  std::vector<std::string> functions;  // "my::op=callee@header"
  bool autograd = false, weights = false;
  int64_t seed = 0;
};

int emit_code(const CLI::App& command, const EmitRequest& request) {
  const LoadedGraph loaded = load(request.capture);
  CodegenOptions options;
  options.name = request.name.empty() ? std::filesystem::path(request.capture.source).stem().string() : request.name;
  options.autograd = request.autograd;
  // A new capture is already on that device.
  if (!loaded.capture_seconds && command.count("--device") > 0) options.device = request.capture.device;
  for (const std::string& text : request.functions) {
    const size_t equals = text.find('=');
    const size_t at = text.find('@', equals);
    options.functions[text.substr(0, equals)] = {.callee = text.substr(equals + 1, at - equals - 1),
                                                 .from = at == text.npos ? "" : text.substr(at + 1)};
  }
  choose_values(loaded.graph, request.only, options);
  const GeneratedCode code =
      request.language == Language::kCpp ? emit_cpp(loaded.graph, options) : emit_python(loaded.graph, options);
  write_code(code, request.output);
  std::vector<std::string> files;
  for (const auto& [name, text] : code.files) files.push_back(name);
  if (!code.constants_file.empty()) files.push_back(code.constants_file);
  print_out("{}: {}; {} functions for {} calls\n", request.output, fmt::join(files, ", "), code.functions, code.calls);
  for (const std::string& library : code.libraries_of) {
    print_out("  requires the library that defines the operators of {}\n", library);
  }
  return 0;
}

// Rejects unclosed brackets, which fnmatch would match literally.
void check_glob(const std::string& glob) {
  bool escaped = false;
  size_t open = std::string::npos;
  for (size_t i = 0; i < glob.size(); ++i) {
    if (escaped) {
      escaped = false;
    } else if (glob[i] == '\\') {
      escaped = true;
    } else if (glob[i] == '[' && open == std::string::npos) {
      open = i;
    } else if (glob[i] == ']' && open != std::string::npos && i > open + 1) {
      open = std::string::npos;
    }
  }
  if (open != std::string::npos) {
    throw Error(fmt::format("--only '{}': the bracket at character {} is not closed", glob, open + 1));
  }
  if (escaped) throw Error(fmt::format("--only '{}' ends with a backslash that escapes nothing", glob));
}

// Builds the model with deferred tensors and materializes them one at a time. The values are those of the whole model.
int emit_weights(const EmitRequest& request) {
  const std::string& model_name = request.capture.source;
  for (const std::string& glob : request.only) check_glob(glob);
  if (kind_of_source(model_name) != SourceKind::kModel) {
    throw Error("--weights requires a built-in model (see 'shadowgraph list models'), not " + model_name);
  }
  const Progress progress("materializing " + model_name);
  at::manual_seed(static_cast<uint64_t>(request.seed));
  models::ModelOptions options;
  options.dtype = request.capture.dtype.value_or(c10::kFloat);
  const models::BuiltModel model = deferred_init([&] { return models::build(model_name, options); });

  std::vector<std::pair<std::string, at::Tensor>> chosen;
  std::vector<std::string> names;
  const auto add = [&](const auto& items) {
    for (const auto& item : items) {
      if (!item.value().defined()) continue;
      names.push_back(item.key());
      const bool wanted = request.only.empty() || std::ranges::any_of(request.only, [&](const std::string& glob) {
                            return fnmatch(glob.c_str(), item.key().c_str(), 0) == 0;
                          });
      if (wanted) chosen.emplace_back(item.key(), item.value());
    }
  };
  add(model.module->named_parameters());
  add(model.module->named_buffers());
  if (chosen.empty()) {
    const std::string near = closest(request.only.front(), names);
    throw Error(fmt::format("no parameter or buffer of {} matches {}; it has {} of them, such as '{}'{}", model_name,
                            fmt::join(request.only, " or "), names.size(), names.front(),
                            near.empty() ? "" : " (did you mean '" + near + "'?)"));
  }
  const WrittenWeights written = write_weights(request.output, chosen);
  print_log("{}: {} of {} tensors of {}, {}, seed {}\n", request.output, written.tensors, names.size(), model_name,
            human_bytes(static_cast<int64_t>(written.bytes)), request.seed);
  return 0;
}

int emit(const CLI::App& command, const EmitRequest& request) {
  if (!request.weights) {
    takes_none_of(command, "code output; add --weights", {"--seed"});
    return emit_code(command, request);
  }
  takes_only(command, "--weights", {"SOURCE", "--only", "--seed", "--dtype", "--output"});
  return emit_weights(request);
}

void add_options(CLI::App& command, EmitRequest& request) {
  add_source(command, request.capture);
  add_capture_options(command, request.capture);
  command.get_option("--device")->description("Simulated device, as in capture; a saved graph is moved to this device");
  begin_group(command, "Code");
  add_choice(command, "--lang", request.language, "cpp (needs only libtorch) or python (torch.ops)");
  command.add_option("--name", request.name, "Name of the files and the namespace (default: the source's)");
  add_list(command, "--function", request.functions,
           "Function to call for a custom operator: my::op=library::callee@header.h, or @module")
      ->check([](const std::string& text) {
        return text.find('=') == text.npos ? "'" + text + "' is not NAME=CALLEE or NAME=CALLEE@FROM" : std::string();
      });
  command.add_flag("--autograd", request.autograd, "Emit differentiable code (forward graphs only)");
  begin_group(command, "Weights");
  command.add_flag("--weights", request.weights,
                   "Write the initial weights of a built-in model instead, for torch.load");
  add_number(command, "--seed", request.seed, 0, "With --weights: torch::manual_seed before the model is built");
  begin_group(command, kOutput);
  command.add_option("-o,--output", request.output, "Folder for code (created if needed), or file for weights")
      ->required();
  add_list(command, "--only", request.only,
           "Only what computes these values: %12, 'gradient.*'; or weights named 'layers.3.*'");
  command.footer(
      "Examples:\n"
      "  shadowgraph emit gpt2.sg --lang cpp -o gpt2_step\n"
      "  shadowgraph emit llama3_70b --weights --only 'layers.3.mlp.*' --dtype bf16 -o part.pt");
}

}  // namespace

Work declare_emit(CLI::App& command) { return work_of<EmitRequest>(command, add_options, emit); }

}  // namespace shadowgraph::cli
