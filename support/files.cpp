#include "support/files.h"

#include <ext/stdio_filebuf.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <fstream>
#include <optional>
#include <random>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "shadowgraph/error.h"
#include "support/text.h"

namespace shadowgraph {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostInName = 200;  // bytes; file systems allow 255, including extensions

// Streams only report failure; errno has the reason.
[[noreturn]] void fail_file(const std::string& what, const std::string& path, int reason) {
  throw FileError(what + " '" + path + "'" + (reason != 0 ? ": " + std::generic_category().message(reason) : ""));
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Returns why the content cannot be trusted, or "".
std::string owner_problem(const struct stat& status) {
  if (status.st_uid != ::geteuid()) return fmt::format("it belongs to another user (uid {})", status.st_uid);
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return fmt::format("other users can write to it (mode {:o}); run chmod go-w on it", status.st_mode & 07777U);
  }
  return "";
}

// Paths of temporary files, for remove_unfinished_files(). Files beyond the limit are not registered.
std::array<std::atomic<const char*>, 16> unfinished;

// A new file, removed on destruction unless it is renamed.
class TemporaryFile {
 public:
  // `mode`: of the file that is replaced, or 0 if there is none.
  TemporaryFile(const std::string& target, const std::string& shown, mode_t mode) : shown_(shown) {
    const fs::path folder = fs::path(target).parent_path();
    std::random_device random;
    for (int attempt = 0; descriptor_ < 0; ++attempt) {
      path_ = (folder / fmt::format("{}{:08x}{:08x}", kTemporaryPrefix, random(), random())).string();
      // No one else may open the copy of a private file before it has that file's mode.
      constexpr int kNew = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
      descriptor_ = ::open(path_.c_str(), kNew, mode != 0 ? 0600 : 0666);
      if (descriptor_ < 0 && (errno != EEXIST || attempt == 100)) fail_file("cannot write", shown_, errno);
    }
    for (auto& slot : unfinished) {
      const char* none = nullptr;
      if (slot.compare_exchange_strong(none, path_.c_str())) {
        slot_ = &slot;
        break;
      }
    }
    if (mode != 0 && ::fchmod(descriptor_, mode) != 0) {
      const int reason = errno;
      discard();
      fail_file("cannot write", shown_, reason);
    }
  }
  ~TemporaryFile() { discard(); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  void write(const std::function<void(std::ostream&)>& write) {
    __gnu_cxx::stdio_filebuf<char> buffer(descriptor_, std::ios::out | std::ios::binary);  // owns the descriptor
    descriptor_ = -1;
    std::ostream file(&buffer);
    errno = 0;
    write(file);
    file.flush();
    if (!file || ::fsync(buffer.fd()) != 0) fail_file("cannot write all of", shown_, errno);
    if (buffer.close() == nullptr) fail_file("cannot write all of", shown_, errno);
  }
  void rename_to(const std::string& target) {
    if (std::rename(path_.c_str(), target.c_str()) != 0) fail_file("cannot write", shown_, errno);
    forget();
  }

 private:
  void discard() {
    if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
    if (!path_.empty()) std::remove(path_.c_str());
    forget();
  }
  void forget() {
    if (slot_ != nullptr) std::exchange(slot_, nullptr)->store(nullptr);
    path_.clear();
  }

  std::string shown_;  // in messages
  std::string path_;
  int descriptor_ = -1;
  std::atomic<const char*>* slot_ = nullptr;  // in `unfinished`
};

}  // namespace

void remove_unfinished_files() noexcept {
  for (const auto& slot : unfinished) {
    if (const char* path = slot.load()) ::unlink(path);
  }
}

fs::path cache_folder() {
  if (const std::string cache = environment("XDG_CACHE_HOME"); !cache.empty()) return fs::path(cache) / "shadowgraph";
  if (const std::string home = environment("HOME"); !home.empty()) return fs::path(home) / ".cache" / "shadowgraph";
  std::error_code error;
  const fs::path base = fs::temp_directory_path(error);
  return (error ? fs::path("/tmp") : base) / fmt::format("shadowgraph-{}", ::geteuid());
}

bool is_file(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  return fs::exists(status) && !fs::is_directory(status);
}

void make_folder(const fs::path& folder) {
  std::error_code error, ignored;
  fs::create_directories(folder, error);
  if (fs::is_directory(folder, ignored)) return;
  throw FileError(fmt::format("cannot create the folder '{}': {}", folder.string(),
                              error ? error.message() : std::string("a file of this name exists")));
}

std::string private_folder_problem(const fs::path& folder, bool create) {
  std::error_code error;
  if (create && !fs::exists(fs::symlink_status(folder, error))) {
    if (folder.has_parent_path()) fs::create_directories(folder.parent_path(), error);
    if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
      return fmt::format("cannot create the folder '{}': {}", folder.string(), std::generic_category().message(errno));
    }
  }
  struct stat link {
  }, status{};
  if (::lstat(folder.c_str(), &link) != 0 || ::stat(folder.c_str(), &status) != 0) {
    return fmt::format("cannot read '{}': {}", folder.string(), std::generic_category().message(errno));
  }
  const std::string why = !S_ISDIR(status.st_mode)     ? "it is not a folder"
                          : link.st_uid != ::geteuid() ? fmt::format("it belongs to another user (uid {})", link.st_uid)
                                                       : owner_problem(status);
  return why.empty() ? "" : fmt::format("the folder '{}' is not used: {}", folder.string(), why);
}

