#include "profiler/device_trace/known_device.h"

#include <algorithm>
#include <cctype>
#include <vector>

namespace shadowgraph {
namespace {

struct TitleWords {
  std::string_view device;
  std::vector<std::string_view> words;  // all of them are in the title
  std::vector<std::string_view> without = {};
};

// The first that fits.
const std::vector<TitleWords>& titles() {
  static const std::vector<TitleWords> known = {
      {"h100_pcie", {"h100", "pcie"}},
      {"h100", {"h100"}, {"nvl"}},
      {"h200", {"h200"}, {"nvl"}},
      {"h20", {"h20"}},
      {"b200", {"b200"}},
      {"b300", {"b300"}},
      {"a100_pcie", {"a100", "pcie"}},
      {"a100_40gb", {"a100", "40gb"}},
      {"a100", {"a100"}},
      {"v100", {"v100", "sxm2"}},
      {"t4", {"t4"}},
      {"a10g", {"a10g"}},
      {"l4", {"l4"}},
      {"l40s", {"l40s"}},
      {"rtx3090", {"rtx", "3090"}, {"ti"}},
      {"rtx4090", {"rtx", "4090"}, {"d", "laptop"}},
      {"rtx5090", {"rtx", "5090"}, {"d", "laptop"}},
      {"mi300x", {"mi300x"}},
      {"mi325x", {"mi325x"}},
  };
  return known;
}

}  // namespace

std::optional<std::string> device_of_title(std::string_view title) {
  std::vector<std::string> words(1);
  for (const char c : title) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0) {
      words.back() += static_cast<char>(std::tolower(byte));
    } else if (!words.back().empty()) {
      words.emplace_back();
    }
  }
  const auto has = [&](std::string_view word) { return std::ranges::find(words, word) != words.end(); };
  for (const TitleWords& known : titles()) {
    if (std::ranges::all_of(known.words, has) && std::ranges::none_of(known.without, has)) {
      return std::string(known.device);
    }
  }
  return std::nullopt;
}

}  // namespace shadowgraph
