// Reads, writes and locks the entries of the cache folder: STEM.cpp, STEM.so, STEM.json and STEM.lock.
//
// The folder's index lists the stems ("aten_add.Tensor/0123456789abcdef") of all entries ever made there. Only files of
// these names are deleted or replaced, since the user may have named a folder with other contents. Entries are code:
// they are only loaded from files that no other user can write.
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <fcntl.h>
#include <filesystem>
#include <map>
#include <mutex>
#include <pthread.h>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <unistd.h>
#include <utility>

#include "shadowgraph/graph/text.h"
#include "shadowgraph/kernels/program.h"
#include "support/files.h"
#include "support/hash.h"
#include "support/json.h"
#include "support/stopwatch.h"
#include "support/threads.h"

namespace shadowgraph {
namespace {

struct CacheManifest {
  std::string name;      // of the operator's folder
  std::string key;       // the full key
  std::string identity;  // of the back end, the second half of the key
  std::string digest;    // of the library
  std::map<std::string, std::string> verdicts;
};

// A lock on a file, held for the lifetime of the object, or until the process ends. A child of fork() would inherit the
// descriptor, hold the lock as well and wait for itself, so it closes the descriptors in its copy of `open`.
class FileLock {
 public:
  struct Open {
    std::mutex mutex;
    std::set<int> descriptors;
  };
  static Open& open() {
    static auto* open = new Open;
    return *open;
  }

