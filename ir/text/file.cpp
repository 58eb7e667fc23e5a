// Reads and writes whole files, with errors that give the path and the reason.
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <unistd.h>
#include <vector>

#include "shadowgraph/error.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/interrupt.h"

namespace shadowgraph {
namespace {

namespace fs = std::filesystem;

// Streams only report failure; errno has the reason.
[[noreturn]] void fail(const std::string& what, const std::string& path, int reason) {
  throw FileError(what + " '" + path + "'" + (reason != 0 ? ": " + std::generic_category().message(reason) : ""));
}

void write_to(const std::string& destination, const std::string& path,
              const std::function<void(std::ostream&)>& write) {
  errno = 0;
  std::ofstream file(destination, std::ios::binary | std::ios::trunc);
  if (!file) fail("cannot write", path, errno);
  write(file);
  file.close();
  if (!file) fail("cannot write all of", path, errno);
}

// Paths of temporary files, for the signal handler.
std::array<std::atomic<const char*>, 16> unfinished;

// Registers a temporary file for its lifetime. Files beyond the limit are not registered.
class UnfinishedFile {
 public:
  explicit UnfinishedFile(const char* path) {
    for (auto& slot : unfinished) {
      const char* none = nullptr;
      if (slot.compare_exchange_strong(none, path)) {
        slot_ = &slot;
        break;
      }
    }
  }
  ~UnfinishedFile() {
    if (slot_ != nullptr) slot_->store(nullptr);
  }
  UnfinishedFile(const UnfinishedFile&) = delete;
  UnfinishedFile& operator=(const UnfinishedFile&) = delete;

 private:
  std::atomic<const char*>* slot_ = nullptr;
};

extern "C" void end_by_interrupt(int signal) {  // calls async-signal-safe functions only
  for (const auto& slot : unfinished) {
    if (const char* path = slot.load()) ::unlink(path);
  }
  std::string_view line = "\nshadowgraph: interrupted\n";
  if (::isatty(STDERR_FILENO) == 0) line.remove_prefix(1);  // the terminal has shown ^C
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

}  // namespace

void exit_on_interrupt() noexcept { std::signal(SIGINT, &end_by_interrupt); }

// Writes to a temporary file and renames it, so that readers see, and an interruption leaves, either the old or the new
// file. Pipes and devices are written directly, since they cannot be replaced. Symbolic links are kept and their
// targets replaced.
void write_file(const std::string& path, const std::function<void(std::ostream&)>& write) {
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  if (fs::is_directory(status)) fail("cannot write", path, EISDIR);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    write_to(path, path, write);
    return;
  }
  const std::string target = fs::is_symlink(fs::symlink_status(path, ignored)) && fs::exists(status)
                                 ? fs::canonical(path, ignored).string()
                                 : path;
  const std::string temporary = target + ".tmp" + std::to_string(::getpid());
  const UnfinishedFile unfinished_file(temporary.c_str());
  try {
    write_to(temporary, path, write);
    if (std::rename(temporary.c_str(), target.c_str()) != 0) fail("cannot write", path, errno);
  } catch (...) {
    std::remove(temporary.c_str());
    throw;
  }
}

void write_file(const std::string& path, std::string_view content) {
  write_file(path,
             [&](std::ostream& file) { file.write(content.data(), static_cast<std::streamsize>(content.size())); });
}

std::string read_file(const std::string& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) fail("cannot read", path, EISDIR);
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) fail("cannot read", path, errno);
  std::string content;
  std::vector<char> block(size_t{1} << 16);
  while (file.read(block.data(), static_cast<std::streamsize>(block.size())) || file.gcount() > 0) {
    content.append(block.data(), static_cast<size_t>(file.gcount()));
  }
  if (file.bad()) fail("cannot read all of", path, errno);
  return content;
}

}  // namespace shadowgraph
