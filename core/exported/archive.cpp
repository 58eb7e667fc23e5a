#include "core/exported/archive.h"

#include <torch/csrc/export/pt2_archive_constants.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "shadowgraph/error.h"
#include "support/json.h"

namespace shadowgraph {
namespace {

namespace spec = torch::_export::archive_spec;

constexpr std::string_view kSaveAgain =
    "; load it with torch.export.load of a PyTorch that can and save it again with torch.export.save";

// Returns the name of a zip's first record, wherever its directory is, if it has one: all that a torn file still tells.
std::string name_of_first_record(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string header(30, '\0');
  if (!file.read(header.data(), 30) || !header.starts_with("PK\x03\x04")) return {};
  const auto byte = [&](size_t i) { return static_cast<size_t>(static_cast<unsigned char>(header[i])); };
  std::string name(byte(26) | (byte(27) << 8), '\0');
  file.read(name.data(), static_cast<std::streamsize>(name.size()));
  name.resize(static_cast<size_t>(file.gcount()));
  return name;
}

// Says whether torch.export.save of PyTorch 2.7 or before wrote it: records without a folder, which no
// PyTorchStreamReader opens.
bool is_of_old_layout(std::string_view first) {
  return first == "version" || first.starts_with("serialized_exported_program") ||
         first.starts_with("serialized_state_dict");
}

bool begins_as_archive(std::string_view first) {
  const size_t folder = first.find('/');
  if (folder == std::string_view::npos) return is_of_old_layout(first);
  const std::string_view record = first.substr(folder + 1);
  return record.starts_with(spec::WEIGHTS_DIR) || record.starts_with(spec::CONSTANTS_DIR) ||
         record.starts_with(spec::AOTINDUCTOR_DIR) || record.starts_with(spec::MODELS_DIR) ||
         record == spec::ARCHIVE_FORMAT_PATH;
}

std::string first_line(const std::exception& error) {
  const auto* of_libtorch = dynamic_cast<const c10::Error*>(&error);
  std::string text = of_libtorch != nullptr ? of_libtorch->what_without_backtrace() : error.what();
  text = text.substr(0, text.find('\n'));
  return text.substr(0, 300);
}

}  // namespace

bool ExportArchive::looks_like_one(const std::string& path) {
  std::error_code ignored;
  const std::string first = std::filesystem::is_regular_file(path, ignored) ? name_of_first_record(path) : "";
  if (first.empty()) return false;
  if (begins_as_archive(first)) return true;
  try {
    caffe2::serialize::PyTorchStreamReader reader(path);
    return reader.hasRecord(std::string(spec::ARCHIVE_FORMAT_PATH));
  } catch (const std::exception&) {
    return false;
  }
}

ExportArchive::ExportArchive(std::string path) : path_(std::move(path)) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path_, error)) throw FileError("cannot read " + path_ + ": no such file");
  file_bytes_ = std::filesystem::file_size(path_, error);
  const std::string first = name_of_first_record(path_);
  if (is_of_old_layout(first)) {
    throw Error(path_ + " is a torch.export archive as PyTorch until 2.7 wrote them" + std::string(kSaveAgain));
  }
  try {
    reader_ = std::make_unique<caffe2::serialize::PyTorchStreamReader>(path_);
  } catch (const std::exception& failure) {
    throw Error(path_ + " is not a torch.export archive, or a torn one: " + first_line(failure));
  }
  find_model();
}

void ExportArchive::find_model() {
  const std::string format(spec::ARCHIVE_FORMAT_PATH);
  if (!has(format) || size_of(format) > 64 || bytes_of(format) != spec::ARCHIVE_FORMAT_VALUE) {
    refuse("is a zip file, but not a torch.export archive: it has no record '" + format + "' that says 'pt2'");
  }
  const std::string version_record(spec::ARCHIVE_VERSION_PATH);
  if (has(version_record)) {
    const std::string version = bytes_of(version_record);
    if (version != spec::ARCHIVE_VERSION_VALUE) {
      refuse("is a torch.export archive of version '" + version.substr(0, 20) + "', and only version " +
             std::string(spec::ARCHIVE_VERSION_VALUE) + " is known here");
    }
  }
  std::vector<std::string> models;
  bool compiled = false;
  for (const std::string& record : reader_->getAllRecords()) {
    compiled = compiled || record.starts_with(spec::AOTINDUCTOR_DIR);
    if (!record.starts_with(spec::MODELS_DIR) || !record.ends_with(".json")) continue;
    models.push_back(record.substr(spec::MODELS_DIR.size(), record.size() - spec::MODELS_DIR.size() - 5));
  }
  if (models.empty()) {
    refuse(compiled ? "holds what AOTInductor compiled, not a graph; save the exported program itself with "
                      "torch.export.save(program, file)"
                    : "is a torch.export archive without a program (no record models/*.json)");
  }
  if (std::find(models.begin(), models.end(), "model") != models.end()) models = {"model"};
  if (models.size() > 1) {
    std::string names;
    for (const std::string& name : models) names += (names.empty() ? "" : ", ") + name;
    refuse("holds several programs (" + names + ") and none called 'model'; save each in a file of its own");
  }
  model_ = models.front();
  if (has(std::string(spec::WEIGHTS_DIR) + model_ + ".pt")) {
    refuse("keeps its weights as pickled Python objects, as PyTorch 2.8 wrote them" + std::string(kSaveAgain));
  }
}

void ExportArchive::refuse(const std::string& why) const { throw Error(path_ + " " + why); }

size_t ExportArchive::size_of(const std::string& record) const {
  if (!has(record)) refuse("is damaged: it has no record " + record);
  try {
    const size_t bytes = reader_->getRecordSize(record);
    // PyTorch's writer does not compress, so a record larger than the file means a torn directory.
    if (bytes > file_bytes_) refuse("is damaged: the record " + record + " is said to be larger than the file");
    return bytes;
  } catch (const c10::Error& failure) {
    refuse("is damaged at the record " + record + ": " + first_line(failure));
  }
}

std::string ExportArchive::bytes_of(const std::string& record) const {
  std::string bytes(size_of(record), '\0');
  try {
    if (!bytes.empty()) reader_->getRecord(record, bytes.data(), bytes.size());
  } catch (const c10::Error& failure) {
    refuse("is damaged at the record " + record + ": " + first_line(failure));
  }
  return bytes;
}

nlohmann::json ExportArchive::json_of(const std::string& record) const {
  return parse_json(bytes_of(record), path_ + " is damaged: " + record);
}

}  // namespace shadowgraph
