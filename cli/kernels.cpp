#include "cli/kernels.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <ctime>
#include <map>
#include <vector>

#include "cli/output.h"
#include "shadowgraph/kernels/backend.h"
#include "shadowgraph/kernels/cache.h"
#include "shadowgraph/profile/units.h"

namespace shadowgraph::cli {
namespace {

std::string directory_of(const KernelsRequest& request) {
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
  int64_t entries = 0;
  int64_t foreign = 0;  // of another compiler or processor than this one's
  int64_t broken = 0;
  int64_t bytes = 0;
  int64_t last_use = 0;
};

void print_row(size_t width, const std::string& name, const Row& row) {
  std::string notes;
  if (row.foreign > 0) notes = fmt::format("{} of another compiler or processor", row.foreign);
  if (row.broken > 0) notes += fmt::format("{}{} broken", notes.empty() ? "" : ", ", row.broken);
  fmt::print("{:<{}}  {:>7} {:>12}  {:<16}  {}\n", name, width, row.entries, human_bytes(row.bytes),
             row.last_use > 0 ? date_of(row.last_use) : "", notes);
}

void print_erased(const KernelsRequest& request, const std::vector<KernelCacheEntry>& erased) {
  int64_t bytes = 0;
  for (const KernelCacheEntry& entry : erased) bytes += entry.bytes;
  const size_t n = erased.size();
  fmt::print("{}: {} {} {}, {}\n", directory_of(request), n, n == 1 ? "entry" : "entries",
             request.dry_run ? "would be erased" : "erased", human_bytes(bytes));
}

}  // namespace

void list_kernels(const KernelsRequest& request) {
  const std::string directory = directory_of(request);
  const std::vector<KernelCacheEntry> entries = list_kernel_cache(directory, false);
  if (request.json) {
    print_text(json_text(to_json(directory, entries)));
    return;
  }
  if (entries.empty()) {
    fmt::print("{}: no kernels\n", directory);
    return;
  }
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
      if (!entry.problem.empty()) {
        ++row->broken;
      } else if (entry.identity != identity) {
        ++row->foreign;
      }
    }
  }
  fmt::print("{}\n{:<{}}  {:>7} {:>12}  {}\n", directory, "OPERATOR", width, "KERNELS", "SIZE", "LAST USE");
  for (const auto& [name, row] : rows) print_row(width, name, row);
  print_row(width, "total", total);
}

bool verify_kernels(const KernelsRequest& request) {
  const std::string directory = directory_of(request);
  const std::vector<KernelCacheEntry> entries = list_kernel_cache(directory, true);
  const auto broken = std::ranges::count_if(entries, [](const KernelCacheEntry& e) { return !e.problem.empty(); });
  if (request.json) {
    print_text(json_text(to_json(directory, entries)));
    return broken == 0;
  }
  for (const KernelCacheEntry& entry : entries) {
    if (!entry.problem.empty()) fmt::print("{}: {}\n", entry.stem, entry.problem);
  }
  fmt::print("{}: {} of {} {} whole\n", directory, entries.size() - static_cast<size_t>(broken), entries.size(),
             entries.size() == 1 ? "entry is" : "entries are");
  return broken == 0;
}

void prune_kernels(const KernelsRequest& request, int64_t most) {
  print_erased(request, prune_kernel_cache(directory_of(request), most, request.dry_run));
}

void clear_kernels(const KernelsRequest& request) {
  print_erased(request, clear_kernel_cache(directory_of(request), request.dry_run));
}

}  // namespace shadowgraph::cli
