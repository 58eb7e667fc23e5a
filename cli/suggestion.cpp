#include "cli/suggestion.h"

#include <algorithm>
#include <cctype>
#include <numeric>
#include <vector>

namespace shadowgraph::cli {
namespace {

std::string letters_and_digits(std::string_view text) {
  std::string plain;
  for (const unsigned char c : text) {
    if (std::isalnum(c)) plain += static_cast<char>(std::tolower(c));
  }
  return plain;
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t above = row[j + 1];
      row[j + 1] = std::min({above + 1, row[j] + 1, diagonal + (a[i] == b[j] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row.back();
}

}  // namespace

std::string closest(std::string_view name, std::span<const std::string> candidates) {
  const std::string plain = letters_and_digits(name.substr(0, 64));
  std::string best;
  size_t best_distance = plain.size() / 3 + 1;  // a third of the letters may be wrong
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
