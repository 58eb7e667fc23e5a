// Reads node values from a JSON or CSV file.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "shadowgraph/draw/draw.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/text.h"
#include "support/json.h"
#include "support/text.h"
#include "viz/node_colors.h"

namespace shadowgraph {
namespace {

using nlohmann::json;

struct GivenValue {
  std::string key;    // "n12", "12", "%7"
  std::string value;  // as written in the file
  std::string where;  // "line 3"
};
struct GivenValues {
  std::string title;
  std::optional<std::string> unit;
  std::vector<GivenValue> values;
};

GivenValues read_json(const std::string& text, const std::string& name) {
  const json object = parse_json(text, name);
  const JsonPlace place(object, name);
  const auto nodes = place.find("nodes");
  const bool wrapped = nodes && nodes->is_object();
  GivenValues given;
  if (wrapped) {
    given.title = place.text_or("title", "");
    if (const auto unit = place.find("unit")) given.unit = unit->text();
    place.refuse_other_keys("a color file");
  }
  for (const auto& [key, value] : (wrapped ? *nodes : place).members()) {
    if (!value.json().is_number() && !value.is_text()) value.fail("must be a number or a string");
    given.values.push_back({key, value.is_text() ? value.text() : json_text(value.json()), "key"});
  }
  return given;
}

// Removes the first line of `text` and returns its fields; quoted fields may contain commas, quotes and newlines.
std::vector<std::string> take_csv_line(std::string_view& text, size_t& line) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  size_t at = 0;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '\n') ++line;
    if (quoted && c == '"' && at + 1 < text.size() && text[at + 1] == '"') {
      fields.back() += '"';
      ++at;
    } else if (c == '"') {
      quoted = !quoted;
    } else if (quoted) {
      fields.back() += c;
    } else if (c == ',') {
      fields.emplace_back();
    } else if (c == '\n') {
      ++at;
      break;
    } else if (c != '\r') {
      fields.back() += c;
    }
  }
  text.remove_prefix(at);
  return fields;
}

std::optional<std::string> unit_by_column(const std::string& column) {
  for (const char* unit : {"bytes", "flops", "seconds"}) {
    if (column.ends_with(unit)) return unit;
  }
  return std::nullopt;
}

GivenValues read_csv(std::string_view text, const std::string& name, const std::string& column) {
  size_t line = 1;
  const std::vector<std::string> head = take_csv_line(text, line);
  if (head.size() < 2) throw Error(name + ": line 1: a table of values by node needs at least two columns");
  const auto node = static_cast<size_t>(std::find(head.begin(), head.end(), "node") - head.begin()) % head.size();
  size_t from = node == 0 ? 1 : 0;
  if (!column.empty()) {
    const auto found = std::find(head.begin(), head.end(), column);
    if (found == head.end()) {
      throw Error(fmt::format("{}: no column '{}'; choose one of {}", name, column, fmt::join(head, ", ")));
    }
    from = static_cast<size_t>(found - head.begin());
  }
  GivenValues given{.title = head[from], .unit = unit_by_column(head[from]), .values = {}};
  while (!text.empty()) {
    const size_t at = line;
    std::vector<std::string> fields = take_csv_line(text, line);
    if (fields.size() == 1 && fields[0].empty()) continue;
    if (fields.size() != head.size()) {
      throw Error(fmt::format("{}: line {} has {} fields, but line 1 has {}", name, at, fields.size(), head.size()));
    }
    // Nodes without a value are not colored.
    if (!fields[from].empty()) given.values.push_back({fields[node], fields[from], fmt::format("line {}", at)});
  }
  return given;
}

NodeColors::Unit unit_of(const std::string& text, const std::string& name) {
  if (const auto unit = find_named<NodeColors::Unit>(text)) return *unit;
  throw Error(fmt::format("{}: unknown unit '{}'; choose one of flops, bytes, seconds, none", name, text));
}

// Finds a node by "n12", by "12" as in tables, or by its value "%7". Invalid if there is none.
NodeId node_of(const Graph& graph, const Numbering& numbering, std::string_view key) {
  const bool value = key.starts_with('%');
  if (value || key.starts_with('n')) key.remove_prefix(1);
  const auto number = parse_number<uint32_t>(key);
  if (!number) return {};
  if (value) return *number < numbering.values().size() ? graph.value(numbering.values()[*number]).producer : NodeId();
  return *number < numbering.nodes().size() ? numbering.nodes()[*number] : NodeId();
}

// Returns the position of the column name in "FILE.csv:COLUMN".
size_t column_start(std::string_view name) {
  const size_t at = name.rfind(".csv:");
  return at == std::string_view::npos ? name.size() : at + 4;
}

}  // namespace

NodeColors node_colors_of_text(const Graph& graph, const std::string& text, const std::string& name,
                               const std::string& column) {
  const size_t start = text.find_first_not_of(" \t\r\n");
  const bool is_json = start != std::string::npos && text[start] == '{';
  const GivenValues given = is_json ? read_json(text, name) : read_csv(text, name, column);
  NodeColors colors;
  colors.by = ColorBy::kGiven;
  colors.title = given.title.empty() ? name : given.title;
  colors.unit = unit_of(given.unit.value_or(""), name);
  size_t numbers = 0;
  for (const GivenValue& value : given.values) numbers += parse_number<double>(value.value) ? 1 : 0;
  if (numbers != 0 && numbers != given.values.size()) {
    const auto word = std::ranges::find_if(
        given.values, [](const std::string& value) { return !parse_number<double>(value); }, &GivenValue::value);
    throw Error(fmt::format("{}: {}: '{}' of {} is not a number, but others are; give only numbers or only strings",
                            name, word->where, word->value, word->key));
  }
  KindNumbers kinds(colors);
  const Numbering numbering = Numbering::of(graph);
  std::unordered_set<uint32_t> seen;
  for (const GivenValue& value : given.values) {
    const NodeId node = node_of(graph, numbering, value.key);
    if (!node.valid()) {
      throw Error(fmt::format("{}: {}: no node '{}'; give n0 to n{}, or a value such as %7 for its producer", name,
                              value.where, value.key, std::max<int64_t>(int64_t{graph.node_count()} - 1, 0)));
    }
    if (!seen.insert(node.index).second) {
      throw Error(fmt::format("{}: {}: node '{}' occurs twice", name, value.where, value.key));
    }
    if (numbers == 0) {
      kinds.set(node, value.value);
      continue;
    }
    const double amount = *parse_number<double>(value.value);
    if (!std::isfinite(amount) || amount < 0) {
      throw Error(
          fmt::format("{}: {}: {} of {} must be a non-negative number", name, value.where, value.value, value.key));
    }
    colors.amounts[node] = amount;
  }
  return colors;
}

bool is_color_file(std::string_view name) {
  const std::string_view file = name.substr(0, column_start(name));
  return file.ends_with(".json") || file.ends_with(".csv");
}

NodeColors node_colors_of_file(const Graph& graph, const std::string& name) {
  const size_t end = column_start(name);
  const std::string file = name.substr(0, end);
  return node_colors_of_text(graph, read_file(file), file, end < name.size() ? name.substr(end + 1) : std::string());
}

}  // namespace shadowgraph