std::string read_private_file(const std::string& path) {
  // O_NONBLOCK: opening a pipe must not wait.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    if (errno == ELOOP) throw FileError("'" + path + "' is not read: it is a symbolic link");
    fail_file("cannot read", path, errno);
  }
  __gnu_cxx::stdio_filebuf<char> buffer(descriptor, std::ios::in | std::ios::binary);
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) fail_file("cannot read", path, errno);
  const std::string why = S_ISREG(status.st_mode) ? owner_problem(status) : "it is not a regular file";
  if (!why.empty()) throw FileError("'" + path + "' is not read: " + why);
  std::string content(static_cast<size_t>(status.st_size), '\0');
  content.resize(static_cast<size_t>(buffer.sgetn(content.data(), static_cast<std::streamsize>(content.size()))));
  return content;
}

namespace {

// `mode`: of the new file; std::nullopt keeps that of the replaced one.
void replace_file(const std::string& path, const std::function<void(std::ostream&)>& write,
                  std::optional<mode_t> mode) {
  std::error_code ignored;
  struct stat status {};
  const bool exists = ::stat(path.c_str(), &status) == 0;
  if (exists && S_ISDIR(status.st_mode)) fail_file("cannot write", path, EISDIR);
  if (exists && !S_ISREG(status.st_mode)) {
    errno = 0;
    std::ofstream file(path, std::ios::binary);
    if (!file) fail_file("cannot write", path, errno);
    write(file);
    file.close();
    if (!file) fail_file("cannot write all of", path, errno);
    return;
  }
  const std::string target =
      exists && fs::is_symlink(fs::symlink_status(path, ignored)) ? fs::canonical(path, ignored).string() : path;
  TemporaryFile file(target, path, mode ? *mode : exists ? status.st_mode & 07777U : 0);
  file.write(write);
  file.rename_to(target);
}

}  // namespace

void replace_file(const std::string& path, const std::function<void(std::ostream&)>& write) {
  replace_file(path, write, std::nullopt);
}

void replace_private_file(const std::string& path, std::string_view content) {
  const std::string problem = private_folder_problem(fs::path(path).parent_path(), true);
  if (!problem.empty()) throw FileError(problem);
  replace_file(
      path, [&](std::ostream& file) { file.write(content.data(), static_cast<std::streamsize>(content.size())); },
      0600);
}

std::string file_name(std::string_view name) {
  std::string text = plain_text(name.substr(0, kMostInName));
  std::ranges::replace(text, '/', '_');
  std::ranges::replace(text, '\\', '_');
  if (text.empty() || text.front() == '.' || text.front() == '-') text.insert(text.begin(), '_');
  return text;
}

}  // namespace shadowgraph
