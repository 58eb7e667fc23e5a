// `shadowgraph calibrate`: what this machine's CPU does, measured and kept for estimated times.
#include "shadowgraph/profile/calibrate.h"

#include <fmt/format.h>

#include <filesystem>

#include "cli/progress.h"
#include "cli/source_options.h"
#include "cli/verbs.h"
#include "shadowgraph/profile.h"
#include "shadowgraph/profile/device_spec.h"

namespace shadowgraph::cli {
namespace {

int calibrate(const std::string& output) {
  const std::string path = output.empty() ? DeviceSpec::calibration_file() : output;
  const DeviceSpec spec = [] {
    const Progress progress("measuring this machine");
    return shadowgraph::calibrate();
  }();
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);  // what fails, writing says
  spec.write_file(path);
  fmt::print("{}\n  matrix products up to {}FLOP/s, memory up to {}/s\n  written to {}\n", spec.title,
             human_count(static_cast<int64_t>(spec.matmul.at(c10::kFloat))),
             human_bytes(static_cast<int64_t>(spec.bandwidth)), path);
  return 0;
}

void add_options(CLI::App& command, std::string& output) {
  begin_group(command, kOutput);
  command.add_option("-o,--output", output, "File to write (default: where profile looks for it)");
  command.footer(
      "Examples:\n"
      "  shadowgraph calibrate\n"
      "  shadowgraph calibrate -o here.json && shadowgraph profile resnet18 --device cpu --spec here.json");
}

}  // namespace

Work declare_calibrate(CLI::App& command) { return work_of<std::string>(command, add_options, calibrate); }

}  // namespace shadowgraph::cli
