#include "shadowgraph/profile/interconnect.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <filesystem>

#include "shadowgraph/error.h"
#include "shadowgraph/profile/collective_kind.h"
#include "shadowgraph/text.h"
#include "support/embedded_file.h"
#include "support/json.h"

namespace shadowgraph {

std::span<const EmbeddedFile> interconnect_files();  // profiler/communication/interconnects/, by cmake/embed.cmake

namespace {

using nlohmann::json;

class InterconnectReader {
 public:
  explicit InterconnectReader(const std::string& name) : name_(name) {}

  Interconnect read(const json& object) const {
    if (!object.is_object()) fail("it is no object");
    if (number(object, "version", "", 0) != 1) fail("its version is not 1");
    Interconnect links{.name = text(object, "name", name_)};
    links.title = text(object, "title", links.name);
    links.base = number(object, "base", "", 0);
    if (!object.contains("levels") || !object["levels"].is_array() || object["levels"].empty()) {
      fail("it has no levels; give at least one, {\"name\": \"nvlink\", \"latency\": 6e-7, \"bandwidth\": 3.7e11}");
    }
    for (const json& entry : object["levels"]) links.levels.push_back(level(entry));
    check_sizes(links.levels);
    if (object.contains("axes")) {
      if (!object["axes"].is_object()) fail("axes is no object");
      for (const auto& [axis, entry] : object["axes"].items()) links.axes[axis] = axis_links(axis, entry);
    }
    if (object.contains("sources") && object["sources"].is_object()) {
      for (const auto& [figure, source] : object["sources"].items()) {
        if (source.is_string()) links.sources[figure] = source.get<std::string>();
      }
    }
    return links;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw ParseError(name_ + ": not the figures of an interconnect (docs/time.md): " + what, 0, 0);
  }
  std::string text(const json& object, const char* key, const std::string& otherwise) const {
    if (!object.contains(key)) return otherwise;
    if (!object[key].is_string()) fail(std::string(key) + " is no text");
    return object[key].get<std::string>();
  }
  double checked(const json& value, const std::string& what) const {
    if (!value.is_number() || !(value.get<double>() >= 0) || !std::isfinite(value.get<double>())) {
      fail(what + " is no number of 0 or more");
    }
    return value.get<double>();
  }
  double number(const json& object, const char* key, const std::string& of, double otherwise) const {
    return object.contains(key) ? checked(object[key], of + key) : otherwise;
  }
  double bandwidth(const json& object, const std::string& of) const {
    const double value = number(object, "bandwidth", of, 0);
    if (value <= 0) fail(of + "bandwidth is missing or 0; give bytes a second");
    return value;
  }
  LinkLevel level(const json& entry) const {
    if (!entry.is_object()) fail("a level is no object");
    LinkLevel level{.name = text(entry, "name", "")};
    if (level.name.empty()) fail("a level has no name");
    const std::string of = "levels." + level.name + ".";
    const double size = number(entry, "size", of, 0);
    if (size != std::floor(size) || size > 1e9) fail(of + "size is no whole number of processes");
    level.size = static_cast<int64_t>(size);
    level.latency = number(entry, "latency", of, 0);
    level.bandwidth = bandwidth(entry, of);
    return level;
  }
  // Checks that each block is made of whole blocks of the level inside it, and that only the outermost holds all
  // processes.
  void check_sizes(const std::vector<LinkLevel>& levels) const {
    for (size_t i = 0; i < levels.size(); ++i) {
      const bool last = i + 1 == levels.size();
      if (levels[i].size == 0 && !last) fail("level " + levels[i].name + " has no size, and is not the last");
      if (i == 0 || levels[i].size == 0) continue;
      if (levels[i].size <= levels[i - 1].size || levels[i].size % levels[i - 1].size != 0) {
        fail(fmt::format("level {} has size {}, which is no multiple of {}'s {}", levels[i].name, levels[i].size,
                         levels[i - 1].name, levels[i - 1].size));
      }
    }
  }
  AxisLinks axis_links(const std::string& axis, const json& entry) const {
    if (!entry.is_object()) fail("axes." + axis + " is no object");
    const std::string of = "axes." + axis + ".";
    AxisLinks links;
    if (entry.contains("latency")) links.latency = number(entry, "latency", of, 0);
    if (entry.contains("bandwidth")) links.bandwidth = bandwidth(entry, of);
    if (!entry.contains("tables")) return links;
    if (!entry["tables"].is_object()) fail(of + "tables is no object");
    for (const auto& [word, points] : entry["tables"].items()) {
      const auto kind = parse_collective_kind(word);
      if (!kind) fail("'" + word + "' of " + of + "tables is no collective");
      links.tables[*kind] = table(points, of + "tables." + word);
    }
    return links;
  }
  CollectiveTable table(const json& points, const std::string& what) const {
    CollectiveTable table;
    if (!points.is_array() || points.empty()) fail(what + " is no list of [bytes, seconds]");
    for (const json& point : points) {
      if (!point.is_array() || point.size() != 2) fail(what + " is no list of [bytes, seconds]");
      const std::pair read{checked(point[0], what), checked(point[1], what)};
      if (read.first <= 0) fail(what + " has a point without bytes");
      if (!table.empty() && (read.first <= table.back().first || read.second < table.back().second)) {
        fail(what + " does not rise");
      }
      table.push_back(read);
    }
    return table;
  }

