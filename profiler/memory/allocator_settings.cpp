#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "shadowgraph/error.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/memory.h"
#include "shadowgraph/units.h"
#include "support/text.h"

namespace shadowgraph {
namespace {

// Tokenizes "a:1,b:[2:3,>:4]" into a, :, 1, ",", b, ... Blanks are ignored.
class SettingsTokens {
 public:
  explicit SettingsTokens(std::string_view text) : text_(text) {
    std::string word;
    const auto end_word = [&] {
      if (!word.empty()) words_.push_back(std::move(word));
      word.clear();
    };
    for (const char c : text) {
      if (c == ',' || c == ':' || c == '[' || c == ']') {
        end_word();
        words_.emplace_back(1, c);
      } else if (c != ' ' && (c < '\t' || c > '\r')) {
        word += c;
      }
    }
    end_word();
  }

  bool done() const { return at_ == words_.size(); }
  const std::string& next(std::string_view setting) {
    if (done()) fail(setting, "missing value");
    return words_[at_++];
  }
  bool is_next(std::string_view word) const { return !done() && words_[at_] == word; }
  void expect(std::string_view word, std::string_view setting) {
    if (!is_next(word)) {
      fail(setting, fmt::format("expected '{}', not {}", word, done() ? "the end" : "'" + words_[at_] + "'"));
    }
    ++at_;
  }

  int64_t number(std::string_view setting) {
    const std::string& word = next(setting);
    const auto value = parse_number<int64_t>(word);
    if (!value || *value < 0) fail(setting, "'" + word + "' is not a non-negative integer");
    return *value;
  }
  double share(std::string_view setting) {
    const std::string& word = next(setting);
    const auto value = parse_number<double>(word);
    if (!value) fail(setting, "'" + word + "' is not a number");
    return *value;
  }
  bool flag(std::string_view setting) {
    const std::string& word = next(setting);
    if (word != "True" && word != "False") fail(setting, "expected True or False, not '" + word + "'");
    return word == "True";
  }
  int64_t megabytes(std::string_view setting, int64_t least) {
    const int64_t value = number(setting);
    if (value < least) fail(setting, fmt::format("{} is too small; the minimum is {}", value, least));
    return std::min(value, std::numeric_limits<int64_t>::max() / kMebibyte) * kMebibyte;
  }

  [[noreturn]] void fail(std::string_view setting, const std::string& what) const {
    throw Error(fmt::format("allocator settings '{}': {}: {}", text_, setting, what));
  }

 private:
  std::string_view text_;
  std::vector<std::string> words_;
  size_t at_ = 0;
};

// Parses "4", or "[256:1,512:2,>:4]": divisions for sizes up to so many MiB. The first also applies to smaller sizes,
// ">" to all larger ones.
void read_divisions(SettingsTokens& words, std::array<int64_t, 16>& divisions) {
  constexpr std::string_view kName = "roundup_power2_divisions";
  const auto power = [&](int64_t value, bool or_zero) {
    if (!(or_zero && value == 0) && !std::has_single_bit(static_cast<uint64_t>(value))) {
      words.fail(kName, fmt::format("{} is not a power of 2", value));
    }
    return value;
  };
  if (!words.is_next("[")) {
    divisions.fill(power(words.number(kName), false));
    return;
  }
  words.expect("[", kName);
  size_t last = 0;
  bool first = true;
  while (!words.is_next("]")) {
    const bool rest = words.is_next(">");
    const int64_t size = rest ? (words.expect(">", kName), 0) : power(words.number(kName), false);
    words.expect(":", kName);
    const int64_t division = power(words.number(kName), true);
    if (rest) {
      std::fill(divisions.begin() + static_cast<std::ptrdiff_t>(last + 1), divisions.end(), division);
    } else {
      const size_t at = std::min<size_t>(std::bit_width(static_cast<uint64_t>(size)) - 1, divisions.size() - 1);
      if (first) std::fill(divisions.begin(), divisions.begin() + static_cast<std::ptrdiff_t>(at), division);
      first = false;
      divisions[at] = division;
      last = at;
    }
    if (!words.is_next("]")) words.expect(",", kName);
  }
  words.expect("]", kName);
}

// Settings that do not affect device memory; accepted and ignored. Listed by the type of their value.
constexpr std::array<std::string_view, 9> kFlags = {
    "pinned_use_background_threads", "release_lock_on_cudamalloc",   "release_lock_on_hipmalloc",
    "pinned_use_cuda_host_register", "pinned_use_hip_host_register", "graph_capture_record_stream_reuse",
    "pinned_free_catch_all",         "throw_on_cudamalloc_oom",      "pinned_use_host_register"};
constexpr std::array<std::string_view, 4> kNumbers = {"pinned_num_register_threads", "pinned_reserve_segment_size_mb",
                                                      "pinned_max_round_threshold_mb", "pinned_max_cached_size_mb"};

constexpr int64_t kKibibyte = 1024;
constexpr int64_t kOlder = 2 * 4096 * kKibibyte + 8 * 16 * kKibibyte;  // :4096:2:16:8

bool begins_with_one_of(std::string_view text, std::initializer_list<std::string_view> beginnings) {
  return std::ranges::any_of(beginnings, [&](std::string_view beginning) { return text.starts_with(beginning); });
}

// A plain number below this is probably meant in another unit.
constexpr int64_t kMinBareBytes = int64_t{1} << 20;

bool is_number(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](unsigned char c) { return std::isdigit(c) != 0 || c == '.'; });
}

