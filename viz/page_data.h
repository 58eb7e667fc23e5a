// What the page (viz/page/) is given of a profile: a header in JSON and columns of numbers, one byte string. The format is
// described, and versioned, in viz/page/README.md; viz/page/src/container.ts reads it.
#pragma once

#include <string>

#include "shadowgraph/draw_colors.h"
#include "shadowgraph/profile.h"
#include "shadowgraph/verify.h"

namespace shadowgraph {

constexpr int kPageDataVersion = 1;

// Which of the two graphs of a comparison this is; `diff` then says what became of its nodes.
struct PageRole {
  std::string title;
  const GraphDiff* diff = nullptr;
  bool before = false;
  const NodeColors* values = nullptr;
};

std::string page_data(const Profile& profile, const PageRole& role);

// The bytes compressed (zlib's format) and in base64, as they stand in the page.
std::string packed(const std::string& bytes);

}  // namespace shadowgraph
