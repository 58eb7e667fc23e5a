#include "shadowgraph/profile/allocator_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <limits>
#include <string>
#include <vector>

#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

// Splits "a:1,b:[2:3,>:4]" into a, :, 1, ",", b, ... Blanks mean nothing.
class Words {
 public:
  explicit Words(std::string_view text) : text_(text) {
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
    if (done()) fail(setting, "its value is missing");
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
    int64_t value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || end != word.data() + word.size() || value < 0) {
      fail(setting, "'" + word + "' is no whole number");
    }
    return value;
  }
  double share(std::string_view setting) {
    const std::string& word = next(setting);
    double value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || end != word.data() + word.size()) fail(setting, "'" + word + "' is no number");
    return value;
  }
  bool flag(std::string_view setting) {
    const std::string& word = next(setting);
    if (word != "True" && word != "False") fail(setting, "'" + word + "' is neither True nor False");
    return word == "True";
  }
  int64_t megabytes(std::string_view setting, int64_t least) {
    const int64_t value = number(setting);
    if (value < least) fail(setting, fmt::format("{} is too small: at least {}", value, least));
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

// Reads "4", or "[256:1,512:2,>:4]": divisions up to so many MiB. The first also holds for less, ">" for all beyond the
// last.
void read_divisions(Words& words, std::array<int64_t, 16>& divisions) {
  constexpr std::string_view kName = "roundup_power2_divisions";
  const auto power = [&](int64_t value, bool or_zero) {
    if (!(or_zero && value == 0) && !std::has_single_bit(static_cast<uint64_t>(value))) {
      words.fail(kName, fmt::format("{} is no power of 2", value));
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

// These flags do not matter for how much is taken from the device. They are listed by the kind of their value.
constexpr std::array<std::string_view, 9> kFlags = {
    "pinned_use_background_threads", "release_lock_on_cudamalloc",   "release_lock_on_hipmalloc",
    "pinned_use_cuda_host_register", "pinned_use_hip_host_register", "graph_capture_record_stream_reuse",
    "pinned_free_catch_all",         "throw_on_cudamalloc_oom",      "pinned_use_host_register"};
constexpr std::array<std::string_view, 4> kNumbers = {"pinned_num_register_threads", "pinned_reserve_segment_size_mb",
                                                      "pinned_max_round_threshold_mb", "pinned_max_cached_size_mb"};

}  // namespace

AllocatorSettings AllocatorSettings::parse(std::string_view text) {
  AllocatorSettings settings;
  bool rounding_given = false;
  Words words(text);
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
        words.fail(name, "not between 0 and 1");
      }
    } else if (name == "per_process_memory_fraction") {
      settings.per_process_memory_fraction = words.share(name);
      if (!(settings.per_process_memory_fraction >= 0 && settings.per_process_memory_fraction <= 1)) {
        words.fail(name, "not between 0 and 1");
      }
    } else if (name == "roundup_power2_divisions") {
      read_divisions(words, settings.roundup_power2_divisions);
    } else if (name == "expandable_segments") {
      settings.expandable_segments = words.flag(name);
    } else if (name == "backend") {
      const std::string& backend = words.next(name);
      if (backend != "native") words.fail(name, "'" + backend + "' is not modelled, only native is");
    } else if (among(kFlags)) {
      words.flag(name);
    } else if (among(kNumbers)) {
      words.number(name);
    } else {
      words.fail(name, "no such setting");
    }
    if (!words.done()) words.expect(",", name);
  }
  if (!rounding_given) settings.max_non_split_rounding = settings.large_segment_size;
  return settings;
}

}  // namespace shadowgraph
