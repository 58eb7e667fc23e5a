// Writes what the page (viz/page/) is given of a profile: a header in JSON and columns of numbers, one byte string.
// viz/page/README.md describes the format and has its version; viz/page/src/container.ts reads it.
#pragma once

#include <string>

#include "shadowgraph/draw/draw.h"
#include "shadowgraph/graph/verify.h"
#include "shadowgraph/profile/profile.h"

namespace shadowgraph {

constexpr int kPageDataVersion = 1;

// Says which of the two graphs of a comparison this is; `diff` then says what became of its nodes.
struct PageRole {
  std::string title;
  const GraphDiff* diff = nullptr;
  bool before = false;
  const NodeColors* values = nullptr;
};

std::string page_data(const Profile& profile, const PageRole& role);

// Returns the bytes compressed (zlib's format) and in base64, as they stand in the page.
std::string packed(const std::string& bytes);

}  // namespace shadowgraph
