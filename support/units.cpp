#include "shadowgraph/units.h"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <utility>

namespace shadowgraph {
namespace {

template <size_t N>
std::string scaled(int64_t amount, double base, const std::array<const char*, N>& units) {
  double value = static_cast<double>(amount);
  size_t unit = 0;
  // 999.995 would be printed as 1000.00.
  while ((value >= base - 0.005 || value <= -(base - 0.005)) && unit + 1 < N) {
    value /= base;
    ++unit;
  }
  if (unit == 0) return fmt::format("{}{}", amount, units[0]);
  return fmt::format("{:.2f}{}", value, units[unit]);
}

// Returns a positive number and the unit after it in upper case, or std::nullopt.
std::optional<std::pair<double, std::string>> split_quantity(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !(number > 0) || !std::isfinite(number)) return std::nullopt;
  std::string unit(end, text.data() + text.size());
  unit.erase(0, unit.find_first_not_of(' '));
  for (char& letter : unit) letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  return std::pair{number, unit};
}

// Returns the factor of a unit without its B: "", "K", "KI" up to "T", "TI".
std::optional<double> scale_of(std::string_view unit, std::string_view letters) {
  if (unit.empty()) return 1;
  const size_t power = letters.find(unit.front());
  const bool binary = unit.size() == 2 && unit[1] == 'I';
  if (power == std::string_view::npos || (unit.size() > 1 && !binary)) return std::nullopt;
  return std::pow(binary ? 1024.0 : 1000.0, static_cast<double>(power + 1));
}

constexpr double kMostWhole = 9e18;

}  // namespace

std::optional<int64_t> parse_count(std::string_view text) {
  const auto quantity = split_quantity(text);
  if (!quantity) return std::nullopt;
  const auto& [number, unit] = *quantity;
  const auto scale = scale_of(unit == "B" ? "G" : std::string_view(unit), "KMGT");
  if (!scale) return std::nullopt;
  const double count = number * *scale;
  if (count > kMostWhole || count != std::floor(count)) return std::nullopt;
  return static_cast<int64_t>(count);
}

std::optional<int64_t> parse_bytes(std::string_view text) {
  const auto quantity = split_quantity(text);
  if (!quantity) return std::nullopt;
  std::string_view unit = quantity->second;
  if (!unit.empty()) {
    if (unit.back() != 'B') return std::nullopt;
    unit.remove_suffix(1);
  }
  const auto scale = scale_of(unit, "KMGT");
  if (!scale || quantity->first * *scale > kMostWhole) return std::nullopt;
  return static_cast<int64_t>(std::floor(quantity->first * *scale));
}

std::optional<double> parse_duration(std::string_view text) {
  const auto quantity = split_quantity(text);
  if (!quantity) return std::nullopt;
  for (const auto& [unit, seconds] : {std::pair{"S", 1.0}, {"MIN", 60.0}, {"H", 3600.0}, {"D", 86400.0}}) {
    if (quantity->second == unit) return quantity->first * seconds;
  }
  return std::nullopt;
}

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