  const std::string& name_;
};

}  // namespace

Interconnect interconnect_from_json(const json& object, const std::string& name) {
  return InterconnectReader(name).read(object);
}

json to_json(const Interconnect& links) {
  json object{{"version", 1},       {"name", links.name},      {"title", links.title},
              {"base", links.base}, {"levels", json::array()}, {"sources", links.sources}};
  for (const LinkLevel& level : links.levels) {
    json entry{{"name", level.name}, {"latency", level.latency}, {"bandwidth", level.bandwidth}};
    if (level.size > 0) entry["size"] = level.size;
    object["levels"].push_back(std::move(entry));
  }
  for (const auto& [axis, own] : links.axes) {
    json& entry = object["axes"][axis] = json::object();
    if (own.latency) entry["latency"] = *own.latency;
    if (own.bandwidth) entry["bandwidth"] = *own.bandwidth;
    for (const auto& [kind, table] : own.tables) {
      json& points = entry["tables"][std::string(to_string(kind))] = json::array();
      for (const auto& [bytes, seconds] : table) points.push_back({bytes, seconds});
    }
  }
  return object;
}

Interconnect Interconnect::read_file(const std::string& path) {
  const std::string text = shadowgraph::read_file(path);
  try {
    return interconnect_from_json(parse_json(text), path);
  } catch (const json::exception& error) {
    throw ParseError(path + ": " + error.what(), 0, 0);
  }
}

std::vector<std::string> Interconnect::names() {
  std::vector<std::string> names;
  for (const EmbeddedFile& file : interconnect_files()) names.emplace_back(file.name);
  return names;
}

Interconnect Interconnect::named(std::string_view name) {
  for (const EmbeddedFile& file : interconnect_files()) {
    if (file.name == name) return interconnect_from_json(parse_json(file.text), std::string(name));
  }
  throw Error(fmt::format("no interconnect '{}' is known; there are {}, and files of your own (docs/time.md)", name,
                          fmt::join(names(), ", ")));
}

Interconnect Interconnect::find(const std::string& name_or_file) {
  return std::filesystem::exists(name_or_file) ? read_file(name_or_file) : named(name_or_file);
}

std::optional<Interconnect> Interconnect::around(std::string_view device) {
  static constexpr std::pair<std::string_view, std::string_view> kAround[] = {
      {"a100", "a100"}, {"a100_40gb", "a100"},  {"a100_pcie", "pcie4"}, {"b200", "b200"},     {"h100", "h100"},
      {"h200", "h200"}, {"h100_pcie", "pcie5"}, {"l4", "pcie4"},        {"mi300x", "mi300x"}, {"rtx4090", "pcie4"},
  };
  for (const auto& [name, links] : kAround) {
    if (name == device) return named(links);
  }
  return std::nullopt;
}

}  // namespace shadowgraph