// Returns 80 for "NVIDIA H100 SXM5 80 GB"; 0 for a title without a size.
int sold_as(std::string_view title) {
  if (!title.ends_with(" GB")) return 0;
  title.remove_suffix(3);
  return parse_number<int>(title.substr(title.rfind(' ') + 1)).value_or(0);
}

// Notes that cards sold as "24 GB" have neither 24e9 bytes nor 24 GiB of usable memory.
std::string note_of(const std::string& text, int64_t bytes) {
  for (const int64_t unit : {int64_t{1'000'000'000}, int64_t{1} << 30}) {
    std::vector<std::string> cards;
    for (const std::string& name : DeviceSpec::names()) {
      const DeviceSpec spec = DeviceSpec::named(name);
      if (spec.memory > 0 && sold_as(spec.title) * unit == bytes) {
        cards.push_back(name + " " + human_bytes(spec.memory));
      }
    }
    if (cards.empty()) continue;
    return fmt::format("{} means {} ({} bytes); usable memory of {} GB cards: {}. Give the card's name to use its size",
                       text, human_bytes(bytes), exact_count(bytes), bytes / unit, fmt::join(cards, ", "));
  }
  return {};
}

}  // namespace

AllocatorSettings AllocatorSettings::parse(std::string_view text) {
  AllocatorSettings settings;
  bool rounding_given = false;
  SettingsTokens words(text);
  while (!words.done()) {
    const std::string name = words.next("");
    const auto among = [&](const auto& names) { return std::find(names.begin(), names.end(), name) != names.end(); };
    words.expect(":", name);
    const int64_t large = settings.large_segment_size / kMebibyte;
    if (name == "max_split_size_mb") {
      settings.max_split_size = words.megabytes(name, large);
    } else if (name == "max_non_split_rounding_mb") {
      settings.max_non_split_rounding = words.megabytes(name, large);
      rounding_given = true;
    } else if (name == "large_segment_size_mb") {
      settings.large_segment_size = words.megabytes(name, 11);  // more than kMinLargeAlloc
    } else if (name == "garbage_collection_threshold") {
      settings.garbage_collection_threshold = words.share(name);
      if (!(settings.garbage_collection_threshold > 0 && settings.garbage_collection_threshold < 1)) {
        words.fail(name, "must be between 0 and 1");
      }
    } else if (name == "per_process_memory_fraction") {
      settings.per_process_memory_fraction = words.share(name);
      if (!(settings.per_process_memory_fraction >= 0 && settings.per_process_memory_fraction <= 1)) {
        words.fail(name, "must be between 0 and 1");
      }
    } else if (name == "roundup_power2_divisions") {
      read_divisions(words, settings.roundup_power2_divisions);
    } else if (name == "expandable_segments") {
      settings.expandable_segments = words.flag(name);
    } else if (name == "backend") {
      const std::string& backend = words.next(name);
      if (backend != "native") words.fail(name, "backend '" + backend + "' is not simulated; use native");
    } else if (among(kFlags)) {
      words.flag(name);
    } else if (among(kNumbers)) {
      words.number(name);
    } else {
      words.fail(name, "unknown setting; use the names of PYTORCH_ALLOC_CONF, such as max_split_size_mb");
    }
    if (!words.done()) words.expect(",", name);
  }
  if (!rounding_given) settings.max_non_split_rounding = settings.large_segment_size;
  return settings;
}

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
  if (cublas_workspace) return "as configured";
  return architecture.empty() ? "assuming sm_90" : architecture;
}

int64_t cublas_workspace(std::string_view config) {
  const auto fail = [&] {
    throw Error(fmt::format(
        "invalid CUBLAS_WORKSPACE_CONFIG '{}': expected one or more ':KIBIBYTES:COUNT', such as ':4096:8'", config));
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

MemoryLimit MemoryLimit::of_bytes(int64_t bytes) {
  if (bytes < 1)
    throw Error(fmt::format("memory size must be positive, not {} bytes; give a size such as 24GiB", bytes));
  return {.bytes = bytes, .title = human_bytes(bytes)};
}

std::optional<MemoryLimit> MemoryLimit::of(const DeviceSpec& spec) {
  if (spec.memory <= 0) return std::nullopt;
  return MemoryLimit{.bytes = spec.memory, .device = spec.name, .title = spec.title};
}

MemoryLimit MemoryLimit::parse(const std::string& text) {
  if (const auto bytes = parse_bytes(text)) {
    if (is_number(text) && *bytes < kMinBareBytes) {
      throw Error(
          fmt::format("'{0}' is {0} bytes; give {0}GiB or {0}GB for a size, or the name of a device such as l4", text));
    }
    return {.bytes = *bytes, .title = text, .note = note_of(text, *bytes)};
  }
  std::error_code ignored;
  const bool is_file = std::filesystem::is_regular_file(text, ignored);
  std::optional<DeviceSpec> spec;
  try {
    spec = is_file ? DeviceSpec::read_file(text) : DeviceSpec::named(text);
  } catch (const ParseError&) {
    throw;  // a spec file with an error
  } catch (const Error&) {
    throw Error(fmt::format("unknown memory size or device '{}'; give a size such as 24GiB or 80GB, or one of: {}",
                            text, fmt::join(DeviceSpec::names(), ", ")));
  }
  auto limit = spec->device == c10::kCPU ? std::nullopt : of(*spec);
  if (!limit) throw Error(fmt::format("the spec of '{}' has no memory size; give a size such as 24GiB", text));
  if (is_file) limit->device = text;
  return *limit;
}

}  // namespace shadowgraph
