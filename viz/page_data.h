// Writes the page's data (viz/page/) for a profile as one byte string: a JSON header and columns of numbers. The format
// and its version are described in viz/page/README.md; viz/page/src/container.ts reads it.
#pragma once

#include <string>

#include "shadowgraph/draw/draw.h"
#include "shadowgraph/graph/verify.h"
#include "shadowgraph/profile/profile.h"

namespace shadowgraph {

constexpr int kPageDataVersion = 1;

// The role of this graph in a comparison; `diff` marks its nodes as added, removed or changed.
struct PageRole {
  std::string title;
  const GraphDiff* diff = nullptr;
  bool before = false;
  const NodeColors* values = nullptr;
};

std::string page_data(const Profile& profile, const PageRole& role);

// Returns the bytes zlib-compressed and base64-encoded, as embedded in the page.
std::string packed(const std::string& bytes);

}  // namespace shadowgraph
