#include "cli/suggestion.h"

#include <algorithm>
#include <cctype>

#include "support/text.h"

namespace shadowgraph::cli {
namespace {

std::string letters_and_digits(std::string_view text) {
  std::string plain;
  for (const unsigned char c : text) {
    if (std::isalnum(c)) plain += static_cast<char>(std::tolower(c));
  }
  return plain;
}

}  // namespace

std::string closest(std::string_view name, std::span<const std::string> candidates) {
  const std::string plain = letters_and_digits(name.substr(0, 64));
  std::string best;
  size_t best_distance = plain.size() / 3 + 1;  // at most a third of the letters may differ
  for (const std::string& candidate : candidates) {
    const size_t distance = edit_distance(plain, letters_and_digits(candidate));
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace shadowgraph::cli
