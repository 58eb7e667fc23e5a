// Kernels by what they compute: in memory, and in a folder that outlives the process.
//
//     auto cache = std::make_shared<KernelCache>();        // ~/.cache/shadowgraph, compiling in the background
//     KernelRef kernel = cache->find("aten::add_Tensor", program);
//     if (KernelFunction run = kernel->function()) run(...); // nullptr: not compiled yet, or not to be had
//
// The key is the text of the program and the back end's identity (compiler, flags, processor, ABI). It is found by its
// hash and compared in full. An entry is three files of one name in the folder of its operator or group: source (.cpp),
// library (.so) and manifest (.json). The manifest holds the key and the library's SHA-256.
//
// Files are written aside and renamed, the manifest last. A lock lets one process compile while others wait for what it
// makes. An entry that is cut short, altered or another's is passed over and counted, and made again.
//
// Folder: KernelCacheOptions::directory, or $SHADOWGRAPH_CACHE, or $XDG_CACHE_HOME/shadowgraph, or ~/.cache/shadowgraph.
// Thread-safe. What goes wrong with files or the compiler is never thrown. The kernel is then not to be had, stats()
// counts why, and whoever asked runs what it would have run.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "shadowgraph/kernels/backend.h"
#include "shadowgraph/kernels/program.h"

namespace SHADOWGRAPH_API shadowgraph {

enum class KernelCacheMode : uint8_t {
  kReadWrite,
  kReadOnly,  // kernels of the folder are used, new ones compiled for this process alone
  kOff,       // the folder is not looked at
};

struct KernelCacheOptions {
  std::string directory;  // "": see above
  KernelCacheMode mode = KernelCacheMode::kReadWrite;
  int64_t max_bytes = int64_t{1} << 30;  // of the folder; the least recently used go first. 0: no limit
  bool background = true;                // false: find() returns when the kernel is there, or cannot be
  int jobs = 2;                          // compilations at a time
  // In place of the hash of a key, for tests of what collides.
  std::function<uint64_t(const std::string& key)> hash;
};

// Counts since the cache was made.
struct KernelCacheStats {
  int64_t memory_hits = 0;
  int64_t loaded = 0;    // from the folder
  int64_t compiled = 0;  // by this process
  int64_t failed = 0;    // compilations
  int64_t rejected = 0;  // entries that were cut short, altered or another's
  int64_t write_errors = 0;
  double compile_seconds = 0;  // summed over jobs
  double load_seconds = 0;
};

// One kernel, perhaps still to come.
class Kernel {
 public:
  // nullptr until it is ready, and for good if it cannot be had.
  KernelFunction function() const { return function_.load(std::memory_order_acquire); }
  enum class State : uint8_t { kPending, kReady, kFailed };
  State state() const { return state_.load(std::memory_order_acquire); }
  // Why it failed; "" otherwise.
  std::string problem() const;
  const std::string& name() const { return name_; }
  const std::string& key() const { return key_; }

 private:
  friend class KernelCache;
  std::string name_;  // of its folder
  std::string key_;
  uint64_t hash_ = 0;
  KernelProgram program_;
  std::string stem_;       // path of the entry without ending; "" if it is of this process alone
  bool rejected_ = false;  // its entry, and counted
  std::atomic<KernelFunction> function_ = nullptr;
  std::atomic<State> state_ = State::kPending;
  mutable std::mutex mutex_;
  std::string problem_;
  std::map<std::string, std::string> verdicts_;
};
using KernelRef = std::shared_ptr<Kernel>;

class KernelCache {
 public:
  explicit KernelCache(KernelCacheOptions options = {},
                       std::shared_ptr<const KernelBackend> backend = compiler_backend());
  // Waits for compilations under way; those not begun are given up.
  ~KernelCache();
  KernelCache(const KernelCache&) = delete;
  KernelCache& operator=(const KernelCache&) = delete;

  // One for all who give none: default options.
  static const std::shared_ptr<KernelCache>& shared();

  // `name` is the folder, "aten::add_Tensor" or "group"; not part of the key. nullptr where there is no compiler (said
  // once, as a warning).
  KernelRef find(const std::string& name, const KernelProgram& program);
  // Until nothing is under way.
  void wait() const;
  KernelCacheStats stats() const;
  const KernelCacheOptions& options() const { return options_; }
  const std::string& directory() const { return directory_; }
  const KernelBackend& backend() const { return *backend_; }

  // What was measured about a kernel, kept with it in its manifest: "" if nothing is known for `subject`.
  std::string verdict(const KernelRef& kernel, const std::string& subject) const;
  void set_verdict(const KernelRef& kernel, const std::string& subject, const std::string& verdict);

 private:
  class Jobs;
  void obtain(const KernelRef& kernel);
  bool load_entry(const KernelRef& kernel);
  std::string make_entry(const KernelRef& kernel, bool keep);
  void finish(const KernelRef& kernel, KernelFunction function, const std::string& problem);
  bool write_manifest(const Kernel& kernel, const std::string& digest);
  void enforce_limit();

  const KernelCacheOptions options_;
  const std::shared_ptr<const KernelBackend> backend_;
  std::string directory_;
  mutable std::mutex mutex_;
  std::multimap<uint64_t, KernelRef> kernels_;
  KernelCacheStats stats_;
  bool said_ = false;
  std::unique_ptr<Jobs> jobs_;
};

// ---- The folder, looked at from outside (shadowgraph list kernels). All throw FileError where the
// folder cannot be read; a folder that is not there is empty.

struct KernelCacheEntry {
  std::string name;  // of the operator's folder
  std::string stem;  // path without ending
  int64_t bytes = 0;
  int64_t last_use = 0;  // seconds since 1970
  std::string identity;  // of the back end that made it; "" if the manifest cannot be read
  std::string problem;   // "" if it is whole
};

std::string kernel_cache_directory();
// `verify`: digests are compared as well, which reads all libraries.
std::vector<KernelCacheEntry> list_kernel_cache(const std::string& directory, bool verify);
// Erases what is broken, then least recently used entries until at most `max_bytes` are left; gives what was erased, or
// would be (`dry_run`).
std::vector<KernelCacheEntry> prune_kernel_cache(const std::string& directory, int64_t max_bytes, bool dry_run = false);
// Erases all entries, and what was left of interrupted ones; gives the entries.
std::vector<KernelCacheEntry> clear_kernel_cache(const std::string& directory, bool dry_run = false);

}  // namespace shadowgraph
