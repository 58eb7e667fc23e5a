#include "kernels/cache/entry.h"

#include <fmt/format.h>
#include <sys/file.h>

#include <cerrno>
#include <fcntl.h>
#include <unistd.h>

#include "shadowgraph/kernels/program.h"
#include "shadowgraph/text.h"
#include "support/json.h"
#include "support/json_place.h"
#include "support/sha256.h"

namespace shadowgraph {
namespace {
constexpr int kManifestVersion = 1;
}  // namespace

CacheManifest read_manifest(const std::string& path) {
  try {
    const nlohmann::json json = parse_json(read_file(path), path);
    const std::string heading = "'" + path + "' is no manifest of a kernel";
    const JsonPlace place(json, heading);
    if (place["version"].integer() != kManifestVersion) throw KernelError("'" + path + "' is of another version");
    CacheManifest manifest{.name = place["name"].text(),
                           .key = place["key"].text(),
                           .identity = place["identity"].text(),
                           .digest = place["sha256"].text()};
    for (const auto& [subject, verdict] : place["verdicts"].members()) manifest.verdicts[subject] = verdict.text();
    return manifest;
  } catch (const KernelError&) {
    throw;
  } catch (const Error& error) {
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
