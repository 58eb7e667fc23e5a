#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <map>

#include "shadowgraph/profile/trace_comparison.h"
#include "shadowgraph/units.h"

namespace shadowgraph {
namespace {

using nlohmann::json;

std::string ratio_of(const ComparedTime& row) {
  return row.measured_seconds > 0 && row.seconds > 0 ? fmt::format("{:.2f}", row.seconds / row.measured_seconds) : "-";
}

std::string signed_seconds(double seconds) {
  return seconds == 0 ? "0" : (seconds < 0 ? "-" : "+") + human_seconds(std::abs(seconds));
}

// 3, or 0.33 of a call that not every step makes.
std::string count_of(double calls) {
  return std::abs(calls - std::round(calls)) < 1e-6 ? fmt::format("{:.0f}", calls) : fmt::format("{:.2f}", calls);
}

std::string full_name_of(const ComparedTime& row) { return row.sizes.empty() ? row.name : row.name + " " + row.sizes; }

std::string table_of(const char* title, const std::vector<ComparedTime>& rows, size_t limit) {
  if (rows.empty()) return {};
  std::string text = fmt::format("\n{:<32} {:>13} {:>11} {:>11} {:>11} {:>6}\n", title, "calls", "predicted",
                                 "measured", "difference", "ratio");
  size_t shown = 0;
  for (const ComparedTime& row : rows) {
    if (limit != 0 && shown++ == limit) {
      text += fmt::format("  {} more\n", rows.size() - limit);
      break;
    }
    const std::string calls = row.calls == row.measured_calls
                                  ? count_of(row.calls)
                                  : count_of(row.calls) + ", " + count_of(row.measured_calls);
    text +=
        fmt::format("{:<32} {:>13} {:>11} {:>11} {:>11} {:>6}\n", full_name_of(row), calls, human_seconds(row.seconds),
                    human_seconds(row.measured_seconds), signed_seconds(row.difference()), ratio_of(row));
  }
  return text;
}

std::vector<ComparedTime> in_one_only(const TraceComparison& comparison, bool predicted) {
  std::vector<ComparedTime> rows;
  for (const auto* all : {&comparison.sizes, &comparison.collectives}) {
    std::ranges::copy_if(*all, std::back_inserter(rows),
                         [&](const ComparedTime& row) { return predicted ? row.measured_calls == 0 : row.calls == 0; });
  }
  return rows;
}

std::string list_of(const char* title, const std::vector<ComparedTime>& rows, bool predicted, size_t limit) {
  if (rows.empty()) return {};
  std::string text = fmt::format("\n{}\n", title);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (limit != 0 && i == limit) {
      text += fmt::format("  {} more\n", rows.size() - limit);
      break;
    }
    const ComparedTime& row = rows[i];
    text += fmt::format("  {} x{}, {}\n", full_name_of(row), count_of(predicted ? row.calls : row.measured_calls),
                        human_seconds(predicted ? row.seconds : row.measured_seconds));
  }
  return text;
}

// How many times as often as predicted most calls were measured, by their time: as many steps a trace may have that marks
// none.
double repetitions(const TraceComparison& comparison) {
  std::map<double, double> seconds;
  double matched = 0;
  for (const ComparedTime& row : comparison.sizes) {
    if (row.calls <= 0 || row.measured_calls <= 0) continue;
    seconds[row.measured_calls / row.calls] += row.measured_seconds;
    matched += row.measured_seconds;
  }
  for (const auto& [times, of_them] : seconds) {
    if (of_them > matched / 2) return times;
  }
  return 1;
}

json json_of(const ComparedTime& row) {
  json object{{"name", row.name},
              {"predicted_seconds", row.seconds},
              {"measured_seconds", row.measured_seconds},
              {"difference_seconds", row.difference()}};
  if (!row.sizes.empty()) object["sizes"] = row.sizes;
  if (!row.kind.empty()) object["class"] = row.kind;
  if (row.calls + row.measured_calls > 0) {
    object["predicted_calls"] = row.calls;
    object["measured_calls"] = row.measured_calls;
  }
  if (row.seconds > 0 && row.measured_seconds > 0) object["ratio"] = row.seconds / row.measured_seconds;
  return object;
}

json json_of(const std::vector<ComparedTime>& rows) {
  json list = json::array();
  for (const ComparedTime& row : rows) list.push_back(json_of(row));
  return list;
}

}  // namespace

