// libFuzzer target: torch.export archives. The input is the record models/model.json in a valid archive, since the zip
// reader rejects wrong checksums.
#include <caffe2/serialize/inline_container.h>

#include <filesystem>
#include <string>
#include <unistd.h>

#include "core/capture/exported/program.h"
#include "shadowgraph/error.h"

using namespace shadowgraph;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string path =
      (std::filesystem::temp_directory_path() / ("fuzz-" + std::to_string(getpid()) + ".pt2")).string();
  {
    caffe2::serialize::PyTorchStreamWriter writer(path);
    const auto put = [&](const std::string& name, std::string_view text) {
      writer.writeRecord(name, text.data(), text.size());
    };
    put("archive_format", "pt2");
    put("models/model.json", {reinterpret_cast<const char*>(data), size});
    put("data/weights/model_weights_config.json", R"({"config": {}})");
    put("data/constants/model_constants_config.json", R"({"config": {}})");
    writer.writeEndOfFile();
  }
  try {
    read_program(ExportArchive(path));
  } catch (const Error&) {}
  std::filesystem::remove(path);
  return 0;
}
