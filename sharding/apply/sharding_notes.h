// Where one rank's graph says what it is a part of: keys of its metadata, notes of its placeholders and ends.
#pragma once

namespace shadowgraph {

constexpr const char* kMeshKey = "sharding.mesh";
constexpr const char* kRankKey = "sharding.rank";
constexpr const char* kLayoutNote = "layout";
constexpr const char* kSizesNote = "whole_sizes";  // "8,16;scalar"

}  // namespace shadowgraph
