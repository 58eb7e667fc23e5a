// Parts of a profile's text that have files of their own, and how wide all of it is. Internal to profiler/.
#pragma once

#include <string>

#include "shadowgraph/profile.h"

namespace shadowgraph {

constexpr size_t kTextWidth = 100;  // columns

std::string largest_text(const Profile& profile);

// Breaks lines that are wider at their last space that is not; what follows stands further in than the line began.
std::string wrapped(const std::string& text, size_t width = kTextWidth);

}  // namespace shadowgraph
