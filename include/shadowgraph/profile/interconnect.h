// Links between processes. Each figure has a source: a data sheet, a library's sources, a measurement.
//
//     const Interconnect links = Interconnect::named("h100");
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/profile/collective_kind.h"

namespace SHADOWGRAPH_API shadowgraph {

// What fewer processes than a block has reach each other by, where links join pairs. Among eight V100s, neighbours share
// one or two links, and some pairs none.
struct LinkGroup {
  int64_t processes = 0;  // of a group within a block of the level, at least; up to the next entry's
  double bandwidth = 0;   // as of LinkLevel
  double direct = 0;
  friend bool operator==(const LinkGroup&, const LinkGroup&) = default;
};

// Processes in blocks of `size` neighbours in rank (8 in a machine) reach each other by this.
struct LinkLevel {
  std::string name;                    // "nvlink"
  int64_t size = 0;                    // 0, for the outermost alone: all processes
  double latency = 0;                  // seconds of a hop
  double bandwidth = 0;                // B/s that one process sends round a ring, while it receives as much
  double direct = 0;                   // B/s that one process sends to all others at once (all_to_all); 0: as bandwidth
  std::vector<LinkGroup> groups = {};  // processes rising
  friend bool operator==(const LinkLevel&, const LinkLevel&) = default;
};

// (payload bytes, seconds): between two points linear, below the first as that, beyond the last on at its rate.
using CollectiveTable = std::vector<std::pair<double, double>>;

// What is known of one axis of a mesh, in place of the levels.
struct AxisLinks {
  std::optional<double> latency;
  std::optional<double> bandwidth;
  std::map<CollectiveKind, CollectiveTable> tables;  // measured on that axis
  friend bool operator==(const AxisLinks&, const AxisLinks&) = default;
};

struct Interconnect {
  std::string name;   // "h100"
  std::string title;  // "8 x H100 by NVLink, nodes by 400 Gb/s InfiniBand"
  double base = 0;    // seconds of any call: its kernel begins and ends
  // What a collective takes of the device while it runs: kernels beside it go on at (1 - share) of their speed.
  double device_share = 0;
  // Steps of a ring that filling it costs, beyond the n - 1 (all_reduce: 2 n - 2) in which its bytes go round.
  double ring_fill = 0;
  std::vector<LinkLevel> levels;
  std::map<std::string, AxisLinks> axes;
  // Measured, by processes of the group, which lie as closely as the levels allow; an axis's own come first.
  std::map<CollectiveKind, std::map<int64_t, CollectiveTable>> tables;
  std::map<std::string, std::string> sources;  // by figure; "*" for all that are not named

  // "v100", "a100", "h100", "h200", "b200", "mi300x", "pcie4", "pcie5". Throws Error.
  static Interconnect named(std::string_view name);
  static std::vector<std::string> names();
  // A name, or a file if there is one of that name.
  static Interconnect find(const std::string& name_or_file);
  // What usually stands around a device of shadowgraph/profile/device_spec.h ("h100_pcie": "pcie5"); nothing for those of one
  // machine.
  static std::optional<Interconnect> around(std::string_view device);
  // docs/interconnect.schema.json, docs/time.md. Throws ParseError, FileError.
  static Interconnect read_file(const std::string& path);
  void write_file(const std::string& path) const;
  // Takes over the tables of lines of comma-separated values, after one with the columns' names. These are, in any order,
  // collective ("all_reduce"), processes, bytes of payload, seconds, and perhaps axis. A size that is there several
  // times takes the median. Throws ParseError, with file and line, and FileError.
  void add_csv(const std::string& path);
};
nlohmann::json to_json(const Interconnect& links);
Interconnect interconnect_from_json(const nlohmann::json& json, const std::string& name);  // throws ParseError

}  // namespace shadowgraph
