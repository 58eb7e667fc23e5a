// A kernel cache in a folder that is deleted after the test. Internal to tests.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "shadowgraph/kernels/program.h"

namespace shadowgraph {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "kernels_test_XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }
  // Compiles synchronously.
  std::shared_ptr<KernelCache> cache() const {
    return std::make_shared<KernelCache>(KernelCacheOptions{.directory = path_, .background = false});
  }

 private:
  std::string path_;
};

}  // namespace shadowgraph
