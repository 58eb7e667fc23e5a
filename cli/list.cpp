// `shadowgraph list`: lists models, devices, passes and compiled kernels; also cleans up the kernel cache.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <ctime>
#include <map>
#include <vector>

#include "cli/option_checks.h"
#include "cli/output.h"
#include "cli/source_options.h"
#include "cli/verbs.h"
#include "models/registry.h"
#include "shadowgraph/kernels/kernel.h"
#include "shadowgraph/kernels/program.h"
#include "shadowgraph/passes/pipeline.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/profile.h"

namespace shadowgraph::cli {
namespace {

struct ListRequest {
  std::string what;
  bool verify = false;
  std::optional<int64_t> prune;
  bool clear = false, operators = false;
  std::string directory;  // kernel cache; empty: the library's default
  bool dry_run = false;   // only report what would be deleted
  bool json = false;
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
    return print_text(json_text(list));
  }
  print_text(fmt::format("{:<14} {:>15}  {:<14} {}\n", "MODEL", "PARAMETERS", "DEFAULT INPUT", ""));
  for (const auto& info : models::available()) {
    const std::string input = info.default_seq != 0
                                  ? fmt::format("{} x {}", info.default_batch, info.default_seq)
                                  : fmt::format("{} x {}^2", info.default_batch, info.default_image_size);
    print_text(
        fmt::format("{:<14} {:>15}  {:<14} {}\n", info.name, exact_count(info.parameters), input, info.description));
  }
}

void list_devices(bool json) {
  if (json) {
    auto list = nlohmann::json::array();
    for (const std::string& name : DeviceSpec::names()) list.push_back(to_json(DeviceSpec::named(name)));
    return print_text(json_text(list));
  }
  print_text(fmt::format("{:<14} {:>12} {:>12} {:>14} {:>14}  {}\n", "DEVICE", "MEMORY", "BYTES/S", "FLOP/S f32",
                         "FLOP/S bf16", ""));
  for (const std::string& name : DeviceSpec::names()) {
    const DeviceSpec spec = DeviceSpec::named(name);
    const auto rate = [&](c10::ScalarType dtype) {
      const auto found = spec.matmul.find(dtype);
      return found == spec.matmul.end() ? std::string("-") : human_count(static_cast<int64_t>(found->second));
    };
    print_text(fmt::format("{:<14} {:>12} {:>12} {:>14} {:>14}  {}\n", name, human_bytes(spec.memory),
                           human_bytes(static_cast<int64_t>(spec.bandwidth)), rate(c10::kFloat), rate(c10::kBFloat16),
                           spec.title));
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
    return print_text(json_text(list));
  }
  for (const Pass* pass : all_passes()) {
    print_text(fmt::format("{:<14} {}\n", pass->name, pass->summary));
    for (const PassOption& option : pass->options) {
      const std::string value = option.default_value.empty() ? "" : fmt::format("={}", option.default_value);
      print_text(fmt::format("{:<14}   {}{}: {}\n", "", option.name, value, option.summary));
    }
  }
}

std::string directory_of(const ListRequest& request) {
  return request.directory.empty() ? kernel_cache_directory() : request.directory;
}

std::string date_of(int64_t seconds) {
  const auto time = static_cast<std::time_t>(seconds);
  std::tm local{};
  localtime_r(&time, &local);
  char text[32];
  return {text, std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M", &local)};
}

nlohmann::json to_json(const std::string& directory, const std::vector<KernelCacheEntry>& entries) {
  auto list = nlohmann::json::array();
  for (const KernelCacheEntry& entry : entries) {
    list.push_back({{"name", entry.name},
                    {"stem", entry.stem},
                    {"bytes", entry.bytes},
                    {"last_use", entry.last_use},
                    {"identity", entry.identity},
                    {"problem", entry.problem}});
  }
  return {{"directory", directory}, {"entries", std::move(list)}};
}

struct Row {
  int64_t entries = 0, broken = 0, bytes = 0, last_use = 0;
  int64_t foreign = 0;  // for another compiler or processor
};

void print_row(size_t width, const std::string& name, const Row& row) {
  std::string notes;
  if (row.foreign > 0) notes = fmt::format("{} for another compiler or processor", row.foreign);
  if (row.broken > 0) notes += fmt::format("{}{} broken", notes.empty() ? "" : ", ", row.broken);
  print_text(fmt::format("{:<{}}  {:>7} {:>12}  {:<16}  {}\n", name, width, row.entries, human_bytes(row.bytes),
                         row.last_use > 0 ? date_of(row.last_use) : "", notes));
}

void print_deleted(const ListRequest& request, const std::vector<KernelCacheEntry>& deleted) {
  int64_t bytes = 0;
  for (const KernelCacheEntry& entry : deleted) bytes += entry.bytes;
  const size_t n = deleted.size();
  print_text(fmt::format("{}: {} {} {}, {}\n", directory_of(request), n, n == 1 ? "entry" : "entries",
                         request.dry_run ? "would be deleted" : "deleted", human_bytes(bytes)));
}

// Prints a line per operator: kernels, bytes, last use, and how many are broken or for another compiler or processor.
void list_kernels(const ListRequest& request) {
  const std::string directory = directory_of(request);
  const std::vector<KernelCacheEntry> entries = list_kernel_cache(directory, false);
  if (request.json) return print_text(json_text(to_json(directory, entries)));
  if (entries.empty()) return print_text(fmt::format("{}: no kernels\n", directory));
  const std::string identity = compiler_backend()->identity();
  std::map<std::string, Row> rows;
  Row total;
  size_t width = 8;
  for (const KernelCacheEntry& entry : entries) {
    width = std::max(width, entry.name.size());
    for (Row* row : {&rows[entry.name], &total}) {
      ++row->entries;
      row->bytes += entry.bytes;
      row->last_use = std::max(row->last_use, entry.last_use);
      row->broken += entry.problem.empty() ? 0 : 1;
      row->foreign += entry.problem.empty() && entry.identity != identity ? 1 : 0;
    }
  }
  print_text(
      fmt::format("{}\n{:<{}}  {:>7} {:>12}  {}\n", directory, "OPERATOR", width, "KERNELS", "SIZE", "LAST USE"));
  for (const auto& [name, row] : rows) print_row(width, name, row);
  print_row(width, "total", total);
}

// Compares every library's digest with its manifest. Returns whether all are intact.
bool verify_kernels(const ListRequest& request) {
  const std::string directory = directory_of(request);
  const std::vector<KernelCacheEntry> entries = list_kernel_cache(directory, true);
  const auto broken = std::ranges::count_if(entries, [](const KernelCacheEntry& e) { return !e.problem.empty(); });
  std::string text;
  for (const KernelCacheEntry& entry : entries) {
    if (!entry.problem.empty()) text += fmt::format("{}: {}\n", entry.stem, entry.problem);
  }
  text += fmt::format("{}: {} of {} {} intact\n", directory, entries.size() - static_cast<size_t>(broken),
                      entries.size(), entries.size() == 1 ? "entry is" : "entries are");
  print_text(request.json ? json_text(to_json(directory, entries)) : text);
  if (broken != 0) {
    print_log("shadowgraph: {} of the kernels in {} cannot be used, for the reasons printed above\n", broken,
              directory);
  }
  return broken == 0;
}

// Prints the operators that can be compiled, and the others grouped by the reason why not.
void list_operators(bool json) {
  const std::vector<std::string> compiled = compilable_operators();
  const std::map<std::string, std::string> without = operators_without_kernels();
  if (json) return print_text(json_text({{"compiled", compiled}, {"without", without}}));
  std::map<std::string, std::vector<std::string>> by_reason;
  for (const auto& [name, reason] : without) by_reason[reason].push_back(name);
  print_out("{} operators have kernels:\n  {}\n", compiled.size(), fmt::join(compiled, "\n  "));
  for (const auto& [reason, names] : by_reason) {
    print_out("\n{} have none: {}\n  {}\n", names.size(), reason, fmt::join(names, "\n  "));
  }
}

int kernels(const CLI::App& command, const ListRequest& request) {
  if (request.verify + request.prune.has_value() + request.clear > 1) {
    throw CLI::ValidationError("list kernels", "give only one of --verify, --prune and --clear at a time");
  }
  if (request.operators) {
    takes_only(command, "--operators", {"WHAT", "--operators", "--json"});
    list_operators(request.json);
    return 0;
  }
  const bool deletes = request.prune || request.clear;
  if (deletes) takes_none_of(command, request.prune ? "--prune" : "--clear", {"--json"});
  if (!deletes && request.dry_run) throw CLI::ValidationError("--dry-run", "requires --prune or --clear");
  if (request.verify) return verify_kernels(request) ? 0 : 1;
  if (request.prune) {
    print_deleted(request, prune_kernel_cache(directory_of(request), *request.prune, request.dry_run));
  } else if (request.clear) {
    print_deleted(request, clear_kernel_cache(directory_of(request), request.dry_run));
  } else {
    list_kernels(request);
  }
  return 0;
}

int list(const CLI::App& command, const ListRequest& request) {
  if (request.what == "kernels") return kernels(command, request);
  takes_only(command, request.what, {"WHAT", "--json"});
  if (request.what == "models") list_models(request.json);
  if (request.what == "devices") list_devices(request.json);
  if (request.what == "passes") list_passes(request.json);
  return 0;
}

void add_options(CLI::App& command, ListRequest& request) {
  command.add_option("WHAT", request.what, "models, devices, passes or kernels")
      ->required()
      ->check(one_of({"models", "devices", "passes", "kernels"}));
  begin_group(command, "Compiled kernels (list kernels)");
  command.add_flag("--operators", request.operators, "List operators that can be compiled, and why the others cannot");
  command.add_flag("--verify", request.verify,
                   "Verify every library against its manifest (exit code 1 if any is broken)");
  add_bytes(command, "--prune", request.prune,
            "Delete broken, then least recently used kernels until this size remains: 1GiB");
  command.add_flag("--clear", request.clear, "Delete all kernels");
  command.add_flag("--dry-run", request.dry_run, "With --prune or --clear: only report what would be deleted");
  command.add_option("--dir", request.directory,
                     "Kernel cache folder (default: $SHADOWGRAPH_CACHE, else shadowgraph/ in the user cache)");
  begin_group(command, kOutput);
  command.add_flag("--json", request.json, "Print JSON with all columns");
  command.footer(
      "Examples:\n"
      "  shadowgraph list models\n"
      "  shadowgraph list kernels --prune 1GiB --dry-run");
}

}  // namespace

Work declare_list(CLI::App& command) { return work_of<ListRequest>(command, add_options, list); }

}  // namespace shadowgraph::cli
