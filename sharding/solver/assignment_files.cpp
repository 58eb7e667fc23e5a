// Reads and writes assignment problems as JSON; reading is streaming.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "shadowgraph/error.h"
#include "shadowgraph/shard/solver.h"
#include "sharding/solver/assignment.h"
#include "sharding/solver/linear_program.h"
#include "support/json.h"

namespace shadowgraph {

// Streaming reader for the JSON subset of problem files: numbers are integers; unknown members are skipped in IOPDDL and
// refused in the native format. Files may be as large as hundreds of megabytes.
class JsonReader {
 public:
  static constexpr int kDeepest = 64;  // maximum nesting of skipped values

  explicit JsonReader(std::string_view text) : text_(text) {}

  [[noreturn]] void fail(const std::string& what) const {
    const size_t end = std::min(at_, text_.size());
    const auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<int64_t>(end), '\n');
    const size_t start = text_.substr(0, end).rfind('\n');
    const size_t column = end - (start == std::string_view::npos ? 0 : start + 1) + 1;
    throw ParseError(fmt::format("{}:{}: {}{}", line, column, path(), what), static_cast<int>(line),
                     static_cast<int>(column));
  }

  char peek() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r')) {
      ++at_;
    }
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  bool take(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }

  void expect(char c) {
    if (!take(c)) fail(fmt::format("expected '{}'", c));
  }

  bool take_null() {
    if (peek() != 'n') return false;
    if (text_.substr(at_, 4) != "null") fail("expected a value");
    at_ += 4;
    return true;
  }

  int64_t number() {
    peek();
    int64_t value = 0;
    const char* begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
    if (error == std::errc::result_out_of_range) fail("the number exceeds 64 bits");
    if (error != std::errc()) fail("expected an integer");
    at_ += static_cast<size_t>(end - begin);
    const char next = at_ < text_.size() ? text_[at_] : '\0';
    if (next == '.' || next == 'e' || next == 'E') fail("the number is not an integer");
    return value;
  }

  int64_t not_negative() {
    const int64_t value = number();
    if (value < 0) fail("the number is negative");
    return value;
  }

  std::string string() {
    if (peek() != '"') fail("expected a string");
    const size_t begin = at_++;
    while (at_ < text_.size() && text_[at_] != '"') at_ += text_[at_] == '\\' ? 2 : 1;
    if (at_ >= text_.size()) fail("unterminated string");
    ++at_;
    try {
      return parse_json(text_.substr(begin, at_ - begin), "").get<std::string>();
    } catch (const ParseError&) {
      fail("the string has invalid characters");
    }
  }

  template <typename Each>
  void array(const Each& each) {
    expect('[');
    if (take(']')) return;
    steps_.push_back({.key = {}, .index = 0});
    do {
      each();
      ++steps_.back().index;
    } while (take(','));
    steps_.pop_back();
    expect(']');
  }

  template <typename Each>
  void object(const Each& each) {
    expect('{');
    if (take('}')) return;
    do {
      const std::string key = string();
      expect(':');
      steps_.push_back({.key = key, .index = 0});
      each(key);
      steps_.pop_back();
    } while (take(','));
    expect('}');
  }

  struct Field {
    std::string_view key;
    std::function<void()> read;
  };
  enum class OtherFields { kRefused, kSkipped };

  void field(std::string_view key, std::span<const Field> fields, OtherFields others) {
    const auto found = std::ranges::find(fields, key, &Field::key);
    if (found != fields.end()) return found->read();
    if (others == OtherFields::kRefused) fail("unknown key");
    skip();
  }

  void object(std::initializer_list<Field> fields, OtherFields others = OtherFields::kRefused) {
    object([&](const std::string& key) { field(key, {fields.begin(), fields.size()}, others); });
  }

  void skip(int depth = 0) {
    if (depth > kDeepest) fail("too deeply nested");
    const char c = peek();
    if (c == '{') {
      object([&](const std::string&) { skip(depth + 1); });
    } else if (c == '[') {
      array([&] { skip(depth + 1); });
    } else if (c == '"') {
      string();
    } else {
      const size_t begin = at_;
      while (at_ < text_.size() && std::string_view(",]} \n\t\r").find(text_[at_]) == std::string_view::npos) ++at_;
      if (!nlohmann::json::accept(text_.substr(begin, at_ - begin))) fail("expected a value");
    }
  }

  void end() {
    if (peek() != '\0' || at_ < text_.size()) fail("unexpected text after the problem");
  }

 private:
  struct Step {
    std::string_view key;  // empty for an element of a list
    size_t index;
  };

  // Returns "nodes[2].costs[0]: ", for messages.
  std::string path() const {
    std::string path;
    for (const Step& step : steps_) {
      path += !step.key.empty() ? (path.empty() ? "" : ".") + std::string(step.key) : fmt::format("[{}]", step.index);
    }
    return path.empty() ? path : path + ": ";
  }

  std::string_view text_;
  size_t at_ = 0;
  std::vector<Step> steps_;  // path to the current value
};

