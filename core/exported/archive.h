// Reads the records of a torch.export archive (.pt2), a zip file of PyTorch's, one by one. Internal to core/exported.
#pragma once

#include <caffe2/serialize/inline_container.h>
#include <nlohmann/json_fwd.hpp>

#include <memory>
#include <string>
#include <vector>

namespace shadowgraph {

class ExportArchive {
 public:
  // Opening reads only the zip's directory. Throws FileError if there is no such file, Error if it is no archive of
  // torch.export, or one of another layout.
  explicit ExportArchive(std::string path);

  // Judges by what the file holds. It also accepts torn archives that begin as one, and those of PyTorch 2.7 and
  // AOTInductor, which this class refuses in words of their own. Never throws.
  static bool looks_like_one(const std::string& path);

  const std::string& path() const { return path_; }
  // "model", as torch.export.save names it, or the only one.
  const std::string& model() const { return model_; }
  bool has(const std::string& record) const { return reader_->hasRecord(record); }
  // These throw Error if there is no such record, or it is damaged.
  size_t size_of(const std::string& record) const;
  std::string bytes_of(const std::string& record) const;
  nlohmann::json json_of(const std::string& record) const;

 private:
  [[noreturn]] void refuse(const std::string& why) const;
  void find_model();

  std::string path_;
  std::unique_ptr<caffe2::serialize::PyTorchStreamReader> reader_;
  size_t file_bytes_ = 0;
  std::string model_;
};

}  // namespace shadowgraph
