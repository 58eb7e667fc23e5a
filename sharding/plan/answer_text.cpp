// What shard() found, for people and as JSON.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>

#include "shadowgraph/sharding/shard.h"
#include "shadowgraph/units.h"
#include "sharding/plan/node_classes.h"
#include "sharding/plan/picoseconds.h"
#include "sharding/plan/verdict.h"

namespace shadowgraph {

namespace {

std::string table(const std::vector<std::vector<std::string>>& rows, int limit, const char* rest) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (size_t r = 0; r < rows.size(); ++r) {
    if (limit > 0 && r > static_cast<size_t>(limit)) {
      return text + fmt::format("  ... {} more {} (--rows 0)\n", rows.size() - r, rest);
    }
    std::string line;
    for (size_t i = 0; i < rows[r].size(); ++i) {
      const bool last = i + 1 == rows[r].size();
      line += fmt::format("  {:<{}}", rows[r][i], last ? 0 : widths[i]);
    }
    text += line + "\n";
  }
  return text;
}

std::string placeholder_table(const ShardingAnswer& answer, int rows) {
  // Names that differ by numbers alone and lie alike share one line.
  struct Alike {
    int64_t count = 0;
    int64_t bytes = 0;
    int64_t local = 0;
  };
  std::vector<std::pair<std::string, std::string>> order;
  std::map<std::pair<std::string, std::string>, Alike> alike;
  int64_t bytes = 0;
  int64_t local = 0;
  for (const PlannedTensor& tensor : answer.placeholders) {
    const auto key = std::pair(without_numbers(tensor.name), to_string(tensor.layout));
    const auto [at, is_new] = alike.try_emplace(key);
    if (is_new) order.push_back(key);
    ++at->second.count;
    at->second.bytes += tensor.bytes;
    at->second.local += tensor.local_bytes;
    bytes += tensor.bytes;
    local += tensor.local_bytes;
  }
  std::vector<std::vector<std::string>> lines{{"LAYOUT", "A DEVICE", "WHOLE", "COUNT", "PARAMETER, BUFFER OR INPUT"}};
  for (const auto& key : order) {
    const Alike& a = alike.at(key);
    lines.push_back({key.second, human_bytes(a.local), human_bytes(a.bytes), fmt::format("{}", a.count), key.first});
  }
  return table(lines, rows, "rows") +
         fmt::format("  {} of {} on each device\n", human_bytes(local), human_bytes(bytes));
}

std::string text_of_step(const ShardingAnswer& answer) {
  const int64_t devices = answer.plan.mesh.size();
  std::string text = fmt::format(
      "{}: {} devices\n{} a step: {} computing, {} communicating; one device alone would take {}, {:.2f} times as "
      "long\n",
      answer.title, devices, human_seconds(answer.seconds()), human_seconds(answer.compute),
      human_seconds(answer.communication), human_seconds(answer.alone),
      answer.seconds() > 0 ? answer.alone / answer.seconds() : 0.0);
  if (answer.communication > 0) {
    text += fmt::format("{} where a second stream communicates meanwhile{}; {} of communication are not hidden\n",
                        human_seconds(answer.overlapped),
                        answer.verdict.overlap_pays ? "" : ", which is longer than one after the other",
                        human_seconds(answer.exposed));
  }
  text += text_of_verdict(answer);
  if (answer.given) text += "the plan was given, and nothing was searched\n";
  if (answer.by_hand)
    text += fmt::format("a plan by hand, {}; what it leaves open is chosen\n", to_string(*answer.by_hand));
  if (answer.bound > 0) {
    const double gap = answer.seconds() > 0 ? 1 - answer.bound / answer.seconds() : 0;
    text += fmt::format("no {}plan {}is below {}: {}\n", answer.by_hand ? "such " : "",
                        answer.folded ? "that treats layers alike " : "", human_seconds(answer.bound),
                        !answer.solution.optimal ? fmt::format("this one is within {:.3f} % of the best", gap * 100)
                        : answer.coverage.without_a_rule.empty()
                            ? "this one is optimal"
                            : "this one is the best while nodes without a rule are whole");
  }
  if (answer.folded_seconds) {
    text +=
        fmt::format("{} where layers are treated alike: that loses {:.3f} %\n", human_seconds(*answer.folded_seconds),
                    answer.seconds() > 0 ? (*answer.folded_seconds / answer.seconds() - 1) * 100 : 0.0);
  }
  return text;
}

}  // namespace

