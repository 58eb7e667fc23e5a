#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <limits>

#include "ir/text/words.h"
#include "shadowgraph/error.h"
#include "shadowgraph/fake.h"
#include "shadowgraph/profile/measure.h"
#include "shadowgraph/text.h"
#include "support/json.h"
#include "support/json_place.h"

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
  const std::string heading = path + ": not a file of measured calls (remove it to measure again)";
  const json file = parse_json(shadowgraph::read_file(path), path);
  const JsonPlace place(file, heading);
  if (place["version"].integer() != kVersion) place["version"].fail("is not 1");
  if (place["machine"].text() != calls.machine_) return calls;
  for (const auto& [signature, figures] : place["calls"].members()) {
    calls.calls_[signature] = {figures[0].integer(0, std::numeric_limits<int64_t>::max()), figures[1].amount()};
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
