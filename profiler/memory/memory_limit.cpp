#include "shadowgraph/profile/memory_limit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <filesystem>

#include "shadowgraph/error.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/units.h"

namespace shadowgraph {
namespace {

// A number of bytes below this, without a unit, is a number of something else.
constexpr int64_t kLeastBareBytes = int64_t{1} << 20;

bool is_number(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](unsigned char c) { return std::isdigit(c) != 0 || c == '.'; });
}

// "80" in "NVIDIA H100 SXM5 80 GB"; 0: the title says none.
int sold_as(std::string_view title) {
  if (!title.ends_with(" GB")) return 0;
  title.remove_suffix(3);
  int gigabytes = 0;
  const std::string_view number = title.substr(title.rfind(' ') + 1);
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), gigabytes);
  return error == std::errc() && end == number.data() + number.size() ? gigabytes : 0;
}

// Cards of 24 GB have neither 24e9 bytes nor 24 GiB for programs.
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
    return fmt::format("{} is taken for {} ({} bytes); cards sold as {} GB have: {}. Give the card's name for its own",
                       text, human_bytes(bytes), exact_count(bytes), bytes / unit, fmt::join(cards, ", "));
  }
  return {};
}

}  // namespace

std::optional<int64_t> parse_bytes(std::string_view text) {
  double number = 0;
  const auto [next, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !(number > 0)) return std::nullopt;
  std::string unit(next, text.data() + text.size());
  std::erase(unit, ' ');
  std::ranges::transform(unit, unit.begin(), [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  // Nothing, B, KB, KiB and so on to TiB.
  const size_t power = unit.empty() ? 0 : std::string_view("BKMGT").find(unit[0]);
  const bool binary = unit.size() == 3;
  const std::string_view rest = unit.empty() ? "" : std::string_view(unit).substr(1);
  if (power == std::string_view::npos || rest != (power == 0 ? "" : binary ? "IB" : "B")) return std::nullopt;
  const double bytes = number * std::pow(binary ? 1024.0 : 1000.0, static_cast<double>(power));
  return bytes > 9e18 ? std::nullopt : std::optional(static_cast<int64_t>(std::floor(bytes)));
}

MemoryLimit MemoryLimit::of_bytes(int64_t bytes) {
  if (bytes < 1) throw Error(fmt::format("{} bytes are no memory: give a size such as 24GiB", bytes));
  return {.bytes = bytes, .title = human_bytes(bytes)};
}

std::optional<MemoryLimit> MemoryLimit::of(const DeviceSpec& spec) {
  if (spec.memory <= 0) return std::nullopt;
  return MemoryLimit{.bytes = spec.memory, .device = spec.name, .title = spec.title};
}

MemoryLimit MemoryLimit::parse(const std::string& text) {
  if (const auto bytes = parse_bytes(text)) {
    if (is_number(text) && *bytes < kLeastBareBytes) {
      throw Error(
          fmt::format("'{0}' is {0} bytes: write {0}GiB or {0}GB for a size, or the name of a device, l4", text));
    }
    return {.bytes = *bytes, .title = text, .note = note_of(text, *bytes)};
  }
  std::error_code ignored;
  const bool is_file = std::filesystem::is_regular_file(text, ignored);
  std::optional<DeviceSpec> spec;
  try {
    spec = is_file ? DeviceSpec::read_file(text) : DeviceSpec::named(text);
  } catch (const ParseError&) {
    throw;  // a file, and what is wrong in it
  } catch (const Error&) {
    throw Error(fmt::format("'{}' is neither a size such as 24GiB or 80GB nor a device; there are {}", text,
                            fmt::join(DeviceSpec::names(), ", ")));
  }
  auto limit = spec->device == c10::kCPU ? std::nullopt : of(*spec);
  if (!limit) throw Error(fmt::format("'{}' has no memory of its own: give a size such as 24GiB", text));
  if (is_file) limit->device = text;
  return *limit;
}

}  // namespace shadowgraph