std::string to_text(const TraceComparison& comparison, size_t limit) {
  std::string text = fmt::format("predicted for {}\nmeasured in {}{}\n\n{:<32} {:>11} {:>11} {:>11} {:>6}\n",
                                 comparison.prediction, comparison.measurement,
                                 comparison.steps > 1 ? fmt::format(", mean of {} steps", comparison.steps) : "", "",
                                 "predicted", "measured", "difference", "ratio");
  for (const ComparedTime* row : {&comparison.step, &comparison.busy, &comparison.idle}) {
    text += fmt::format("{:<32} {:>11} {:>11} {:>11} {:>6}\n", row->name, human_seconds(row->seconds),
                        human_seconds(row->measured_seconds), signed_seconds(row->difference()), ratio_of(*row));
  }
  if (const double times = repetitions(comparison); comparison.steps == 1 && times >= 2) {
    text += fmt::format(
        "\nmost calls are in the trace {} times as often: does it have several steps? "
        "torch.profiler.schedule marks them\n",
        count_of(times));
  }
  if (const ComparedTime* most = comparison.most_off()) {
    text += fmt::format("\nmost off: {}, {} predicted, {} measured\n", full_name_of(*most),
                        human_seconds(most->seconds), human_seconds(most->measured_seconds));
    const auto size = std::ranges::find(comparison.sizes, most->name, &ComparedTime::name);
    if (size != comparison.sizes.end() && !size->sizes.empty()) {
      text += fmt::format("  above all {}: {} predicted, {} measured\n", size->sizes, human_seconds(size->seconds),
                          human_seconds(size->measured_seconds));
    }
  } else {
    text += "\nnothing is off\n";
  }
  text += table_of("operator", comparison.operators, limit) + table_of("class", comparison.classes, limit) +
          table_of("collective", comparison.collectives, limit);
  text += list_of("predicted, and not in the trace", in_one_only(comparison, true), true, limit);
  text += list_of("in the trace, and not predicted", in_one_only(comparison, false), false, limit);
  if (!comparison.left_out.empty()) {
    text += "\nin no row\n";
    for (size_t i = 0; i < comparison.left_out.size() && (limit == 0 || i < limit); ++i) {
      const TraceLeftOut& left = comparison.left_out[i];
      text += fmt::format("  {} x{}, {}: {}\n", left.op, left.calls, human_seconds(left.seconds), left.reason);
    }
  }
  return text;
}

json to_json(const TraceComparison& comparison) {
  json object{{"prediction", comparison.prediction},
              {"measurement", comparison.measurement},
              {"steps", comparison.steps},
              {"step", json_of(comparison.step)},
              {"kernels", json_of(comparison.busy)},
              {"idle", json_of(comparison.idle)},
              {"operators", json_of(comparison.operators)},
              {"classes", json_of(comparison.classes)},
              {"collectives", json_of(comparison.collectives)},
              {"sizes", json_of(comparison.sizes)},
              {"only_predicted", json_of(in_one_only(comparison, true))},
              {"only_measured", json_of(in_one_only(comparison, false))},
              {"matched_seconds", comparison.matched_seconds},
              {"left_out", json::array()}};
  for (const TraceLeftOut& left : comparison.left_out) {
    object["left_out"].push_back(
        {{"op", left.op}, {"reason", left.reason}, {"calls", left.calls}, {"seconds", left.seconds}});
  }
  if (const ComparedTime* most = comparison.most_off()) object["most_off"] = json_of(*most);
  return object;
}

}  // namespace shadowgraph