  // `held()` is false if the file cannot be created.
  explicit FileLock(const std::string& path, int flags = 0) {
    {
      const std::lock_guard lock(open().mutex);
      descriptor_ = ::open(path.c_str(), flags | O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
      if (held()) open().descriptors.insert(descriptor_);
    }
    while (held() && ::flock(descriptor_, LOCK_EX) != 0) {
      if (errno != EINTR) close();
    }
  }
  ~FileLock() {
    if (held()) close();
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  bool held() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }

 private:
  void close() {
    const std::lock_guard lock(open().mutex);
    if (open().descriptors.erase(descriptor_) != 0) ::close(descriptor_);  // else closed by fork() already
    descriptor_ = -1;
  }

  int descriptor_ = -1;
};

constexpr int kManifestVersion = 2;  // 2: entries are listed in the index

// Throws UnsupportedError if the entry is missing, truncated or has no manifest.
CacheManifest read_manifest(const std::string& path) {
  try {
    const nlohmann::json json = parse_json(read_private_file(path), path);
    const std::string heading = "'" + path + "' is not a kernel manifest";
    const JsonPlace place(json, heading);
    if (place["version"].integer() != kManifestVersion)
      throw UnsupportedError("'" + path + "' has a different format version");
    CacheManifest manifest{.name = place["name"].text(),
                           .key = place["key"].text(),
                           .identity = place["identity"].text(),
                           .digest = place["sha256"].text()};
    for (const auto& [subject, verdict] : place["verdicts"].members()) manifest.verdicts[subject] = verdict.text();
    place.refuse_other_keys("a kernel manifest");
    return manifest;
  } catch (const UnsupportedError&) {
    throw;
  } catch (const Error& error) {
    throw UnsupportedError(error.what());
  }
}

void write_manifest_file(const std::string& path, const CacheManifest& manifest) {
  const nlohmann::json json = {{"version", kManifestVersion}, {"name", manifest.name},
                               {"key", manifest.key},         {"identity", manifest.identity},
                               {"sha256", manifest.digest},   {"verdicts", manifest.verdicts}};
  replace_private_file(path, json_text(json, 1) + "\n");
}

// Returns the problem with the library at STEM.so, or "" if it matches the manifest.
std::string library_problem(const std::string& stem, const CacheManifest& manifest) {
  try {
    const std::string digest = sha256(read_private_file(stem + ".so"));
    return digest == manifest.digest ? "" : fmt::format("'{}.so' does not match its manifest", stem);
  } catch (const FileError& error) {
    return error.what();
  }
}

namespace fs = std::filesystem;

constexpr const char* kEntryEndings[] = {".json", ".so", ".cpp"};
constexpr std::string_view kIndexFile = "shadowgraph-kernels.txt";
constexpr std::string_view kIndexHeading = "shadowgraph kernel cache 1";
constexpr std::string_view kBuildFiles[] = {"kernel.cpp", "kernel.so", "kernel.so.log"};

// A stem is OPERATOR/HASH or OPERATOR/HASH-NUMBER; other lines of an index are ignored.
bool is_stem(std::string_view line) {
  const size_t slash = line.find('/');
  if (slash == line.npos || slash == 0 || line[0] == '.' || line.size() < slash + 17) return false;
  const std::string_view hash = line.substr(slash + 1, 16), rest = line.substr(slash + 17);
  return hash.find_first_not_of("0123456789abcdef") == hash.npos &&
         (rest.empty() || (rest.size() == 2 && rest[0] == '-' && std::isdigit(static_cast<unsigned char>(rest[1]))));
}

std::string index_path(const std::string& directory) { return (fs::path(directory) / kIndexFile).string(); }

// Returns the stems of the index; none if the folder has no index. Throws FileError if it cannot be trusted.
std::set<std::string> read_index(const std::string& directory) {
  std::set<std::string> stems;
  std::error_code error;
  if (!fs::exists(index_path(directory), error)) return stems;
  if (const std::string problem = private_folder_problem(directory, false); !problem.empty()) throw FileError(problem);
  const std::string text = read_private_file(index_path(directory));
  std::string_view rest = text;
  for (bool first = true; !rest.empty(); first = false) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (first && line != kIndexHeading) {
      throw FileError("'" + index_path(directory) + "' is not the index of a kernel cache; choose another folder");
    }
    if (is_stem(line)) stems.emplace(line);
  }
  return stems;
}

// Adds a stem to the index, which is created if necessary, before its files are. Returns false if that fails.
bool add_to_index(const std::string& directory, const std::string& stem) {
  const std::string name = fs::path(stem).lexically_relative(directory).string();
  if (read_index(directory).contains(name)) return true;
  const FileLock file(index_path(directory), O_APPEND);  // two processes must not both write the heading
  if (!file.held()) return false;
  const bool is_new = ::lseek(file.descriptor(), 0, SEEK_END) == 0;
  const std::string line = (is_new ? std::string(kIndexHeading) + '\n' : "") + name + '\n';
  return ::write(file.descriptor(), line.data(), line.size()) == static_cast<ssize_t>(line.size());
}

void warn_once(const std::string& problem) {
  static std::once_flag once;
  std::call_once(once, [&] { TORCH_WARN("shadowgraph does not store compiled kernels: ", problem); });
}

bool is_listed(const std::string& directory, const std::string& stem) {
  try {
    return read_index(directory).contains(fs::path(stem).lexically_relative(directory).string());
  } catch (const FileError&) {
    return false;
  }
}

// Creates the folders of an entry and lists it in the index. Returns false, with a warning, if that is not possible.
bool prepare_entry(const std::string& directory, const std::string& stem) {
  try {
    for (const fs::path& folder : {fs::path(directory), fs::path(stem).parent_path()}) {
      if (const std::string problem = private_folder_problem(folder, true); !problem.empty()) throw FileError(problem);
    }
    return add_to_index(directory, stem);
  } catch (const FileError& error) {
    warn_once(error.what());
    return false;
  }
}

void erase_entry(const std::string& stem) {
  for (const char* ending : kEntryEndings) std::remove((stem + ending).c_str());
}

}  // namespace

std::string kernel_cache_directory() {
  const char* named = std::getenv("SHADOWGRAPH_CACHE");
  return named != nullptr && *named != '\0' ? std::string(named) : cache_folder().string();
}

std::vector<KernelCacheEntry> list_kernel_cache(const std::string& directory, bool verify) {
  std::vector<KernelCacheEntry> entries;
  std::error_code error;
  if (fs::exists(directory, error) && !fs::is_directory(directory, error)) {
    throw FileError(fmt::format("cannot read the kernel cache '{}': it is not a folder", directory));
  }
  for (const std::string& stem : read_index(directory)) {
    KernelCacheEntry entry{.name = stem.substr(0, stem.find('/')), .stem = (fs::path(directory) / stem).string()};
    const std::string manifest_path = entry.stem + ".json";
    bool any = false;
    for (const char* ending : kEntryEndings) {
      struct stat status {};
      if (::lstat((entry.stem + ending).c_str(), &status) != 0) continue;
      any = true;
      entry.bytes += status.st_size;
      if (ending == kEntryEndings[0]) entry.last_use = status.st_mtim.tv_sec;
    }
    if (!any) continue;  // pruned
    try {
      const CacheManifest manifest = read_manifest(manifest_path);
      entry.identity = manifest.identity;
      if (verify) {
        entry.problem = library_problem(entry.stem, manifest);
      } else if (!fs::exists(entry.stem + ".so", error)) {
        entry.problem = "its library is missing";
      }
    } catch (const UnsupportedError& error) {
      entry.problem = error.what();
    }
    entries.push_back(std::move(entry));
  }
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
  std::error_code ignored;
  if (fs::exists(directory, ignored) && !fs::is_empty(directory, ignored) &&
      !fs::exists(index_path(directory), ignored)) {
    throw FileError(
        fmt::format("'{}' is not a kernel cache: it has no {}; nothing was deleted", directory, kIndexFile));
  }
  std::vector<KernelCacheEntry> entries = list_kernel_cache(directory, false);
  if (dry_run) return entries;
  std::set<fs::path> folders;
  for (const std::string& stem : read_index(directory)) {
    const std::string path = (fs::path(directory) / stem).string();
    erase_entry(path);
    std::remove((path + ".lock").c_str());
    folders.insert(fs::path(path).parent_path());
  }
  for (const fs::path& folder : folders) {
    // Left by processes that were killed.
    for (const fs::directory_entry& left : fs::directory_iterator(folder, ignored)) {
      if (!left.path().filename().string().starts_with(kTemporaryPrefix) || left.is_symlink()) continue;
      for (const std::string_view file : kBuildFiles) fs::remove(left.path() / file, ignored);
      fs::remove(left.path(), ignored);
    }
    fs::remove(folder, ignored);  // if it is empty
  }
  // The index stays: another process may be adding to it.
  return entries;
}

namespace {

constexpr int kMaxCollisions = 8;  // keys with the same hash

uint64_t hash_of(const std::string& key) {
  uint64_t hash = 14695981039346656037ULL;  // FNV-1a
  for (const char c : key) hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211ULL;
  return hash;
}

// A temporary folder of this process, removed on destruction.
class PrivateFolder {
 public:
  // In `base`, or else in the folder of temporary files. Throws FileError.
  explicit PrivateFolder(fs::path base) {
    std::error_code error;
    if (base.empty()) base = fs::temp_directory_path(error);
    std::string pattern = (base.empty() ? fs::path("/tmp") : base) / fmt::format("{}XXXXXX", kTemporaryPrefix);
    if (::mkdtemp(pattern.data()) == nullptr) {
      throw FileError(
          fmt::format("cannot create a folder in '{}': {}", base.string(), std::generic_category().message(errno)));
    }
    path_ = pattern;
  }
  ~PrivateFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  PrivateFolder(const PrivateFolder&) = delete;
  PrivateFolder& operator=(const PrivateFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace

std::string Kernel::problem() const {
  const std::lock_guard lock(mutex_);
  return problem_;
}

// Compiler threads, started on first use. A child process after fork() has none of them, so it gets new jobs, which take
// over the kernels that were queued or compiling.
class KernelCache::Jobs {
 public:
  Jobs(KernelCache& cache, int threads, std::deque<KernelRef> queue = {})
      : cache_(cache), most_(std::max(threads, 1)), queue_(std::move(queue)) {
    static const int handlers = ::pthread_atfork(&before_fork, &after_fork_in_parent, &after_fork_in_child);
    static_cast<void>(handlers);
    const std::lock_guard lock(all().mutex);
    all().jobs.insert(this);
  }
  ~Jobs() {
    {
      const std::scoped_lock lock(all().mutex, mutex_);
      all().jobs.erase(this);
      ending_ = true;
      queue_.clear();
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  Jobs(const Jobs&) = delete;
  Jobs& operator=(const Jobs&) = delete;

  void add(KernelRef kernel) {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(kernel));
    start_threads();
    changed_.notify_one();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    start_threads();
    wait_until(idle_, lock, [this] { return queue_.empty() && compiling_.empty(); });
  }

 private:
  struct All {
    std::mutex mutex;
    std::set<Jobs*> jobs;
  };
  static All& all() {
    static auto* all = new All;
    return *all;
  }

  // fork() copies mutexes in their present state, so all are held meanwhile.
  static void before_fork() {
    FileLock::open().mutex.lock();
    all().mutex.lock();
    for (Jobs* jobs : all().jobs) {
      jobs->cache_.mutex_.lock();
      for (const auto& [hash, kernel] : jobs->cache_.kernels_) kernel->mutex_.lock();
      jobs->mutex_.lock();
    }
  }
  static void after_fork_in_parent() {
    for (Jobs* jobs : all().jobs) {
      jobs->mutex_.unlock();
      jobs->unlock_cache();
    }
    all().mutex.unlock();
    FileLock::open().mutex.unlock();
  }
  static void after_fork_in_child() {
    for (const int descriptor : std::exchange(FileLock::open().descriptors, {})) ::close(descriptor);
    FileLock::open().mutex.unlock();
    const std::set<Jobs*> before = std::exchange(all().jobs, {});
    all().mutex.unlock();
    for (Jobs* jobs : before) {
      std::deque<KernelRef> queue = std::move(jobs->queue_);
      queue.insert(queue.begin(), jobs->compiling_.begin(), jobs->compiling_.end());
      KernelCache& cache = jobs->cache_;
      static_cast<void>(cache.jobs_.release());  // never destroyed: its threads do not exist
      cache.jobs_ = std::make_unique<Jobs>(cache, static_cast<int>(jobs->most_), std::move(queue));
      jobs->unlock_cache();
    }
  }
  void unlock_cache() {
    for (const auto& [hash, kernel] : cache_.kernels_) kernel->mutex_.unlock();
    cache_.mutex_.unlock();
  }

  void start_threads() {
    while (threads_.size() < most_ && threads_.size() < queue_.size() + compiling_.size()) {
      threads_.emplace_back([this] { run(); });
    }
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      wait_until(changed_, lock, [this] { return ending_ || !queue_.empty(); });
      if (ending_) return;
      const KernelRef kernel = std::move(queue_.front());
      queue_.pop_front();
      compiling_.insert(kernel);
      lock.unlock();
      cache_.obtain(kernel);
      lock.lock();
      compiling_.erase(kernel);
      if (queue_.empty() && compiling_.empty()) idle_.notify_all();
    }
  }

  KernelCache& cache_;
  const size_t most_;
  std::mutex mutex_;
  std::condition_variable changed_, idle_;
  std::deque<KernelRef> queue_;
  std::set<KernelRef> compiling_;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

KernelCache::KernelCache(KernelCacheOptions options, std::shared_ptr<const KernelBackend> backend)
    : options_(std::move(options)),
      backend_(std::move(backend)),
      directory_(options_.directory.empty() ? kernel_cache_directory() : options_.directory),
      jobs_(std::make_unique<Jobs>(*this, options_.jobs)) {}

KernelCache::~KernelCache() = default;

const std::shared_ptr<KernelCache>& KernelCache::shared() {
  static const auto cache = std::make_shared<KernelCache>();
  return cache;
}

KernelRef KernelCache::find(const std::string& name, const KernelProgram& program) {
  if (!backend_->problem().empty()) {
    const std::lock_guard lock(mutex_);
    if (!said_) TORCH_WARN("shadowgraph cannot compile kernels: ", backend_->problem());
    said_ = true;
    return nullptr;
  }
  std::string key = program.text() + backend_->identity();
  const uint64_t hash = options_.hash ? options_.hash(key) : hash_of(key);
  KernelRef kernel;
  {
    const std::lock_guard lock(mutex_);
    const auto [begin, end] = kernels_.equal_range(hash);
    for (auto it = begin; it != end; ++it) {
      if (it->second->key_ != key) continue;
      ++stats_.memory_hits;
      return it->second;
    }
    kernel = std::make_shared<Kernel>();
    kernel->name_ = name;
    kernel->key_ = std::move(key);
    kernel->hash_ = hash;
    kernel->program_ = program;
    kernels_.emplace(hash, kernel);
  }
  if (options_.mode != KernelCacheMode::kOff && load_entry(kernel)) return kernel;
  if (options_.background) {
    jobs_->add(kernel);
  } else {
    obtain(kernel);
  }
  return kernel;
}

void KernelCache::count(int64_t KernelCacheStats::*event) {
  const std::lock_guard lock(mutex_);
  ++(stats_.*event);
}

void KernelCache::wait() const { jobs_->wait(); }

KernelCacheStats KernelCache::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

// Loads the entry with exactly this key, if it is complete. Keys with the same hash have consecutive entries.
bool KernelCache::load_entry(const KernelRef& kernel) {
  const Stopwatch watch;
  const std::string name = fmt::format("{}/{:016x}", file_name(kernel->name_), kernel->hash_);
  const std::string base = (fs::path(directory_) / name).string();
  kernel->stem_.clear();
  for (const std::string& folder : {directory_, fs::path(base).parent_path().string()}) {
    std::error_code error;
    if (!fs::exists(fs::symlink_status(folder, error))) continue;
    if (const std::string problem = private_folder_problem(folder, false); !problem.empty()) {
      warn_once(problem);
      return false;
    }
  }
  for (int i = 0; i < kMaxCollisions; ++i) {
    const std::string stem = i == 0 ? base : fmt::format("{}-{}", base, i);
    std::error_code error;
    if (!fs::exists(fs::symlink_status(stem + ".json", error))) {
      // A library or source of this name, without a manifest, may be another program's.
      if (fs::exists(fs::symlink_status(stem + ".so", error)) && !is_listed(directory_, stem)) continue;
      if (kernel->stem_.empty()) kernel->stem_ = stem;
      return false;
    }
    try {
      CacheManifest manifest = read_manifest(stem + ".json");
      if (manifest.key != kernel->key_) continue;
      kernel->stem_ = stem;
      if (const std::string problem = library_problem(stem, manifest); !problem.empty())
        throw UnsupportedError(problem);
      const KernelFunction function = backend_->load(stem + ".so");
      if (options_.mode == KernelCacheMode::kReadWrite) {
        ::utimensat(AT_FDCWD, (stem + ".json").c_str(), nullptr, 0);
      }
      {
        const std::lock_guard lock(kernel->mutex_);
        kernel->verdicts_ = std::move(manifest.verdicts);
      }
      finish(kernel, function, "");
      const std::lock_guard lock(mutex_);
      ++stats_.loaded;
      stats_.load_seconds += watch.seconds();
      return true;
    } catch (const UnsupportedError&) {
      // The entry is checked again under the lock.
      if (!std::exchange(kernel->rejected_, true)) count(&KernelCacheStats::rejected);
      // Recompiled in place of the invalid one, but files of others are not replaced.
      if (!is_listed(directory_, stem)) {
        if (kernel->stem_ == stem) kernel->stem_.clear();
        continue;
      }
      if (kernel->stem_.empty()) kernel->stem_ = stem;
      if (kernel->stem_ == stem) return false;
    }
  }
  return false;
}

void KernelCache::finish(const KernelRef& kernel, KernelFunction function, const std::string& problem) {
  if (function == nullptr) {
    const std::lock_guard lock(kernel->mutex_);
    kernel->problem_ = problem;
  }
  kernel->function_.store(function, std::memory_order_release);
  kernel->state_.store(function != nullptr ? Kernel::State::kReady : Kernel::State::kFailed, std::memory_order_release);
}

void KernelCache::obtain(const KernelRef& kernel) {
  std::string problem;
  try {
    const std::string stem = kernel->stem_;
    const bool stores = options_.mode == KernelCacheMode::kReadWrite;
    bool keep = stores && !stem.empty() && prepare_entry(directory_, stem);
    if (keep) {
      const FileLock lock(stem + ".lock");
      if (lock.held() && load_entry(kernel)) return;
      keep = lock.held() && kernel->stem_ == stem;  // else another process has put other files there
      if (keep) problem = make_entry(kernel, true);
      if (keep && problem.empty()) enforce_limit();
    }
    if (!keep) {
      if (stores) count(&KernelCacheStats::write_errors);
      problem = make_entry(kernel, false);
    }
  } catch (const std::exception& error) {
    problem = error.what();
  }
  if (problem.empty()) return;
  count(&KernelCacheStats::failed);
  finish(kernel, nullptr, problem);
}

// Compiles and loads a kernel; with `keep` into the cache folder, if that is writable. Returns the problem, if any.
std::string KernelCache::make_entry(const KernelRef& kernel, bool keep) {
  const Stopwatch watch;
  std::string problem;
  try {
    // Beside the entry, so that files can be renamed.
    const PrivateFolder folder(keep ? fs::path(kernel->stem_).parent_path() : fs::path());
    const std::string source = folder.path() + "/kernel.cpp", library = folder.path() + "/kernel.so";
    write_file(source, backend_->source(kernel->program_));
    problem = backend_->compile(source, library);
    if (problem.empty()) {
      fs::permissions(library, fs::perms::owner_all);  // others cannot write to it, whatever the umask
      const std::string digest = sha256(read_file(library));
      const KernelFunction function = backend_->load(library);
      if (keep) {
        // Entries without a manifest are ignored, so a failure below leaves no partial entry.
        std::remove((kernel->stem_ + ".json").c_str());
        if (std::rename(source.c_str(), (kernel->stem_ + ".cpp").c_str()) != 0 ||
            std::rename(library.c_str(), (kernel->stem_ + ".so").c_str()) != 0 || !write_manifest(*kernel, digest)) {
          count(&KernelCacheStats::write_errors);
        }
      }
      finish(kernel, function, "");
    }
  } catch (const Error& error) {
    problem = error.what();
  }
  {
    const std::lock_guard lock(mutex_);
    stats_.compile_seconds += watch.seconds();
    if (problem.empty()) ++stats_.compiled;
  }
  // The folder may be full or not writable: retry once without it. A failing compiler fails again, at low cost. A
  // compiler that timed out is not retried.
  if (!problem.empty() && keep && problem.find("did not finish") == std::string::npos) {
    count(&KernelCacheStats::write_errors);
    kernel->stem_.clear();
    return make_entry(kernel, false);
  }
  return problem;
}

bool KernelCache::write_manifest(const Kernel& kernel, const std::string& digest) {
  try {
    const std::lock_guard lock(kernel.mutex_);
    write_manifest_file(kernel.stem_ + ".json", {.name = kernel.name_,
                                                 .key = kernel.key_,
                                                 .identity = backend_->identity(),
                                                 .digest = digest,
                                                 .verdicts = kernel.verdicts_});
    return true;
  } catch (const FileError&) {
    return false;
  }
}

void KernelCache::enforce_limit() {
  if (options_.max_bytes <= 0) return;
  try {
    prune_kernel_cache(directory_, options_.max_bytes);
  } catch (const FileError&) {
    count(&KernelCacheStats::write_errors);
  }
}

std::string KernelCache::verdict(const KernelRef& kernel, const std::string& subject) const {
  const std::lock_guard lock(kernel->mutex_);
  const auto found = kernel->verdicts_.find(subject);
  return found == kernel->verdicts_.end() ? "" : found->second;
}

void KernelCache::set_verdict(const KernelRef& kernel, const std::string& subject, const std::string& verdict) {
  {
    const std::lock_guard lock(kernel->mutex_);
    std::string& known = kernel->verdicts_[subject];
    if (known == verdict) return;
    known = verdict;
  }
  if (options_.mode != KernelCacheMode::kReadWrite || kernel->stem_.empty()) return;
  const FileLock lock(kernel->stem_ + ".lock");
  if (!lock.held()) return;
  try {
    CacheManifest manifest = read_manifest(kernel->stem_ + ".json");
    if (manifest.key != kernel->key_) return;
    manifest.verdicts[subject] = verdict;  // keeps verdicts of others
    write_manifest_file(kernel->stem_ + ".json", manifest);
  } catch (const Error&) {  // pruned meanwhile, or the disk is full: measured again next time
    count(&KernelCacheStats::write_errors);
  }
}

}  // namespace shadowgraph
