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
// Amounts are on a logarithmic scale of ten colours that the colour-blind can tell apart, from the least amount in the
// picture to the most. (cividis: dark is little, yellow much.) A box of several operators has their sum, one without
// any is grey. Kinds have a colour each; a box of several kinds is grey and says so.

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
  kGiven,   // what a file says of nodes: node_colors_of_file
};
// "operator", "flops", "bytes", "allocated", "memory", "time", "device", "phase", "module"; "given"
std::string_view to_string(ColorBy by);
// Throws Error, listing the names, if `name` is none of them. What is given has no name to ask for.
ColorBy color_by(std::string_view name);

struct LegendEntry {
  std::string label;  // "12.5 MiB", "backward"
  std::string fill;   // "#rrggbb"
  bool light_text = false;
  friend bool operator==(const LegendEntry&, const LegendEntry&) = default;
};

struct NodeColors {
  static constexpr uint32_t kNoKind = 0xFFFFFFFFU;
  enum class Unit : uint8_t { kFlops, kBytes, kSeconds, kNone };

  ColorBy by = ColorBy::kOperator;
  std::string title;  // "estimated time on h100"
  Unit unit = Unit::kFlops;
  IdMap<NodeId, double> amounts;
  IdMap<NodeId, uint32_t> kinds{kNoKind};
  std::vector<LegendEntry> kind_entries;  // if not empty, nodes have kinds rather than amounts

  // Throws Error if the profile does not know: times without a device's figures (ProfileOptions::spec).
  static NodeColors of(const Profile& profile, ColorBy by);
};

// ---------------------------------------------------------------------------------------------------------------------
// Colours by values from elsewhere: what was measured, which rank or kernel a node went to. A file names nodes as the text
// of the graph does, "n12", or "%7" for the node that makes a value.
//
//     {"title": "measured on gpu 3", "unit": "seconds", "nodes": {"n12": 0.25, "n13": 0.5}}
//     {"n12": "rank 0", "n13": "rank 1"}
//     node,seconds
//     n12,0.25
//
// All values are numbers, none below 0, or all are words; `unit` is "flops", "bytes", "seconds" or "". In a table (CSV,
// whose first line names its columns) `column` is the one to take, by default the second. A name that ends with _bytes,
// _flops or seconds says its unit. Nodes that are not named have none.

// Throws Error, naming the line or key, if that is not what `text` holds. `name` is of the file, for messages and title.
NodeColors node_colors_of_text(const Graph& graph, const std::string& text, const std::string& name,
                               const std::string& column = {});
// Reads "FILE.json", "FILE.csv" or "FILE.csv:COLUMN". Throws what reading the file throws, too.
NodeColors node_colors_of_file(const Graph& graph, const std::string& name);
// Whether `name` is that of such a file, rather than of a mode.
bool is_color_file(std::string_view name);

}  // namespace shadowgraph
