#include "kernels/cache/entry.h"

#include <fmt/format.h>
#include <sys/file.h>

#include <cerrno>
#include <fcntl.h>
#include <unistd.h>

#include "shadowgraph/kernels/program.h"
#include "shadowgraph/text.h"
#include "support/json.h"
#include "support/sha256.h"

namespace shadowgraph {
namespace {
constexpr int kManifestVersion = 1;
}  // namespace

CacheManifest read_manifest(const std::string& path) {
  try {
    const nlohmann::json json = parse_json(read_file(path));
    if (json.at("version").get<int>() != kManifestVersion) throw KernelError("'" + path + "' is of another version");
    return {.name = json.at("name"),
            .key = json.at("key"),
            .identity = json.at("identity"),
            .digest = json.at("sha256"),
            .verdicts = json.at("verdicts")};
  } catch (const nlohmann::json::exception& error) {
    throw KernelError(fmt::format("'{}' is no manifest of a kernel: {}", path, error.what()));
  } catch (const FileError& error) {
    throw KernelError(error.what());
  }
}

void write_manifest_file(const std::string& path, const CacheManifest& manifest) {
  const nlohmann::json json = {{"version", kManifestVersion}, {"name", manifest.name},
                               {"key", manifest.key},         {"identity", manifest.identity},
                               {"sha256", manifest.digest},   {"verdicts", manifest.verdicts}};
  write_file(path, json_text(json, 1) + "\n");
}

std::string library_problem(const std::string& stem, const CacheManifest& manifest) {
  try {
    const std::string digest = sha256(read_file(stem + ".so"));
    return digest == manifest.digest ? "" : fmt::format("'{}.so' is not what its manifest tells of", stem);
  } catch (const FileError& error) {
    return error.what();
  }
}

EntryLock::EntryLock(const std::string& path) {
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (descriptor_ < 0) return;
  while (::flock(descriptor_, LOCK_EX) != 0) {
    if (errno == EINTR) continue;
    ::close(descriptor_);
    descriptor_ = -1;
    return;
  }
}

EntryLock::~EntryLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace shadowgraph
