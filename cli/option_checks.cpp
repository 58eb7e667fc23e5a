#include "cli/option_checks.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <system_error>

#include "cli/size_sweep.h"

namespace shadowgraph::cli {
namespace {

std::optional<double> number_of(const std::string& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(number)) return std::nullopt;
  return number;
}

}  // namespace

CLI::Validator whole_number_from(int64_t least) {
  return CLI::Validator(
      [least](const std::string& text) {
        int64_t number = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
        const bool fits = error == std::errc() && end == text.data() + text.size() && number >= least;
        return fits ? std::string() : fmt::format("'{}' is not a whole number of at least {}", text, least);
      },
      fmt::format("INT>={}", least));
}

std::string positive_number(const std::string& text) {
  const auto number = number_of(text);
  return number && *number > 0 ? std::string() : "'" + text + "' is not a number above 0";
}

std::string from_0_to_1(const std::string& text) {
  const auto number = number_of(text);
  return number && *number >= 0 && *number <= 1 ? std::string() : "'" + text + "' is not a number from 0 to 1";
}

CLI::Validator size_like(const std::string& example) {
  return {[example](const std::string& text) {
            return parse_bytes(text) ? std::string() : "'" + text + "' is no size such as " + example;
          },
          ""};
}

std::optional<int64_t> sequence_option(std::string text) {
  if (text.ends_with("..")) text.resize(text.size() - 2);
  const bool thousands = text.ends_with('k') || text.ends_with('K');
  if (thousands) text.pop_back();
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 1 || number > (int64_t{1} << 40))
    return std::nullopt;
  return thousands ? number * 1024 : number;
}

}  // namespace shadowgraph::cli
