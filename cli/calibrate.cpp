// `shadowgraph calibrate`: creates device and link specs from measurements on this CPU, profiler traces or tables.
#include <fmt/format.h>

#include <filesystem>

#include "cli/option_checks.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/source_options.h"
#include "cli/verbs.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/profile.h"
#include "shadowgraph/profile/traces.h"
#include "support/files.h"
#include "support/json.h"

namespace shadowgraph::cli {
namespace {

struct CalibrateRequest {
  std::string trace, table, collectives;  // files; all empty: measures this machine
  std::string spec, interconnect;         // specs to start from
  std::string output, links;              // files to write
  bool measures() const { return trace.empty() && table.empty() && collectives.empty(); }
};

void make_folder_of(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) make_folder(folder);
}

int measure_this_machine(const std::string& output) {
  const std::string path = output.empty() ? DeviceSpec::calibration_file() : output;
  const DeviceSpec spec = with_progress("measuring this machine", [] { return shadowgraph::calibrate(); });
  if (output.empty()) {
    replace_private_file(path, shadowgraph::json_text(to_json(spec), 2) + "\n");
  } else {
    make_folder_of(path);
    spec.write_file(path);
  }
  print_text(fmt::format("{}\n  matrix products up to {}FLOP/s, memory up to {}/s\n  written to {}\n", spec.title,
                         human_count(static_cast<int64_t>(spec.matmul.at(c10::kFloat))),
                         human_bytes(static_cast<int64_t>(spec.bandwidth)), path));
  return 0;
}

std::string summary(const TraceCalibration& found) {
  std::string text =
      fmt::format("{}\n  {} calls of {} sizes, {} in all; matrix products up to {}FLOP/s, memory up to {}/s\n",
                  found.spec.title, found.calls, found.sizes, human_seconds(found.seconds),
                  human_count(static_cast<int64_t>(found.spec.matmul.at(c10::kFloat))),
                  human_bytes(static_cast<int64_t>(found.spec.bandwidth)));
  constexpr size_t kMost = 10;
  for (size_t i = 0; i < found.left_out.size() && i < kMost; ++i) {
    const SkippedCalls& left = found.left_out[i];
    text += fmt::format("  skipped: {} x{}, {}: {}\n", left.op, left.calls, human_seconds(left.seconds), left.reason);
  }
  if (found.left_out.size() > kMost) text += fmt::format("  skipped: {} more\n", found.left_out.size() - kMost);
  return text;
}

// Returns the spec that a table is added to: the given one, or the existing output file.
std::string base_spec(const std::string& spec, const std::string& output, const char* option) {
  if (!spec.empty()) return spec;
  if (is_file(output)) return output;
  throw CLI::ValidationError(option, fmt::format("requires a spec to add the table to, for example {} a100", option));
}

int specs_from_files(const CalibrateRequest& request) {
  const bool has_spec = !request.trace.empty() || !request.table.empty();
  if (has_spec && request.output.empty())
    throw CLI::ValidationError("-o", "is required: the device spec file to write");
  if (!has_spec && !request.output.empty()) throw CLI::ValidationError("-o", "requires --trace or --table");
  if (!request.collectives.empty() && request.links.empty()) {
    throw CLI::ValidationError("--links", "is required with --collectives: the link spec file to write");
  }
  if (request.trace.empty() && request.collectives.empty() && !request.links.empty()) {
    throw CLI::ValidationError("--links", "requires --trace or --collectives");
  }
  std::string text;
  std::optional<DeviceSpec> spec;
  std::optional<Interconnect> links;
  if (!request.trace.empty()) {
    TraceCalibration found = calibrate_from_trace(request.trace, {.device = request.spec});
    text += summary(found);
    spec = std::move(found.spec);
    links = std::move(found.links);
    if (links && request.links.empty()) {
      text += fmt::format("  {} collectives; add --links FILE to write their tables\n", found.collectives);
      links.reset();
    }
    if (!links && !request.links.empty() && request.collectives.empty()) {
      throw Error(request.trace + " has no collectives of two or more processes; remove --links");
    }
  }
  if (!request.table.empty()) {
    if (!spec) spec = DeviceSpec::find(base_spec(request.spec, request.output, "--spec"));
    spec->tables.add(read_operator_csv(request.table));
    spec->sources["tables." + std::filesystem::path(request.table).filename().string()] = "measured, by its rows";
  }
  if (!request.collectives.empty()) {
    if (!links || !request.interconnect.empty()) {
      links = Interconnect::find(base_spec(request.interconnect, request.links, "--interconnect"));
    }
    links->add_csv(request.collectives);
    links->sources["tables." + std::filesystem::path(request.collectives).filename().string()] =
        "measured, by its rows";
  }
  for (const std::string& path : {request.output, request.links}) make_folder_of(path);
  if (spec) {
    spec->write_file(request.output);
    text += fmt::format("  written to {}\n", request.output);
  }
  if (links) {
    links->write_file(request.links);
    text += fmt::format("  links written to {}\n", request.links);
  }
  print_text(text);
  return 0;
}

int calibrate(const CLI::App& command, const CalibrateRequest& request) {
  if (!request.measures()) return specs_from_files(request);
  takes_none_of(command, "a measurement of this machine; add --trace, --table or --collectives",
                {"--spec", "--interconnect", "--links"});
  return measure_this_machine(request.output);
}

void add_options(CLI::App& command, CalibrateRequest& request) {
  begin_group(command, "Specs from files");
  command.add_option("--trace", request.trace,
                     "torch.profiler trace recorded with record_shapes=True, .json or .json.gz");
  command.add_option("--table", request.table,
                     "CSV of operator times: operator, dtype, seconds and m, n, k, batch or bytes, flops");
  command.add_option("--collectives", request.collectives,
                     "CSV of collective times: collective, processes, bytes, seconds, axis");
  command.add_option("--spec", request.spec, "Device spec to start from: a name or a file");
  command.add_option("--interconnect", request.interconnect, "Link spec to start from: a name or a file");
  begin_group(command, kOutput);
  command.add_option("-o,--output", request.output,
                     "Device spec file to write (default: where profile looks for this machine's)");
  command.add_option("--links", request.links, "Link spec file to write");
  command.footer(
      "Examples:\n"
      "  shadowgraph calibrate\n"
      "  shadowgraph calibrate -o here.json && shadowgraph profile resnet18 --device cpu --spec here.json\n"
      "  shadowgraph calibrate --trace kineto.json.gz -o mine.json --links links.json\n"
      "  shadowgraph calibrate --table gemm.csv --spec a100 -o a100-measured.json");
}

}  // namespace

Work declare_calibrate(CLI::App& command) { return work_of<CalibrateRequest>(command, add_options, calibrate); }

}  // namespace shadowgraph::cli
