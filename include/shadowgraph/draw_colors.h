// What boxes of pictures are coloured by: one mode, one value of every node.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"

namespace SHADOWGRAPH_API shadowgraph {

struct Profile;

// ---------------------------------------------------------------------------------------------------------------------
// Colours by what a profile says of nodes, for ViewOptions::colors.
//
//     const NodeColors colors = NodeColors::of(costs, ColorBy::kTime);
//     write_dot(ViewModel::of(costs.graph(), {.colors = &colors}));
//
// Amounts are on a logarithmic scale of ten colours that the colour-blind can tell apart (cividis: dark is little, yellow
// much), from the least amount in the picture to the most; a box of several operators has their sum, one without any is
// grey. Kinds have a colour each; a box of several kinds is grey and says so.

enum class ColorBy : uint8_t {
  kOperator,   // its category
  kFlops,      // of matrix products
  kBytes,      // read and written
  kAllocated,  // bytes of new storages
  kMemory,     // bytes that autograd keeps for backward from here on
  kTime,       // estimated seconds
  kDevice,     // where its first result is
  kPhase,
  kModule,  // the class of the innermost module that has one
};
// "operator", "flops", "bytes", "allocated", "memory", "time", "device", "phase", "module"
std::string_view to_string(ColorBy by);
// Throws Error, listing the names, if `name` is none of them.
ColorBy color_by(std::string_view name);

struct LegendEntry {
  std::string label;  // "12.5 MiB", "backward"
  std::string fill;   // "#rrggbb"
  bool light_text = false;
  friend bool operator==(const LegendEntry&, const LegendEntry&) = default;
};

struct NodeColors {
  static constexpr uint32_t kNoKind = 0xFFFFFFFFU;
  enum class Unit : uint8_t { kFlops, kBytes, kSeconds };

  ColorBy by = ColorBy::kOperator;
  std::string title;  // "estimated time on h100"
  Unit unit = Unit::kFlops;
  IdMap<NodeId, double> amounts;
  IdMap<NodeId, uint32_t> kinds{kNoKind};
  std::vector<LegendEntry> kind_entries;  // if not empty, nodes have kinds rather than amounts

  // Throws Error if the profile does not know: times without a device's figures (ProfileOptions::spec).
  static NodeColors of(const Profile& profile, ColorBy by);
};

}  // namespace shadowgraph
