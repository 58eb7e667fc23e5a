#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

#include "ir/text/words.h"
#include "shadowgraph/error.h"
#include "shadowgraph/fake.h"
#include "shadowgraph/profile/measure.h"
#include "shadowgraph/text.h"
#include "support/json.h"

namespace shadowgraph {
namespace {

using nlohmann::json;
constexpr int kVersion = 1;

}  // namespace

std::string MeasuredCalls::this_machine() {
  const CpuProfile& cpu = CpuProfile::this_machine();
  return fmt::format("libtorch {}, {}, oneDNN{}{}{}, {} thread{}", libtorch_version(), at::get_cpu_capability(),
                     at::globalContext().userEnabledMkldnn() ? "" : " off", cpu.mkldnn_bf16 ? " bf16" : "",
                     cpu.mkldnn_fp16 ? " fp16" : "", at::get_num_threads(), at::get_num_threads() == 1 ? "" : "s");
}

std::string MeasuredCalls::default_file() {
  namespace fs = std::filesystem;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache != '\0') return fs::path(cache) / "shadowgraph" / "measured-calls.json";
  const char* home = std::getenv("HOME");
  const fs::path base = home != nullptr && *home != '\0' ? fs::path(home) : fs::temp_directory_path();
  return base / ".cache" / "shadowgraph" / "measured-calls.json";
}

MeasuredCalls MeasuredCalls::read_file(const std::string& path) {
  MeasuredCalls calls;
  if (!std::filesystem::exists(path)) return calls;
  const auto damaged = [&](const std::string& what) {
    return ParseError(path + ": not a file of measured calls: " + what + ". Remove it to measure again", 0, 0);
  };
  try {
    const json file = parse_json(shadowgraph::read_file(path));
    if (file.at("version").get<int>() != kVersion) throw damaged("its version is not 1");
    if (file.at("machine").get<std::string>() != calls.machine_) return calls;
    for (const auto& [signature, figures] : file.at("calls").items()) {
      calls.calls_[signature] = {figures.at(0).get<int64_t>(), figures.at(1).get<double>()};
    }
  } catch (const json::exception& error) {
    throw damaged(error.what());
  }
  return calls;
}

void MeasuredCalls::write_file(const std::string& path) const {
  json file{{"version", kVersion}, {"machine", machine_}, {"calls", json::object()}};
  for (const auto& [signature, call] : calls_) file["calls"][signature] = {call.scratch, call.seconds};
  const auto folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);  // what fails, writing says
  shadowgraph::write_file(path, json_text(file, 1) + "\n");
}

}  // namespace shadowgraph
