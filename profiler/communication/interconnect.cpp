#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "profiler/time/operator_tables.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/units.h"
#include "support/csv.h"
#include "support/embedded_file.h"
#include "support/files.h"
#include "support/json.h"
#include "support/text.h"

namespace shadowgraph {

std::span<const EmbeddedFile> interconnect_files();  // profiler/communication/interconnects/, by cmake/embed.cmake

namespace {

using nlohmann::json;

LinkLevel link_level(const JsonPlace& entry) {
  LinkLevel level{.name = entry["name"].text()};
  if (level.name.empty()) entry["name"].fail("must not be empty");
  if (const auto size = entry.find("size")) {
    if (size->amount() != std::floor(size->amount()) || size->amount() > 1e9) {
      size->fail("must be an integer number of processes");
    }
    level.size = static_cast<int64_t>(size->amount());
  }
  level.latency = entry.seconds_or("latency", 0);
  level.bandwidth = entry["bandwidth"].rate();
  level.direct = entry.rate_or_zero("direct");
  if (const auto groups = entry.find("groups")) {
    for (const JsonPlace& group : groups->elements()) {
      const int64_t most = level.size > 0 ? level.size : 1'000'000'000;
      const int64_t processes = group["processes"].integer(2, most);
      if (!level.groups.empty() && processes <= level.groups.back().processes)
        group["processes"].fail("must be in ascending order");
      level.groups.push_back(
          {.processes = processes, .bandwidth = group["bandwidth"].rate(), .direct = group.rate_or_zero("direct")});
      group.refuse_other_keys("a group");
    }
  }
  entry.refuse_other_keys("a level");
  return level;
}

// Checks that each level's size is a multiple of the previous one, and that only the outermost level is unbounded.
void check_level_sizes(const JsonPlace& place, const std::vector<LinkLevel>& levels) {
  for (size_t i = 0; i < levels.size(); ++i) {
    const bool last = i + 1 == levels.size();
    if (levels[i].size == 0 && !last) place[i].fail("needs a size; only the last level may omit it");
    if (i == 0 || levels[i].size == 0) continue;
    if (levels[i].size <= levels[i - 1].size || levels[i].size % levels[i - 1].size != 0) {
      place[i]["size"].fail(fmt::format("is {}, which is not a multiple of {}'s {}", levels[i].size, levels[i - 1].name,
                                        levels[i - 1].size));
    }
  }
}

CollectiveTable collective_table(const JsonPlace& points) {
  CollectiveTable table;
  for (const JsonPlace& point : points.elements()) {
    if (point.size() != 2) point.fail("must be a pair [bytes, seconds]");
    const std::pair read{point[0].amount(), point[1].seconds()};
    if (read.first <= 0) point.fail("must have positive bytes");
    if (!table.empty() && (read.first <= table.back().first || read.second < table.back().second)) {
      points.fail("must be in ascending order");
    }
    table.push_back(read);
  }
  if (table.empty()) points.fail("must not be empty; give pairs [bytes, seconds]");
  return table;
}

AxisLinks axis_links(const JsonPlace& entry) {
  AxisLinks links;
  if (const auto latency = entry.find("latency")) links.latency = latency->seconds();
  if (const auto bandwidth = entry.find("bandwidth")) links.bandwidth = bandwidth->rate();
  if (const auto tables = entry.find("tables")) {
    for (const auto& [word, points] : tables->members()) {
      const auto kind = find_named<CollectiveKind>(word);
      if (!kind) points.fail("is not a collective");
      links.tables[*kind] = collective_table(points);
    }
  }
  entry.refuse_other_keys("the links of an axis");
  return links;
}

std::map<CollectiveKind, std::map<int64_t, CollectiveTable>> tables_by_size(const JsonPlace& place) {
  std::map<CollectiveKind, std::map<int64_t, CollectiveTable>> tables;
  for (const auto& [word, by_size] : place.members()) {
    const auto kind = find_named<CollectiveKind>(word);
    if (!kind) by_size.fail("is not a collective");
    for (const auto& [processes, points] : by_size.members()) {
      const int64_t count = parse_number<int64_t>(processes).value_or(0);
      if (count < 2 || count > 1'000'000'000) points.fail("must be keyed by a number of processes, 2 or more");
      tables[*kind][count] = collective_table(points);
    }
  }
  return tables;
}

json to_json(const CollectiveTable& table) {
  json points = json::array();
  for (const auto& [bytes, seconds] : table) points.push_back({bytes, seconds});
  return points;
}

struct MeasuredCollectives {
  CollectiveKind kind;
  int64_t processes;
  std::string axis;
  auto operator<=>(const MeasuredCollectives&) const = default;
};

// Builds a table of medians. A larger payload that was measured faster than a smaller one gets the smaller one's time,
// since readers require both columns to be ascending.
CollectiveTable rising_medians(std::map<double, std::vector<double>>& by_bytes) {
  CollectiveTable table;
  for (auto& [bytes, seconds] : by_bytes) {
    const double middle = median(std::move(seconds));
    table.emplace_back(bytes, table.empty() ? middle : std::max(middle, table.back().second));
  }
  return table;
}

// Returns (n - 1) / n of the bytes, rounded up.
int64_t all_but_own(int64_t bytes, int64_t n) {
  const int64_t whole = bytes / n;
  const int64_t rest = bytes % n;
  return whole * (n - 1) + (rest * (n - 1) + n - 1) / n;
}

// Returns the links by which `processes` processes within a block of a level communicate.
LinkGroup reached_by(const LinkLevel& level, int64_t processes) {
  LinkGroup reached{.processes = level.size, .bandwidth = level.bandwidth, .direct = level.direct};
  if (level.groups.empty() || (level.size > 0 && processes >= level.size)) return reached;
  for (const LinkGroup& group : level.groups) {
    if (group.processes <= processes) reached = group;
  }
  return reached;
}

std::vector<int64_t> ranks_of(const ProcessGroupInfo& group) {
  std::vector<int64_t> ranks = group.ranks;
  if (ranks.empty()) {
    ranks.resize(static_cast<size_t>(group.size));
    std::iota(ranks.begin(), ranks.end(), 0);
  }
  std::ranges::sort(ranks);
  return ranks;
}

// Counts the blocks of a level that contain any of the (sorted) ranks.
int64_t blocks_with(const std::vector<int64_t>& ranks, const LinkLevel& level) {
  int64_t blocks = 0, behind = 0;  // behind: end of the current block
  for (const int64_t rank : ranks) {
    if (blocks > 0 && rank < behind) continue;
    behind = (rank / level.size + 1) * level.size;
    ++blocks;
  }
  return blocks;
}

// The placement of a group on the levels. Level l has blocks(l) blocks with processes of the group; below the first
// level each process is a block.
class Span {
 public:
  Span(const ProcessGroupInfo& group, const Interconnect& links) {
    const std::vector<int64_t> ranks = ranks_of(group);
    const auto axis = links.axes.find(group.axis.empty() ? group.name : group.axis);
    const AxisLinks* own = axis == links.axes.end() ? nullptr : &axis->second;
    int64_t below = group.size;
    for (const LinkLevel& level : links.levels) {
      const bool is_last = level.size <= 0 || &level == &links.levels.back();
      const int64_t blocks = is_last ? 1 : blocks_with(ranks, level);
      if (blocks < below) {
        const LinkGroup reached = reached_by(level, (group.size + blocks - 1) / blocks);
        used_.push_back({.hops = below - blocks,
                         .fan = (below + blocks - 1) / blocks,
                         .latency = level.latency,
                         .bandwidth = reached.bandwidth,
                         .direct = reached.direct > 0 ? reached.direct : reached.bandwidth,
                         .processes = group.size / below,
                         .chain = &level == &links.levels.front()});
      }
      below = blocks;
      if (blocks == 1) break;
    }
    if (own != nullptr && own->latency && own->bandwidth) {
      used_ = {{.hops = group.size - 1, .fan = group.size, .latency = 0, .bandwidth = 1, .direct = 1, .processes = 1}};
    }
    for (Used& used : used_) {
      if (own == nullptr) break;
      if (own->latency) used.latency = *own->latency;
      if (own->bandwidth) {
        used.bandwidth = used.direct = *own->bandwidth;
        used.processes = 1;
      }
    }
  }

  double ring_latency() const {
    double seconds = 0;
    for (const Used& used : used_) seconds += static_cast<double>(used.hops) * used.latency;
    return seconds;
  }
  // Returns the latency of a tree, one way: a chain through each innermost block, binary trees above.
  double tree_latency() const {
    double seconds = 0;
    for (const Used& used : used_) {
      const double depth = used.chain ? static_cast<double>(used.fan - 1) : std::ceil(std::log2(used.fan));
      seconds += depth * used.latency;
    }
    return seconds;
  }
  double ring_bandwidth() const {
    double bandwidth = HUGE_VAL;
    for (const Used& used : used_) {
      bandwidth = std::min(bandwidth, used.bandwidth * static_cast<double>(std::max<int64_t>(used.processes, 1)));
    }
    return bandwidth;
  }
  // Returns seconds per payload byte of a direct exchange. Every process sends to every other one over the links of the
  // level that connects them; all levels are used concurrently.
  double direct_seconds_a_byte(int64_t n) const {
    double seconds = 0;
    int64_t inside = 1;  // processes of the group in a block of the level below
    for (const Used& used : used_) {
      const int64_t here = std::min(n, inside * used.fan);
      seconds = std::max(seconds, static_cast<double>(here - inside) / static_cast<double>(n) / used.direct);
      inside = here;
    }
    return seconds;
  }

 private:
  struct Used {
    int64_t hops = 0;  // between blocks, in a ring through all
    int64_t fan = 0;   // maximum number of blocks of the level below in a block
    double latency = 0, bandwidth = 0, direct = 0;
    int64_t processes = 1;  // in a block of the level below: links that leave the block
    bool chain = false;     // the tree is a chain inside the block
  };
  std::vector<Used> used_;
};

double interpolate(const CollectiveTable& table, double bytes) {
  if (bytes <= table.front().first) return table.front().second;
  if (table.size() == 1) return table.front().second * bytes / table.front().first;
  auto above = std::upper_bound(table.begin(), table.end(), bytes,
                                [](double value, const auto& point) { return value < point.first; });
  if (above == table.end()) --above;
  const auto below = std::prev(above);
  const double slope = (above->second - below->second) / (above->first - below->first);
  return below->second + slope * (bytes - below->first);
}

// Returns true if the group spans the fewest possible blocks at each level.
bool is_compact(const ProcessGroupInfo& group, const Interconnect& links) {
  if (group.ranks.empty()) return true;
  return std::ranges::all_of(links.levels, [&, ranks = ranks_of(group)](const LinkLevel& level) {
    return level.size == 0 || blocks_with(ranks, level) <= (group.size + level.size - 1) / level.size;
  });
}

const CollectiveTable* table_for(CollectiveKind kind, const ProcessGroupInfo& group, const Interconnect& links) {
  const auto axis = links.axes.find(group.axis.empty() ? group.name : group.axis);
  if (axis != links.axes.end()) {
    const auto table = axis->second.tables.find(kind);
    if (table != axis->second.tables.end() && !table->second.empty()) return &table->second;
  }
  const auto by_size = links.tables.find(kind);
  if (by_size == links.tables.end() || !is_compact(group, links)) return nullptr;
  const auto table = by_size->second.find(group.size);
  return table == by_size->second.end() || table->second.empty() ? nullptr : &table->second;
}

CollectiveCost between_two(int64_t payload, const ProcessGroupInfo& group, const Interconnect& links, int64_t peer) {
  if (peer < 0) peer = (group.rank + 1) % group.size;
  const auto rank_of = [&](int64_t place) {
    return group.ranks.empty() ? place : group.ranks[static_cast<size_t>(place) % group.ranks.size()];
  };
  const ProcessGroupInfo pair{
      .name = group.name, .size = 2, .rank = 0, .ranks = {rank_of(group.rank), rank_of(peer)}, .axis = group.axis};
  const Span span(pair, links);
  return {.wire = payload,
          .latency = links.base + span.ring_latency(),
          .transfer = static_cast<double>(payload) / span.ring_bandwidth(),
          .algorithm = CollectiveAlgorithm::kDirect};
}

}  // namespace

Interconnect interconnect_from_json(const json& object, const std::string& name) {
  const std::string heading = name + ": invalid interconnect spec (docs/time.md)";
  const JsonPlace place(object, heading);
  if (place["version"].number() != 1)
    place["version"].fail(fmt::format("must be 1, not {}", place["version"].number()));
  Interconnect links{.name = place.text_or("name", name)};
  links.title = place.text_or("title", links.name);
  links.base = place.seconds_or("base", 0);
  links.device_share = place.amount_or("device_share", 0);
  if (links.device_share >= 1) place["device_share"].fail("must be less than 1");
  links.ring_fill = place.amount_or("ring_fill", 0);
  if (links.ring_fill > 1000) place["ring_fill"].fail("must be at most 1000 steps");
  const JsonPlace levels = place["levels"];
  if (levels.size() == 0) {
    levels.fail(
        "must not be empty; give at least one, such as {\"name\": \"nvlink\", \"latency\": 6e-7, \"bandwidth\": "
        "3.7e11}");
  }
  for (const JsonPlace& entry : levels.elements()) links.levels.push_back(link_level(entry));
  check_level_sizes(levels, links.levels);
  if (const auto axes = place.find("axes")) {
    for (const auto& [axis, entry] : axes->members()) links.axes[axis] = axis_links(entry);
  }
  if (const auto tables = place.find("tables")) links.tables = tables_by_size(*tables);
  if (const auto sources = place.find("sources")) {
    for (const auto& [figure, source] : sources->members()) links.sources[figure] = source.text();
  }
  place.refuse_other_keys("an interconnect spec");
  return links;
}

json to_json(const Interconnect& links) {
  json object{{"version", 1},
              {"name", links.name},
              {"title", links.title},
              {"base", links.base},
              {"device_share", links.device_share},
              {"ring_fill", links.ring_fill},
              {"levels", json::array()},
              {"sources", links.sources}};
  for (const LinkLevel& level : links.levels) {
    json entry{{"name", level.name}, {"latency", level.latency}, {"bandwidth", level.bandwidth}};
    if (level.size > 0) entry["size"] = level.size;
    if (level.direct > 0) entry["direct"] = level.direct;
    for (const LinkGroup& group : level.groups) {
      json& made = entry["groups"].emplace_back(json{{"processes", group.processes}, {"bandwidth", group.bandwidth}});
      if (group.direct > 0) made["direct"] = group.direct;
    }
    object["levels"].push_back(std::move(entry));
  }
  for (const auto& [axis, own] : links.axes) {
    json& entry = object["axes"][axis] = json::object();
    if (own.latency) entry["latency"] = *own.latency;
    if (own.bandwidth) entry["bandwidth"] = *own.bandwidth;
    for (const auto& [kind, table] : own.tables) entry["tables"][std::string(to_string(kind))] = to_json(table);
  }
  for (const auto& [kind, by_size] : links.tables) {
    json& entry = object["tables"][std::string(to_string(kind))] = json::object();
    for (const auto& [processes, table] : by_size) entry[std::to_string(processes)] = to_json(table);
  }
  return object;
}

void Interconnect::write_file(const std::string& path) const {
  shadowgraph::write_file(path, json_text(to_json(*this), 2) + "\n");
}

Interconnect Interconnect::read_file(const std::string& path) {
  return interconnect_from_json(parse_json(shadowgraph::read_file(path), path), path);
}

std::vector<std::string> Interconnect::names() {
  std::vector<std::string> names;
  for (const EmbeddedFile& file : interconnect_files()) names.emplace_back(file.name);
  return names;
}

Interconnect Interconnect::named(std::string_view name) {
  for (const EmbeddedFile& file : interconnect_files()) {
    if (file.name == name) return interconnect_from_json(parse_json(file.text, name), std::string(name));
  }
  throw Error(fmt::format("unknown interconnect '{}'; choose one of {}, or give the path of a spec file (docs/time.md)",
                          name, fmt::join(names(), ", ")));
}

Interconnect Interconnect::find(const std::string& name_or_file) {
  // A file of a built-in name in the working directory needs a path (./nvlink).
  const bool is_builtin =
      std::ranges::any_of(interconnect_files(), [&](const EmbeddedFile& file) { return file.name == name_or_file; });
  return !is_builtin && is_file(name_or_file) ? read_file(name_or_file) : named(name_or_file);
}

Machine Machine::of(const DeviceSpec& device) {
  Machine machine{.device = device, .memory = MemoryLimit::of(device), .kind = device.device};
  if (!device.interconnect.empty()) machine.links = Interconnect::named(device.interconnect);
  return machine;
}

Machine Machine::find(const std::string& device, const std::string& interconnect,
                      const std::optional<MemoryLimit>& memory, c10::DeviceType kind) {
  Machine machine{.kind = kind};
  if (!device.empty()) {
    machine = of(DeviceSpec::find(device));
  } else if (memory && !memory->device.empty() && kind != c10::kCPU) {
    machine = of(DeviceSpec::find(memory->device));
  } else if (kind == c10::kCUDA) {
    machine = of(DeviceSpec::named("h100"));
  } else if (kind == c10::kCPU) {
    const std::string calibration = DeviceSpec::calibration_file();
    machine = of(is_file(calibration)
                     ? device_spec_from_json(parse_json(read_private_file(calibration), calibration), calibration)
                     : DeviceSpec::named("cpu"));
  }
  if (!interconnect.empty()) machine.links = Interconnect::find(interconnect);
  if (memory) machine.memory = memory;
  return machine;
}

const DeviceSpec& Machine::specs() const {
  if (device) return *device;
  throw Error(fmt::format("{} devices have no default spec; choose one with --spec (Python: spec=\"h100\")",
                          c10::DeviceTypeName(kind, true)));
}

const Interconnect& Machine::network() const {
  if (links) return *links;
  throw Error(
      fmt::format("{} has no default interconnect; choose one with --interconnect (Python: "
                  "interconnect=\"pcie5\")",
                  device ? device->title : c10::DeviceTypeName(kind, true) + " devices"));
}

void Interconnect::add_csv(const std::string& path) {
  const CsvTable csv(shadowgraph::read_file(path), path, {"collective", "processes", "bytes", "seconds", "axis"});
  std::map<MeasuredCollectives, std::map<double, std::vector<double>>> measured;
  std::map<std::pair<std::string, CollectiveKind>, int64_t> of_axis;
  for (const CsvRow& row : csv.rows()) {
    const auto kind = find_named<CollectiveKind>(row.text("collective"));
    if (!kind)
      row.fail("unknown collective '" + terminal_text(row.text("collective")) + "'; give one such as all_reduce");
    const int64_t processes = row.count("processes");
    if (processes < 2 || processes > 1'000'000'000) row.fail("processes must be between 2 and 1,000,000,000");
    const std::string axis(row.text_or_empty("axis"));
    if (!axis.empty() && of_axis.try_emplace({axis, *kind}, processes).first->second != processes) {
      row.fail("axis '" + terminal_text(axis) + "' must have the same number of processes as in earlier rows");
    }
    measured[{*kind, processes, axis}][row.amount("bytes")].push_back(row.amount("seconds"));
  }
  for (auto& [of, by_bytes] : measured) {
    (of.axis.empty() ? tables[of.kind][of.processes] : axes[of.axis].tables[of.kind]) = rising_medians(by_bytes);
  }
}

int64_t wire_bytes(CollectiveKind kind, int64_t payload, int64_t processes) {
  if (processes <= 1) return 0;
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return saturating_add(all_but_own(payload, processes), all_but_own(payload, processes));
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllToAll:
    case CollectiveKind::kGather:
    case CollectiveKind::kScatter:
      return all_but_own(payload, processes);
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kReduce:
    case CollectiveKind::kSend:
    case CollectiveKind::kReceive:
      return payload;
    case CollectiveKind::kBarrier:
      return 0;
  }
  return 0;
}

CollectiveCost collective_cost(CollectiveKind kind, int64_t payload, const ProcessGroupInfo& group,
                               const Interconnect& links, int64_t peer) {
  const int64_t n = group.size;
  if (n <= 1) return {};
  CollectiveCost cost{.wire = wire_bytes(kind, payload, n)};
  if (const CollectiveTable* table = table_for(kind, group, links)) {
    cost.latency = interpolate(*table, static_cast<double>(payload));
    cost.algorithm = CollectiveAlgorithm::kTable;
    return cost;
  }
  if (kind == CollectiveKind::kSend || kind == CollectiveKind::kReceive)
    return between_two(payload, group, links, peer);
  const Span span(group, links);
  const double ring = links.base + span.ring_latency();
  const auto wire = static_cast<double>(cost.wire);
  cost.algorithm = CollectiveAlgorithm::kRing;
  cost.latency = ring;
  // Filling the ring takes this fraction of a step more. One-to-all and all-to-one collectives use no ring.
  const bool round = kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kAllGather ||
                     kind == CollectiveKind::kReduceScatter || kind == CollectiveKind::kAllToAll;
  const auto steps = static_cast<double>(kind == CollectiveKind::kAllReduce ? 2 * (n - 1) : n - 1);
  const double filled = round ? 1 + links.ring_fill / steps : 1;
  cost.transfer = filled * wire / span.ring_bandwidth();
  if (kind == CollectiveKind::kAllToAll || kind == CollectiveKind::kGather || kind == CollectiveKind::kScatter) {
    cost.algorithm = CollectiveAlgorithm::kDirect;
    cost.transfer = filled * static_cast<double>(payload) * span.direct_seconds_a_byte(n);
  } else if (kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kBarrier) {
    cost.latency += span.ring_latency();
    CollectiveCost tree{.wire = saturating_add(payload, payload),
                        .latency = links.base + 2 * span.tree_latency(),
                        .algorithm = CollectiveAlgorithm::kTree};
    if (kind == CollectiveKind::kBarrier) tree.wire = 0;
    tree.transfer = static_cast<double>(tree.wire) / span.ring_bandwidth();
    if (tree.seconds() < cost.seconds()) return tree;
  }
  return cost;
}

}  // namespace shadowgraph