namespace {

using enum JsonReader::OtherFields;

std::vector<int64_t> read_figures(JsonReader& reader, bool may_be_forbidden) {
  std::vector<int64_t> figures;
  reader.array([&] { figures.push_back(may_be_forbidden && reader.take_null() ? kForbidden : reader.not_negative()); });
  return figures;
}

int64_t read_limit(JsonReader& reader) { return reader.take_null() ? kNoLimit : reader.not_negative(); }

uint32_t read_index(JsonReader& reader) {
  const int64_t index = reader.not_negative();
  if (index > std::numeric_limits<int32_t>::max()) reader.fail("the number is too large");
  return static_cast<uint32_t>(index);
}

std::pair<uint32_t, uint32_t> read_pair(JsonReader& reader) {
  std::vector<uint32_t> both;
  reader.array([&] { both.push_back(read_index(reader)); });
  if (both.size() != 2) reader.fail("expected a pair");
  return {both[0], both[1]};
}

void read_iopddl_nodes(JsonReader& reader, std::vector<AssignmentNode>& nodes) {
  std::vector<std::vector<LiveInterval>> live;
  std::vector<std::vector<int64_t>> costs;
  std::vector<std::vector<int64_t>> usages;
  const auto interval = [&] {
    std::vector<int64_t> ends;
    reader.array([&] { ends.push_back(reader.number()); });
    if (ends.size() != 2 && !ends.empty()) reader.fail("an interval must be a pair [begin, end]");
    live.emplace_back();
    if (ends.size() == 2 && ends[0] < ends[1]) live.back().push_back({.begin = ends[0], .end = ends[1]});
  };
  reader.object({{"intervals", [&] { reader.array(interval); }},
                 {"costs", [&] { reader.array([&] { costs.push_back(read_figures(reader, false)); }); }},
                 {"usages", [&] { reader.array([&] { usages.push_back(read_figures(reader, false)); }); }}},
                kSkipped);
  if (live.size() != costs.size() || usages.size() != costs.size()) {
    reader.fail(fmt::format("got {} intervals, {} costs and {} usages; the numbers must be equal", live.size(),
                            costs.size(), usages.size()));
  }
  for (size_t i = 0; i < costs.size(); ++i) {
    nodes.push_back({.name = fmt::format("{}", i),
                     .costs = std::move(costs[i]),
                     .usages = std::move(usages[i]),
                     .live = std::move(live[i])});
  }
}

void read_iopddl_edges(JsonReader& reader, std::vector<std::pair<uint32_t, uint32_t>>& ends,
                       std::vector<std::vector<int64_t>>& costs) {
  reader.object({{"nodes", [&] { reader.array([&] { ends.push_back(read_pair(reader)); }); }},
                 {"costs", [&] { reader.array([&] { costs.push_back(read_figures(reader, false)); }); }}},
                kSkipped);
  if (ends.size() != costs.size()) reader.fail(fmt::format("got {} edges but {} costs", ends.size(), costs.size()));
}

void read_iopddl(JsonReader& reader, AssignmentProblem& problem) {
  std::vector<std::pair<uint32_t, uint32_t>> ends;
  std::vector<std::vector<int64_t>> costs;
  reader.object({{"name", [&] { problem.name = reader.string(); }},
                 {"nodes", [&] { read_iopddl_nodes(reader, problem.nodes); }},
                 {"edges", [&] { read_iopddl_edges(reader, ends, costs); }},
                 {"usage_limit", [&] { problem.usage_limit = read_limit(reader); }}},
                kSkipped);
  for (size_t e = 0; e < ends.size(); ++e) {
    const auto [a, b] = ends[e];
    if (a >= problem.nodes.size() || b >= problem.nodes.size())
      reader.fail(fmt::format("edge {} refers to a missing node", e));
    const auto rows = static_cast<uint32_t>(problem.nodes[a].costs.size());
    const auto columns = static_cast<uint32_t>(problem.nodes[b].costs.size());
    problem.matrices.push_back({.rows = rows, .columns = columns, .costs = std::move(costs[e]), .usages = {}});
    problem.edges.push_back({.a = a, .b = b, .matrix = static_cast<uint32_t>(e)});
  }
}

std::vector<LiveInterval> read_live(JsonReader& reader) {
  std::vector<LiveInterval> live;
  reader.array([&] {
    std::vector<int64_t> parts;
    reader.array([&] { parts.push_back(reader.number()); });
    if (parts.size() != 3) reader.fail("a live interval must be [begin, end, count]");
    live.push_back({.begin = parts[0], .end = parts[1], .count = parts[2]});
  });
  return live;
}

void read_node(JsonReader& reader, AssignmentNode& node) {
  reader.object({{"name", [&] { node.name = reader.string(); }},
                 {"strategies", [&] { reader.array([&] { node.strategies.push_back(reader.string()); }); }},
                 {"costs", [&] { node.costs = read_figures(reader, true); }},
                 {"usages", [&] { node.usages = read_figures(reader, false); }},
                 {"live", [&] { node.live = read_live(reader); }},
                 {"times", [&] { node.times = reader.number(); }},
                 {"pinned", [&] { node.pinned = static_cast<int32_t>(read_index(reader)); }}});
}

void read_matrix(JsonReader& reader, CostMatrix& matrix) {
  reader.object({{"rows", [&] { matrix.rows = read_index(reader); }},
                 {"columns", [&] { matrix.columns = read_index(reader); }},
                 {"costs", [&] { matrix.costs = read_figures(reader, true); }},
                 {"usages", [&] { matrix.usages = read_figures(reader, false); }}});
}

void read_edge(JsonReader& reader, AssignmentEdge& edge) {
  reader.object({{"nodes", [&] { std::tie(edge.a, edge.b) = read_pair(reader); }},
                 {"matrix", [&] { edge.matrix = read_index(reader); }},
                 {"times", [&] { edge.times = reader.number(); }},
                 {"live", [&] { edge.live = read_live(reader); }}});
}

template <typename Range, typename Each>
void write_list(std::ostream& out, const Range& range, const Each& each) {
  const char* separator = "";
  out << '[';
  for (const auto& item : range) {
    out << separator;
    each(item);
    separator = ",";
  }
  out << ']';
}

void write_figures(std::ostream& out, std::span<const int64_t> figures) {
  write_list(out, figures, [&](int64_t x) { x == kForbidden ? out << "null" : out << x; });
}

void write_usages(std::ostream& out, std::span<const int64_t> usages) {
  if (!usages.empty()) write_figures(out << ",\"usages\":", usages);
}

void write_live(std::ostream& out, std::span<const LiveInterval> live) {
  if (live.empty()) return;
  out << ",\"live\":";
  write_list(out, live, [&](const LiveInterval& x) { out << '[' << x.begin << ',' << x.end << ',' << x.count << ']'; });
}

}  // namespace

