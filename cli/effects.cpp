#include "cli/effects.h"

#include <fmt/format.h>

#include <array>
#include <filesystem>

#include "cli/source_options.h"

namespace shadowgraph::cli {
namespace {

constexpr std::array kTrainingOptions{"--optimizer",   "--steady-state", "--accumulate", "--clip-grad-norm",
                                      "--grad-scaler", "--ema",          "--zero-grads"};

bool is_given(const CLI::App& command, const std::string& name) {
  const CLI::Option* option = command.get_option_no_throw(name);
  return option != nullptr && option->count() > 0;
}

[[noreturn]] void refuse_option(const std::string& option, const std::string& why) {
  throw CLI::ValidationError(option, why);
}

// Rejects options of a capture for a saved graph.
void refuse_for_saved_graph(const CLI::App& command, const CaptureRequest& request) {
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_name();
    const bool of_capture = option->get_group() == kModel || option->get_group() == kStep;
    // Checkpointing also rewrites saved steps, and `emit` moves them to another device.
    const bool allowed = name == "--checkpoint" || name == "--untrusted" || command.get_name() == "emit";
    if (option->count() == 0 || allowed || !(of_capture || name == "--device")) continue;
    refuse_option(name,
                  fmt::format("has no effect: {} is already captured; remove the option, or capture the model again",
                              request.source));
  }
}

}  // namespace

void refuse_without_effect(const CLI::App& command, const CaptureRequest& request) {
  if (request.source.empty()) return;
  std::error_code ignored;
  const bool is_file = std::filesystem::is_regular_file(request.source, ignored);
  if (is_file && kind_of_source(request.source) == SourceKind::kGraph) return refuse_for_saved_graph(command, request);
  if (!request.trains() && !is_given(command, "--what-if")) {
    for (const char* option : kTrainingOptions) {
      if (is_given(command, option)) refuse_option(option, "applies to training only; add --mode train");
    }
    if (is_given(command, "--run")) refuse_option("--run", "applies to training only; add --mode train");
  }
}

}  // namespace shadowgraph::cli
