// The axes of a mesh of devices or processes, by name: {{"dp", 8}, {"tp", 4}} is 32 of them. The last axis varies
// fastest, as in torch's DeviceMesh.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/export.h"

namespace SHADOWGRAPH_API shadowgraph {

struct MeshAxis {
  std::string name;
  int64_t size = 1;
};

// Axes as people write them, "dp=8,tp=4". Throws Error.
std::vector<MeshAxis> parse_mesh(std::string_view text);

}  // namespace shadowgraph