AssignmentProblem read_assignment(std::string_view text) {
  JsonReader reader(text);
  AssignmentProblem problem;
  bool is_ours = false, has_problem = false;
  const JsonReader::Field ours[] = {
      {"version",
       [&] {
         if (reader.number() != 1) reader.fail("unsupported version; expected 1");
       }},
      {"name", [&] { problem.name = reader.string(); }},
      {"nodes", [&] { reader.array([&] { read_node(reader, problem.nodes.emplace_back()); }); }},
      {"matrices", [&] { reader.array([&] { read_matrix(reader, problem.matrices.emplace_back()); }); }},
      {"edges", [&] { reader.array([&] { read_edge(reader, problem.edges.emplace_back()); }); }},
      {"usage_limit", [&] { problem.usage_limit = read_limit(reader); }}};
  reader.object([&](const std::string& key) {
    if (key == "problem") {
      if (has_problem) reader.fail("the file has two problems");
      has_problem = true;
      read_iopddl(reader, problem);
    } else if (key == "format") {
      is_ours = reader.string() == "shadowgraph-assignment";
      if (!is_ours) reader.fail("unknown format");
    } else if (is_ours) {
      reader.field(key, ours, kRefused);
    } else {
      reader.skip();
    }
  });
  reader.end();
  if (!is_ours && !has_problem) reader.fail("not an assignment problem: \"problem\" or \"format\" is missing");
  if (is_ours && has_problem) reader.fail("the file has two problems");
  try {
    problem.check();
  } catch (const ParseError&) {
    throw;
  } catch (const Error& error) {
    reader.fail(error.what());
  }
  return problem;
}

