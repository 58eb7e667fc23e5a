#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <tuple>
#include <unistd.h>

#include "kernels/cache/entry.h"
#include "shadowgraph/kernels/cache.h"

namespace shadowgraph {
namespace {

namespace fs = std::filesystem;

constexpr const char* kEntryEndings[] = {".json", ".so", ".cpp"};

[[noreturn]] void cannot_read(const std::string& directory, const std::error_code& error) {
  throw FileError(fmt::format("cannot read the kernel cache '{}': {}", directory, error.message()));
}

// Calls f(folder, file) for the files of all operators' folders.
template <class F>
void for_each_cache_file(const std::string& directory, F&& f) {
  std::error_code error;
  if (!fs::exists(directory, error)) return;
  fs::directory_iterator folders(directory, error);
  if (error) cannot_read(directory, error);
  for (const fs::directory_entry& folder : folders) {
    if (!folder.is_directory(error)) continue;
    fs::directory_iterator files(folder.path(), error);
    if (error) continue;  // another process is pruning
    for (const fs::directory_entry& file : files) f(folder.path(), file.path());
  }
}

void erase_entry(const std::string& stem) {
  for (const char* ending : kEntryEndings) std::remove((stem + ending).c_str());
}

}  // namespace

std::string kernel_cache_directory() {
  const auto named = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  if (const std::string own = named("SHADOWGRAPH_CACHE"); !own.empty()) return own;
  if (const std::string shared = named("XDG_CACHE_HOME"); !shared.empty()) return shared + "/shadowgraph";
  if (const std::string home = named("HOME"); !home.empty()) return home + "/.cache/shadowgraph";
  std::error_code error;
  return fs::temp_directory_path(error) / fmt::format("shadowgraph-{}", ::getuid());
}

std::vector<KernelCacheEntry> list_kernel_cache(const std::string& directory, bool verify) {
  std::vector<KernelCacheEntry> entries;
  for_each_cache_file(directory, [&](const fs::path& folder, const fs::path& file) {
    if (file.extension() != ".json") return;
    KernelCacheEntry entry{.name = folder.filename(), .stem = fs::path(file).replace_extension().string()};
    for (const char* ending : kEntryEndings) {
      struct stat status {};
      if (::stat((entry.stem + ending).c_str(), &status) != 0) continue;
      entry.bytes += status.st_size;
      if (ending == kEntryEndings[0]) entry.last_use = status.st_mtim.tv_sec;
    }
    try {
      const CacheManifest manifest = read_manifest(file);
      entry.identity = manifest.identity;
      std::error_code error;
      if (verify) {
        entry.problem = library_problem(entry.stem, manifest);
      } else if (!fs::exists(entry.stem + ".so", error)) {
        entry.problem = "its library is missing";
      }
    } catch (const KernelError& error) {
      entry.problem = error.what();
    }
    entries.push_back(std::move(entry));
  });
  std::ranges::sort(entries, {}, [](const KernelCacheEntry& e) { return std::tie(e.name, e.stem); });
  return entries;
}

std::vector<KernelCacheEntry> prune_kernel_cache(const std::string& directory, int64_t max_bytes, bool dry_run) {
  std::vector<KernelCacheEntry> entries = list_kernel_cache(directory, false);
  int64_t total = 0;
  for (const KernelCacheEntry& entry : entries) total += entry.bytes;
  std::ranges::stable_sort(entries, {},
                           [](const KernelCacheEntry& e) { return std::pair(e.problem.empty(), e.last_use); });
  std::vector<KernelCacheEntry> erased;
  for (const KernelCacheEntry& entry : entries) {
    if (entry.problem.empty() && total <= max_bytes) break;
    if (!dry_run) erase_entry(entry.stem);
    total -= entry.bytes;
    erased.push_back(entry);
  }
  return erased;
}

std::vector<KernelCacheEntry> clear_kernel_cache(const std::string& directory, bool dry_run) {
  std::vector<KernelCacheEntry> entries = list_kernel_cache(directory, false);
  if (dry_run) return entries;
  std::vector<fs::path> folders;
  for_each_cache_file(directory, [&](const fs::path& folder, const fs::path& file) {
    const std::string name = file.filename();
    const std::string ending = file.extension();
    // Removes nothing but what the cache makes: somebody may have named a folder that holds more.
    const bool own = ending == ".lock" || ending == ".json" || ending == ".so" || ending == ".cpp" ||
                     ending == ".log" || name.find(".tmp") != std::string::npos;
    if (!own) return;
    std::error_code ignored;
    fs::remove(file, ignored);
    if (folders.empty() || folders.back() != folder) folders.push_back(folder);
  });
  for (const fs::path& folder : folders) {
    std::error_code ignored;
    fs::remove(folder, ignored);  // if it is empty
  }
  return entries;
}

}  // namespace shadowgraph
