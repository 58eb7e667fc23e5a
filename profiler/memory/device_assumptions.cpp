#include "shadowgraph/profile/device_assumptions.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "shadowgraph/error.h"
#include "shadowgraph/profile/device_spec.h"

namespace shadowgraph {
namespace {

constexpr int64_t kKibibyte = 1024;
constexpr int64_t kOlder = 2 * 4096 * kKibibyte + 8 * 16 * kKibibyte;  // :4096:2:16:8

bool begins_with_one_of(std::string_view text, std::initializer_list<std::string_view> beginnings) {
  return std::ranges::any_of(beginnings, [&](std::string_view beginning) { return text.starts_with(beginning); });
}

}  // namespace

DeviceAssumptions DeviceAssumptions::of(const DeviceSpec& spec) {
  DeviceAssumptions assumptions;
  assumptions.architecture = spec.architecture;
  if (!spec.architecture.empty() && spec.architecture != "sm_90") assumptions.context = 520 * kMebibyte;
  return assumptions;
}

int64_t DeviceAssumptions::workspace() const {
  if (cublas_workspace) return *cublas_workspace;
  if (architecture.starts_with("gfx")) {
    return (begins_with_one_of(architecture, {"gfx94", "gfx95"}) ? 128 : 32) * kMebibyte;
  }
  const bool large = architecture.empty() || begins_with_one_of(architecture, {"sm_9", "sm_10", "sm_12"});
  return large ? 32 * kMebibyte : kOlder;
}

std::string DeviceAssumptions::why_workspace() const {
  if (cublas_workspace) return "as given";
  return architecture.empty() ? "assumed: sm_90" : architecture;
}

int64_t cublas_workspace(std::string_view config) {
  const auto fail = [&] {
    throw Error(
        fmt::format("'{}' is no CUBLAS_WORKSPACE_CONFIG: give ':KIBIBYTES:COUNT', once or more, ':4096:8'", config));
  };
  const auto number = [&](std::string_view& rest) {
    int64_t value = 0;
    if (!rest.starts_with(':')) fail();
    const auto [end, error] = std::from_chars(rest.data() + 1, rest.data() + rest.size(), value);
    if (error != std::errc() || value < 0 || value > 1'000'000) fail();
    rest.remove_prefix(static_cast<size_t>(end - rest.data()));
    return value;
  };
  int64_t bytes = 0;
  std::string_view rest = config;
  do {
    const int64_t size = number(rest);
    bytes += size * kKibibyte * number(rest);
  } while (!rest.empty());
  return bytes;
}

}  // namespace shadowgraph