void write_iopddl(const AssignmentProblem& given, std::ostream& out) {
  const AssignmentProblem problem = plain(given);
  const int64_t forbidden = forbidding_cost(problem);
  const auto costs_of = [&](std::span<const int64_t> costs) {
    write_list(out, costs, [&](int64_t x) { out << (x == kForbidden ? forbidden : x); });
  };
  out << "{\"problem\":{\"name\":" << json_text(nlohmann::json(problem.name)) << ",\"nodes\":{\"intervals\":";
  write_list(out, problem.nodes, [&](const AssignmentNode& node) {
    node.live.empty() ? out << "[0,0]" : out << '[' << node.live[0].begin << ',' << node.live[0].end << ']';
  });
  out << ",\"costs\":";
  write_list(out, problem.nodes, [&](const AssignmentNode& node) { costs_of(node.costs); });
  out << ",\"usages\":";
  write_list(out, problem.nodes, [&](const AssignmentNode& node) { write_figures(out, node.usages); });
  out << "},\"edges\":{\"nodes\":";
  write_list(out, problem.edges, [&](const AssignmentEdge& edge) { out << '[' << edge.a << ',' << edge.b << ']'; });
  out << ",\"costs\":";
  write_list(out, problem.edges, [&](const AssignmentEdge& edge) { costs_of(problem.matrices[edge.matrix].costs); });
  out << "},\"usage_limit\":" << problem.usage_limit << "}}\n";
}

void write_assignment(const AssignmentProblem& problem, std::ostream& out) {
  out << "{\"format\":\"shadowgraph-assignment\",\"version\":1,\"name\":" << json_text(nlohmann::json(problem.name))
      << ",\n\"usage_limit\":";
  problem.usage_limit == kNoLimit ? out << "null" : out << problem.usage_limit;
  out << ",\n\"nodes\":";
  write_list(out, problem.nodes, [&](const AssignmentNode& node) {
    out << "\n{\"name\":" << json_text(nlohmann::json(node.name));
    if (!node.strategies.empty()) out << ",\"strategies\":" << json_text(nlohmann::json(node.strategies));
    out << ",\"costs\":";
    write_figures(out, node.costs);
    write_usages(out, node.usages);
    write_live(out, node.live);
    if (node.times != 1) out << ",\"times\":" << node.times;
    if (node.pinned >= 0) out << ",\"pinned\":" << node.pinned;
    out << '}';
  });
  out << ",\n\"matrices\":";
  write_list(out, problem.matrices, [&](const CostMatrix& matrix) {
    out << "\n{\"rows\":" << matrix.rows << ",\"columns\":" << matrix.columns << ",\"costs\":";
    write_figures(out, matrix.costs);
    write_usages(out, matrix.usages);
    out << '}';
  });
  out << ",\n\"edges\":";
  write_list(out, problem.edges, [&](const AssignmentEdge& edge) {
    out << "\n{\"nodes\":[" << edge.a << ',' << edge.b << "],\"matrix\":" << edge.matrix;
    if (edge.times != 1) out << ",\"times\":" << edge.times;
    write_live(out, edge.live);
    out << '}';
  });
  out << "}\n";
}

void write_assignment(const AssignmentProblem& problem, AssignmentFormat format, std::ostream& out) {
  switch (format) {
    case AssignmentFormat::kJson:
      return write_assignment(problem, out);
    case AssignmentFormat::kIopddl:
      return write_iopddl(problem, out);
    case AssignmentFormat::kLp:
      return write_lp(problem, out);
    case AssignmentFormat::kMps:
      return write_mps(problem, out);
  }
}

nlohmann::json to_json(const AssignmentSolution& solution) {
  nlohmann::json json{{"format", "shadowgraph-assignment-solution"},
                      {"version", 1},
                      {"feasible", solution.feasible},
                      {"optimal", solution.optimal}};
  json["stopped"] = solution.stopped;
  json["choice"] = solution.choice;
  json["cost"] = text_of(solution.cost);
  json["lower_bound"] = text_of(solution.lower_bound);
  json["peak"] = text_of(solution.peak);
  json["peak_at"] = solution.peak_at;
  if (!solution.why_infeasible.empty()) json["why_infeasible"] = solution.why_infeasible;
  return json;
}

}  // namespace shadowgraph
