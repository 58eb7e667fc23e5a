// Writes sums of costs, which may have more than 64 bits.
#pragma once

#include <string>

#include "shadowgraph/sharding/assignment.h"

namespace shadowgraph {

inline std::string text_of(AssignmentCost::Wide value) {
  std::string digits;
  const bool negative = value < 0;
  do {
    digits += static_cast<char>('0' + static_cast<int>(negative ? -(value % 10) : value % 10));
    value /= 10;
  } while (value != 0);
  if (negative) digits += '-';
  return {digits.rbegin(), digits.rend()};
}

}  // namespace shadowgraph
