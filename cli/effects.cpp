#include "cli/effects.h"

#include <fmt/format.h>

#include <array>
#include <filesystem>

#include "cli/source_options.h"

namespace shadowgraph::cli {
namespace {

constexpr std::array kOfTraining{"--optimizer",   "--steady-state", "--accumulate", "--clip-grad-norm",
                                 "--grad-scaler", "--ema",          "--zero-grads"};

bool is_given(const CLI::App& command, const std::string& name) {
  const CLI::Option* option = command.get_option_no_throw(name);
  return option != nullptr && option->count() > 0;
}

[[noreturn]] void refuse_option(const std::string& option, const std::string& why) {
  throw CLI::ValidationError(option, why);
}

// What a capture is told, of a graph that is recorded already.
void refuse_for_recorded(const CLI::App& command, const CaptureRequest& request) {
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_name();
    const bool of_capture = option->get_group() == kModel || option->get_group() == kStep;
    // Checkpoints are put into a recorded step, too. What code is emitted for is a device of its own.
    const bool own = name == "--checkpoint" || command.get_name() == "emit";
    if (option->count() == 0 || own || !(of_capture || name == "--device")) continue;
    refuse_option(name, fmt::format("has no effect: {} is recorded already", request.source));
  }
}

}  // namespace

void refuse_without_effect(const CLI::App& command, const CaptureRequest& request) {
  if (request.source.empty()) return;
  std::error_code ignored;
  const bool is_file = std::filesystem::is_regular_file(request.source, ignored);
  if (is_file && kind_of_source(request.source) == SourceKind::kGraph) return refuse_for_recorded(command, request);
  if (!request.trains() && !is_given(command, "--what-if")) {
    for (const char* option : kOfTraining) {
      if (is_given(command, option)) refuse_option(option, "is of a training step: give --mode train");
    }
    if (is_given(command, "--run")) refuse_option("--run", "is of training steps: give --mode train");
  }
}

}  // namespace shadowgraph::cli
