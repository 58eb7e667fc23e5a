#include "ir/file.h"

#include <cstdio>
#include <fstream>
#include <sstream>
#include <unistd.h>

#include "ir/error.h"

namespace shadowgraph {

void write_file(const std::string& path, std::string_view content) {
  const std::string temporary = path + ".tmp" + std::to_string(::getpid());
  {
    std::ofstream file(temporary, std::ios::binary);
    if (!file) throw FileError("cannot write '" + temporary + "': does the folder exist and may you write there?");
    file.write(content.data(), static_cast<std::streamsize>(content.size()));
    file.close();
    if (!file) {
      std::remove(temporary.c_str());
      throw FileError("writing '" + temporary + "' failed: is the disk full?");
    }
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    std::remove(temporary.c_str());
    throw FileError("cannot rename '" + temporary + "' to '" + path + "'");
  }
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw FileError("cannot read '" + path + "': is it there, and may you read it?");
  std::ostringstream content;
  content << file.rdbuf();
  if (file.bad() || content.fail()) throw FileError("reading '" + path + "' failed: is it a file?");
  return std::move(content).str();
}

}  // namespace shadowgraph
