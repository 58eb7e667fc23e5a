// Reads and writes whole files, with errors that give the path and the reason.
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>
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

}  // namespace

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
