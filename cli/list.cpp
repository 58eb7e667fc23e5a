// `shadowgraph list`: what there is to name. With kernels, the folder of those made on demand is tidied here, too.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <memory>

#include "cli/kernels.h"
#include "cli/option_checks.h"
#include "cli/output.h"
#include "cli/source_options.h"
#include "cli/verbs.h"
#include "models/registry.h"
#include "shadowgraph/passes/pipeline.h"
#include "shadowgraph/profile.h"
#include "shadowgraph/profile/time.h"

namespace shadowgraph::cli {
namespace {

struct ListRequest {
  std::string what;
  bool verify = false;
  std::optional<int64_t> prune;
  bool clear = false;
  KernelsRequest kernels;
};

void list_models(bool json) {
  if (json) {
    auto list = nlohmann::json::array();
    for (const auto& info : models::available()) {
      nlohmann::json entry{{"name", info.name},
                           {"description", info.description},
                           {"parameters", info.parameters},
                           {"default_batch", info.default_batch}};
      if (info.default_seq != 0) entry["default_seq"] = info.default_seq;
      if (info.default_image_size != 0) entry["default_image_size"] = info.default_image_size;
      list.push_back(std::move(entry));
    }
    print_text(json_text(list));
    return;
  }
  fmt::print("{:<14} {:>15}  {:<14} {}\n", "MODEL", "PARAMETERS", "DEFAULT INPUT", "");
  for (const auto& info : models::available()) {
    const std::string input = info.default_seq != 0
                                  ? fmt::format("{} x {}", info.default_batch, info.default_seq)
                                  : fmt::format("{} x {}^2", info.default_batch, info.default_image_size);
    fmt::print("{:<14} {:>15}  {:<14} {}\n", info.name, exact_count(info.parameters), input, info.description);
  }
}

void list_devices(bool json) {
  if (json) {
    auto list = nlohmann::json::array();
    for (const std::string& name : DeviceSpec::names()) list.push_back(to_json(DeviceSpec::named(name)));
    print_text(json_text(list));
    return;
  }
  fmt::print("{:<14} {:>12} {:>12} {:>14} {:>14}  {}\n", "DEVICE", "MEMORY", "BYTES/S", "FLOP/S f32", "FLOP/S bf16",
             "");
  for (const std::string& name : DeviceSpec::names()) {
    const DeviceSpec spec = DeviceSpec::named(name);
    const auto rate = [&](const char* dtype) {
      const auto found = spec.matmul.find(dtype);
      return found == spec.matmul.end() ? std::string("-") : human_count(static_cast<int64_t>(found->second));
    };
    fmt::print("{:<14} {:>12} {:>12} {:>14} {:>14}  {}\n", name, human_bytes(spec.memory),
               human_bytes(static_cast<int64_t>(spec.bandwidth)), rate("float32"), rate("bfloat16"), spec.title);
  }
}

void list_passes(bool json) {
  if (json) {
    auto list = nlohmann::json::array();
    for (const Pass* pass : all_passes()) {
      auto options = nlohmann::json::array();
      for (const PassOption& option : pass->options) {
        options.push_back({{"name", option.name}, {"default", option.default_value}, {"summary", option.summary}});
      }
      list.push_back({{"name", pass->name}, {"summary", pass->summary}, {"options", std::move(options)}});
    }
    print_text(json_text(list));
    return;
  }
  for (const Pass* pass : all_passes()) {
    fmt::print("{:<14} {}\n", pass->name, pass->summary);
    for (const PassOption& option : pass->options) {
      const std::string value = option.default_value.empty() ? "" : fmt::format("={}", option.default_value);
      fmt::print("{:<14}   {}{}: {}\n", "", option.name, value, option.summary);
    }
  }
}

int tidy_or_list_kernels(const CLI::App& command, ListRequest& request) {
  if (request.verify + request.prune.has_value() + request.clear > 1) {
    throw CLI::ValidationError("list kernels", "one of --verify, --prune and --clear at a time");
  }
  const bool erases = request.prune || request.clear;
  if (erases) takes_none_of(command, request.prune ? "--prune" : "--clear", {"--json"});
  if (!erases && request.kernels.dry_run) throw CLI::ValidationError("--dry-run", "is for --prune and --clear");
  if (request.verify) return verify_kernels(request.kernels) ? 0 : 1;
  if (request.prune) {
    prune_kernels(request.kernels, *request.prune);
  } else if (request.clear) {
    clear_kernels(request.kernels);
  } else {
    list_kernels(request.kernels);
  }
  return 0;
}

int list(const CLI::App& command, ListRequest& request) {
  if (request.what == "kernels") return tidy_or_list_kernels(command, request);
  takes_only(command, request.what, {"WHAT", "--json"});
  if (request.what == "models") list_models(request.kernels.json);
  if (request.what == "devices") list_devices(request.kernels.json);
  if (request.what == "passes") list_passes(request.kernels.json);
  return 0;
}

}  // namespace

Work declare_list(CLI::App& command) {
  const auto request = std::make_shared<ListRequest>();
  command.add_option("WHAT", request->what, "models, devices, passes or kernels")
      ->required()
      ->check(one_of({"models", "devices", "passes", "kernels"}));
  begin_group(command, "The kernels made on demand");
  command.add_flag("--verify", request->verify,
                   "Compare every library with its manifest (exit code 1: some are broken)");
  add_bytes(command, "--prune", request->prune,
            "Erase what is broken, and what was not used for longest, until this much stays: 1GiB", "100MB");
  command.add_flag("--clear", request->clear, "Erase all kernels");
  command.add_flag("--dry-run", request->kernels.dry_run, "With --prune or --clear: say what would go");
  command.add_option("--dir", request->kernels.directory,
                     "Their folder (default: $SHADOWGRAPH_CACHE, else shadowgraph/ in the user's cache folder)");
  begin_group(command, kOutput);
  command.add_flag("--json", request->kernels.json, "As JSON, with all figures");
  command.footer(
      "Examples:\n"
      "  shadowgraph list models\n"
      "  shadowgraph list kernels --prune 1GiB --dry-run");
  return [request, &command] { return list(command, *request); };
}

}  // namespace shadowgraph::cli
