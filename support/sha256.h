// SHA-256 (FIPS 180-4), for digests of cached files.
#pragma once

#include <string>
#include <string_view>

namespace shadowgraph {

// Returns 64 hexadecimal digits.
std::string sha256(std::string_view bytes);

}  // namespace shadowgraph
