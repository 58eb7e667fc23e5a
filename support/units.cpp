#include "shadowgraph/units.h"

#include <fmt/format.h>

#include <array>

namespace shadowgraph {
namespace {

template <size_t N>
std::string scaled(int64_t amount, double base, const std::array<const char*, N>& units) {
  double value = static_cast<double>(amount);
  size_t unit = 0;
  // 999.995 would print as 1000.00.
  while ((value >= base - 0.005 || value <= -(base - 0.005)) && unit + 1 < N) {
    value /= base;
    ++unit;
  }
  if (unit == 0) return fmt::format("{}{}", amount, units[0]);
  return fmt::format("{:.2f}{}", value, units[unit]);
}

}  // namespace

std::string human_bytes(int64_t bytes) {
  static constexpr std::array kUnits = {" B", " KiB", " MiB", " GiB", " TiB", " PiB"};
  return scaled(bytes, 1024, kUnits);
}

std::string human_count(int64_t count) {
  static constexpr std::array kUnits = {"", " K", " M", " G", " T", " P", " E"};
  return scaled(count, 1000, kUnits);
}

std::string exact_count(int64_t count) {
  const std::string digits = std::to_string(count);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    const bool after_digit = i > 0 && digits[i - 1] != '-';
    if (after_digit && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string human_seconds(double seconds) {
  if (!(seconds > 0)) return "0 s";
  if (seconds < 1e-3) return fmt::format("{:.2f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.2f} ms", seconds * 1e3);
  return fmt::format("{:.2f} s", seconds);
}

std::string dtype_name(c10::ScalarType dtype) {
  if (dtype == c10::ScalarType::Undefined) return "undefined";
  return std::string(c10::getDtypeNames(dtype).first);
}

std::optional<c10::ScalarType> parse_dtype_name(std::string_view name) {
  for (int i = 0; i < static_cast<int>(c10::ScalarType::Undefined); ++i) {
    const auto dtype = static_cast<c10::ScalarType>(i);
    if (dtype_name(dtype) == name) return dtype;
  }
  return std::nullopt;
}

}  // namespace shadowgraph
