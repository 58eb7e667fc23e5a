#include "shadowgraph/profile/interconnect.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cmath>
#include <filesystem>

#include "shadowgraph/error.h"
#include "shadowgraph/profile/collective_kind.h"
#include "shadowgraph/text.h"
#include "support/embedded_file.h"
#include "support/json.h"
#include "support/json_place.h"

namespace shadowgraph {

std::span<const EmbeddedFile> interconnect_files();  // profiler/communication/interconnects/, by cmake/embed.cmake

namespace {

using nlohmann::json;

double bandwidth_in(const JsonPlace& entry) {
  const JsonPlace place = entry["bandwidth"];
  if (place.amount() <= 0) place.fail("is 0; give bytes a second");
  return place.amount();
}

LinkLevel link_level(const JsonPlace& entry) {
  LinkLevel level{.name = entry["name"].text()};
  if (level.name.empty()) entry["name"].fail("is empty");
  if (const auto size = entry.find("size")) {
    if (size->amount() != std::floor(size->amount()) || size->amount() > 1e9) {
      size->fail("is no whole number of processes");
    }
    level.size = static_cast<int64_t>(size->amount());
  }
  level.latency = entry.amount_or("latency", 0);
  level.bandwidth = bandwidth_in(entry);
  level.direct = entry.amount_or("direct", 0);
  if (const auto groups = entry.find("groups")) {
    for (const JsonPlace& group : groups->elements()) {
      const int64_t most = level.size > 0 ? level.size : 1'000'000'000;
      const int64_t processes = group["processes"].integer(2, most);
      if (!level.groups.empty() && processes <= level.groups.back().processes) group["processes"].fail("does not rise");
      level.groups.push_back(
          {.processes = processes, .bandwidth = bandwidth_in(group), .direct = group.amount_or("direct", 0)});
    }
  }
  return level;
}

// Checks that each block is made of whole blocks of the level inside it, and that only the outermost holds all
// processes.
void check_level_sizes(const JsonPlace& place, const std::vector<LinkLevel>& levels) {
  for (size_t i = 0; i < levels.size(); ++i) {
    const bool last = i + 1 == levels.size();
    if (levels[i].size == 0 && !last) place[i].fail("has no size, and is not the last");
    if (i == 0 || levels[i].size == 0) continue;
    if (levels[i].size <= levels[i - 1].size || levels[i].size % levels[i - 1].size != 0) {
      place[i]["size"].fail(fmt::format("is {}, which is no multiple of {}'s {}", levels[i].size, levels[i - 1].name,
                                        levels[i - 1].size));
    }
  }
}

CollectiveTable collective_table(const JsonPlace& points) {
  CollectiveTable table;
  for (const JsonPlace& point : points.elements()) {
    if (point.size() != 2) point.fail("is not a pair [bytes, seconds]");
    const std::pair read{point[0].amount(), point[1].amount()};
    if (read.first <= 0) point.fail("has no bytes");
    if (!table.empty() && (read.first <= table.back().first || read.second < table.back().second)) {
      points.fail("does not rise");
    }
    table.push_back(read);
  }
  if (table.empty()) points.fail("is empty; it is of pairs [bytes, seconds]");
  return table;
}

AxisLinks axis_links(const JsonPlace& entry) {
  AxisLinks links;
  if (const auto latency = entry.find("latency")) links.latency = latency->amount();
  if (entry.find("bandwidth")) links.bandwidth = bandwidth_in(entry);
  if (const auto tables = entry.find("tables")) {
    for (const auto& [word, points] : tables->members()) {
      const auto kind = parse_collective_kind(word);
      if (!kind) points.fail("is of no collective");
      links.tables[*kind] = collective_table(points);
    }
  }
  return links;
}

std::map<CollectiveKind, std::map<int64_t, CollectiveTable>> tables_by_size(const JsonPlace& place) {
  std::map<CollectiveKind, std::map<int64_t, CollectiveTable>> tables;
  for (const auto& [word, by_size] : place.members()) {
    const auto kind = parse_collective_kind(word);
    if (!kind) by_size.fail("is of no collective");
    for (const auto& [processes, points] : by_size.members()) {
      int64_t count = 0;
      const auto [end, error] = std::from_chars(processes.data(), processes.data() + processes.size(), count);
      if (error != std::errc() || end != processes.data() + processes.size() || count < 2 || count > 1'000'000'000) {
        points.fail("is of no number of processes, which are 2 or more");
      }
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

}  // namespace

Interconnect interconnect_from_json(const json& object, const std::string& name) {
  const std::string heading = name + ": not the figures of an interconnect (docs/time.md)";
  const JsonPlace place(object, heading);
  if (place["version"].number() != 1) place["version"].fail("is not 1");
  Interconnect links{.name = place.text_or("name", name)};
  links.title = place.text_or("title", links.name);
  links.base = place.amount_or("base", 0);
  links.device_share = place.amount_or("device_share", 0);
  if (links.device_share >= 1) place["device_share"].fail("is not below 1: nothing else could run");
  links.ring_fill = place.amount_or("ring_fill", 0);
  const JsonPlace levels = place["levels"];
  if (levels.size() == 0) {
    levels.fail("is empty; give at least one, {\"name\": \"nvlink\", \"latency\": 6e-7, \"bandwidth\": 3.7e11}");
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
    for (const auto& [kind, table] : own.tables) {
      entry["tables"][std::string(to_string(kind))] = to_json(table);
    }
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
  throw Error(fmt::format("no interconnect '{}' is known; there are {}, and files of your own (docs/time.md)", name,
                          fmt::join(names(), ", ")));
}

Interconnect Interconnect::find(const std::string& name_or_file) {
  return std::filesystem::exists(name_or_file) ? read_file(name_or_file) : named(name_or_file);
}

std::optional<Interconnect> Interconnect::around(std::string_view device) {
  static constexpr std::pair<std::string_view, std::string_view> kAround[] = {
      {"a100", "a100"},  {"a100_40gb", "a100"},  {"a100_pcie", "pcie4"}, {"b200", "b200"},     {"h100", "h100"},
      {"h200", "h200"},  {"h100_pcie", "pcie5"}, {"l4", "pcie4"},        {"mi300x", "mi300x"}, {"rtx4090", "pcie4"},
      {"h20", "h100"},   {"v100", "v100"},       {"b300", "b200"},       {"mi325x", "mi300x"}, {"a10g", "pcie4"},
      {"l40s", "pcie4"}, {"rtx3090", "pcie4"},   {"rtx5090", "pcie5"},
  };
  for (const auto& [name, links] : kAround) {
    if (name == device) return named(links);
  }
  return std::nullopt;
}

}  // namespace shadowgraph