std::string to_text(const ShardingAnswer& answer, int rows) {
  std::string text = text_of_step(answer);
  text += fmt::format("{} nodes, {} variables, {} edges in {}; solved in {}\n", exact_count(answer.nodes),
                      exact_count(answer.variables), exact_count(answer.edges), human_seconds(answer.problem_seconds),
                      human_seconds(answer.solver_seconds));
  text += fmt::format("{} at most on a device{}; the solver took it for {}\n", human_bytes(answer.peak),
                      answer.memory == kNoLimit ? "" : fmt::format(", of {}", human_bytes(answer.memory)),
                      human_bytes(answer.assumed_peak));
  if (answer.coverage.without_a_rule.empty()) {
    text += "every node by a rule\n";
  } else {
    int64_t without = 0;
    for (const auto& [name, count] : answer.coverage.without_a_rule) without += count;
    text += fmt::format("warning: {} of {} nodes have no rule and are whole everywhere, which takes {} on each device:",
                        exact_count(without), exact_count(answer.coverage.nodes),
                        human_seconds(answer.coverage.seconds_without_a_rule));
    for (const auto& [name, count] : answer.coverage.without_a_rule) text += fmt::format(" {} ({})", name, count);
    text += "\n";
  }
  text += "\n";
  text += placeholder_table(answer, rows);
  std::vector<std::vector<std::string>> lines{{"PHASE", "STEP", "AXIS", "CALLS", "BYTES AFTER", "TIME"}};
  for (const PlannedTraffic& sum : answer.traffic) {
    lines.push_back({sum.phase, sum.kind, sum.axis, fmt::format("{}", sum.calls), human_bytes(sum.bytes),
                     sum.seconds > 0 ? human_seconds(sum.seconds) : "with others"});
  }
  text += answer.traffic.empty() ? "\nnothing is redistributed\n" : fmt::format("\n{}", table(lines, rows, "rows"));
  if (!answer.compared.empty()) {
    std::vector<std::vector<std::string>> plans{{"PLAN", "A STEP", "AGAINST THIS", "PEAK A DEVICE", ""}};
    plans.push_back({"this one", human_seconds(answer.seconds()), "1.00",
                     human_bytes(static_cast<int64_t>(answer.solution.peak)), ""});
    for (const ComparedPlan& plan : answer.compared) {
      plans.push_back({plan.name, plan.seconds ? human_seconds(*plan.seconds) : "-",
                       plan.seconds ? fmt::format("{:.2f}", *plan.seconds / answer.seconds()) : "-",
                       plan.peak ? human_bytes(*plan.peak) : "-",
                       plan.why_not.empty() ? ""
                       : plan.seconds       ? "above the memory"
                                            : plan.why_not});
    }
    text += fmt::format("\n{}", table(plans, 0, "rows"));
  }
  for (const Explanation& explanation : answer.explanations) {
    text += fmt::format("\n{}, {} node{}\n", explanation.name, explanation.nodes, explanation.nodes == 1 ? "" : "s");
    std::vector<std::vector<std::string>> strategies{{"", "A STEP", "MORE", "ITSELF", "OPERANDS -> RESULTS"}};
    for (const Alternative& alternative : explanation.alternatives) {
      strategies.push_back(
          {alternative.chosen ? "*" : "", alternative.seconds ? human_seconds(*alternative.seconds) : "impossible",
           alternative.seconds ? human_seconds(*alternative.seconds - seconds_of(answer.solution.cost)) : "-",
           human_seconds(alternative.own), alternative.strategy});
    }
    text += table(strategies, rows, "strategies");
  }
  return text;
}

nlohmann::json to_json(const ShardingAnswer& answer) {
  nlohmann::json json{{"format", "shadowgraph-sharding"},
                      {"version", 1},
                      {"title", answer.title},
                      {"mesh", answer.plan.mesh.to_string()},
                      {"devices", answer.plan.mesh.size()},
                      {"seconds", answer.seconds()},
                      {"compute_seconds", answer.compute},
                      {"communication_seconds", answer.communication},
                      {"one_device_seconds", answer.alone},
                      {"overlapped_seconds", answer.overlapped},
                      {"exposed_communication_seconds", answer.exposed},
                      {"lower_bound_seconds", answer.bound},
                      {"bound_is_of", answer.folded ? "plans that treat layers alike" : "all plans"},
                      {"optimal", answer.solution.optimal},
                      {"peak", answer.peak},
                      {"assumed_peak", answer.assumed_peak},
                      {"nodes", answer.nodes},
                      {"variables", answer.variables},
                      {"edges", answer.edges},
                      {"problem_seconds", answer.problem_seconds},
                      {"solver_seconds", answer.solver_seconds},
                      {"without_a_rule", answer.coverage.without_a_rule},
                      {"verdict", json_of_verdict(answer.verdict)},
                      {"given", answer.given}};
  if (answer.by_hand) json["by_hand"] = to_string(*answer.by_hand);
  if (answer.memory != kNoLimit) json["memory_limit"] = answer.memory;
  if (answer.folded_seconds) json["folded_seconds"] = *answer.folded_seconds;
  json["tensors"] = nlohmann::json::array();
  for (const PlannedTensor& tensor : answer.placeholders) {
    json["tensors"].push_back({{"name", tensor.name},
                               {"layout", to_string(tensor.layout)},
                               {"bytes", tensor.bytes},
                               {"local_bytes", tensor.local_bytes}});
  }
  json["redistributions"] = nlohmann::json::array();
  for (const PlannedTraffic& sum : answer.traffic) {
    json["redistributions"].push_back({{"phase", sum.phase},
                                       {"kind", sum.kind},
                                       {"axis", sum.axis},
                                       {"calls", sum.calls},
                                       {"bytes", sum.bytes},
                                       {"seconds", sum.seconds}});
  }
  json["plans_by_hand"] = nlohmann::json::array();
  for (const ComparedPlan& plan : answer.compared) {
    nlohmann::json entry{{"name", plan.name}};
    if (plan.seconds) entry["seconds"] = *plan.seconds;
    if (plan.peak) entry["peak"] = *plan.peak;
    if (!plan.why_not.empty()) entry["why_not"] = plan.why_not;
    json["plans_by_hand"].push_back(std::move(entry));
  }
  json["explanations"] = nlohmann::json::array();
  for (const Explanation& explanation : answer.explanations) {
    nlohmann::json alternatives = nlohmann::json::array();
    for (const Alternative& alternative : explanation.alternatives) {
      nlohmann::json entry{
          {"strategy", alternative.strategy}, {"own_seconds", alternative.own}, {"chosen", alternative.chosen}};
      if (alternative.seconds) entry["seconds"] = *alternative.seconds;
      alternatives.push_back(std::move(entry));
    }
    json["explanations"].push_back(
        {{"name", explanation.name}, {"nodes", explanation.nodes}, {"alternatives", std::move(alternatives)}});
  }
  return json;
}

}  // namespace shadowgraph
