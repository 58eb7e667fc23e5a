// Reads and writes whole files, with errors that give the path and the reason.
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <unistd.h>
#include <vector>

#include "shadowgraph/error.h"
#include "shadowgraph/graph/text.h"
#include "support/files.h"

namespace shadowgraph {
namespace {

namespace fs = std::filesystem;

// Streams only report failure; errno has the reason.
[[noreturn]] void fail(const std::string& what, const std::string& path, int reason) {
  throw FileError(what + " '" + path + "'" + (reason != 0 ? ": " + std::generic_category().message(reason) : ""));
}

extern "C" void end_by_interrupt(int signal) {  // calls async-signal-safe functions only
  remove_unfinished_files();
  std::string_view line = "\nshadowgraph: interrupted\n";
  if (::isatty(STDERR_FILENO) == 0) line.remove_prefix(1);  // the terminal has shown ^C
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

}  // namespace

void exit_on_interrupt() noexcept { std::signal(SIGINT, &end_by_interrupt); }

void write_file(const std::string& path, const std::function<void(std::ostream&)>& write) { replace_file(path, write); }

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
