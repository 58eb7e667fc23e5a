#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "ir/operators/operator_name.h"
#include "profiler/device_trace/trace_calls.h"
#include "profiler/time/kernel_work.h"
#include "shadowgraph/error.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/step_time.h"
#include "shadowgraph/profile/traces.h"
#include "shadowgraph/units.h"

namespace shadowgraph {
namespace {

// Calls are keyed by operator and sizes; collectives by kind, processes and bytes.
using CallKey = std::pair<std::string, std::string>;  // name, sizes
struct CallSum {
  KernelClass kind = KernelClass::kOther;
  double calls = 0, seconds = 0;
};

// One side of a comparison, predicted or measured.
struct StepSums {
  std::string title;
  int64_t steps = 1;
  double seconds = 0, busy = 0;
  std::map<CallKey, CallSum> calls, collectives;
  std::vector<SkippedCalls> left_out;
};

void append_sizes(std::string& text, std::span<const int64_t> sizes) {
  text += text.empty() ? "[" : " [";
  for (size_t i = 0; i < sizes.size(); ++i) text += fmt::format("{}{}", i == 0 ? "" : ",", sizes[i]);
  text += ']';
}

// Writes the shapes of tensors with at least one dimension: a number may be a tensor on one side and not on the other.
// The dtype is that of the first tensor outside a list, since traces have no dtypes of lists.
class SizesText {
 public:
  void tensor(std::span<const int64_t> sizes, c10::ScalarType dtype) {
    if (sizes.empty()) return;
    append_sizes(text_, sizes);
    if (dtype_.empty()) dtype_ = dtype_name(dtype);
  }
  void in_list(std::span<const int64_t> sizes) {
    if (!sizes.empty()) append_sizes(text_, sizes);
  }
  std::string take() { return dtype_.empty() ? text_ : text_ + " " + dtype_; }

 private:
  std::string text_, dtype_;
};

std::string call_sizes(const Graph& graph, NodeId node) {
  SizesText text;
  const auto value_of = [&](const Argument& argument, bool list) {
    if (argument.kind == ArgumentKind::kConstant && !list) {
      if (const auto constant = graph.constant_meta(argument.constant)) text.tensor(constant->sizes, constant->dtype);
    }
    if (argument.kind != ArgumentKind::kValue) return;
    const ValueId id = argument.ref.value;
    const Value& value = graph.value(id);
    if (value.kind != ValueKind::kTensor) return;
    list ? text.in_list(graph.sizes(id)) : text.tensor(graph.sizes(id), value.dtype);
  };
  for (const Argument& argument : graph.arguments(node)) {
    value_of(argument, false);
    if (argument.kind != ArgumentKind::kList) continue;
    for (const Argument& element : graph.list(argument)) value_of(element, true);
  }
  return text.take();
}

std::string call_sizes(const TraceOp& op) {
  SizesText text;
  for (const TraceInput& input : op.inputs) {
    for (const auto& sizes : input.sizes) input.is_tensor() ? text.tensor(sizes, *input.dtype) : text.in_list(sizes);
  }
  return text.take();
}

CallKey collective_key(CollectiveKind kind, int64_t processes, int64_t payload) {
  return {fmt::format("{} of {}", to_string(kind), processes), human_bytes(payload)};
}

StepSums sums_of(const Profile& profile) {
  const StepTime* time = profile.time();
  if (time == nullptr) {
    throw Error("cannot compare a profile without times; give a device (--spec, ProfileOptions::spec)");
  }
  StepSums sums{.title = time->spec()};
  const Graph& graph = profile.graph();
  const OverlappedStep* overlap = profile.overlap();
  for (const NodeId node : graph.nodes()) {
    const NodeTime& at = time->of(node);
    if (at.kind == KernelClass::kFree) continue;
    CallSum& sum = sums.calls[{std::string(without_overload(graph.target(node).name())), call_sizes(graph, node)}];
    sum.kind = at.kind;
    ++sum.calls;
    // Concurrent collectives slow the kernel, as in a trace.
    const double seconds = overlap != nullptr ? overlap->end(node) - overlap->start(node) : at.seconds;
    sum.seconds += seconds;
    sums.busy += seconds;
  }
  sums.seconds = overlap != nullptr ? overlap->seconds() : time->seconds();
  if (const Communication* communication = profile.communication()) {
    for (const Collective& sent : communication->collectives()) {
      const int64_t processes = communication->groups()[sent.group].size;
      CallSum& sum = sums.collectives[collective_key(sent.kind, processes, sent.payload)];
      ++sum.calls;
      sum.seconds += sent.cost.seconds();
    }
  }
  return sums;
}

StepSums sums_of(const std::string& path) {
  const TracedCalls calls = TracedCalls::read_file(path);
  const std::vector<TracedWork> works = traced_work(calls);
  const auto steps = static_cast<double>(calls.steps);
  StepSums sums{.title = path, .steps = calls.steps, .seconds = calls.span / steps, .busy = calls.busy / steps};
  if (!calls.events.device_title.empty()) sums.title += ", " + calls.events.device_title;
  for (const TracedCall& call : calls.calls) {
    if (works[call.distinct].free) continue;
    const TraceOp& op = calls.events.ops[calls.distinct[call.distinct].op];
    CallSum& sum = sums.calls[{std::string(without_overload(op.name)), call_sizes(op)}];
    sum.kind = works[call.distinct].work.kind;
    sum.calls += 1 / steps;
    sum.seconds += call.seconds / steps;
  }
  for (const TracedCollective& sent : calls.collectives) {
    CallSum& sum = sums.collectives[collective_key(sent.what.kind, sent.what.processes, sent.what.payload)];
    sum.calls += 1 / steps;
    sum.seconds += sent.seconds / steps;
  }
  for (const auto& [name, other] : calls.other) {
    sums.left_out.push_back(
        {name, calls.on_device ? "kernel without a PyTorch operator" : "unknown operator", other.calls, other.seconds});
  }
  std::ranges::stable_sort(sums.left_out, std::greater<>(), &SkippedCalls::seconds);
  return sums;
}

// Sums rows by the name that `name_of` returns; sorted by decreasing difference.
template <class NameOf>
std::vector<ComparedTime> grouped(const std::vector<ComparedTime>& rows, const NameOf& name_of) {
  std::map<std::string, ComparedTime> by_name;
  for (const ComparedTime& row : rows) {
    const ComparedTime named = name_of(row);
    ComparedTime& sum = by_name.try_emplace(named.name, named).first->second;
    sum.calls += row.calls;
    sum.measured_calls += row.measured_calls;
    sum.seconds += row.seconds;
    sum.measured_seconds += row.measured_seconds;
  }
  std::vector<ComparedTime> result;
  for (auto& [name, row] : by_name) result.push_back(std::move(row));
  return result;
}

void sort_by_difference(std::vector<ComparedTime>& rows) {
  std::ranges::stable_sort(rows, std::greater<>(), [](const ComparedTime& row) { return std::abs(row.difference()); });
}

std::vector<ComparedTime> joined(const std::map<CallKey, CallSum>& predicted,
                                 const std::map<CallKey, CallSum>& measured) {
  std::map<CallKey, ComparedTime> rows;
  for (const auto& [key, sum] : measured) {
    ComparedTime& row = rows[key];
    row.kind = to_string(sum.kind);
    row.measured_calls = sum.calls;
    row.measured_seconds = sum.seconds;
  }
  for (const auto& [key, sum] : predicted) {  // last, since a graph gives a call's class more reliably
    ComparedTime& row = rows[key];
    row.kind = to_string(sum.kind);
    row.calls = sum.calls;
    row.seconds = sum.seconds;
  }
  std::vector<ComparedTime> result;
  for (auto& [key, row] : rows) {
    std::tie(row.name, row.sizes) = key;
    result.push_back(std::move(row));
  }
  return result;
}

TraceComparison compared(const StepSums& predicted, StepSums measured) {
  TraceComparison result{.prediction = predicted.title, .measurement = measured.title, .steps = measured.steps};
  result.step = {.name = "step", .seconds = predicted.seconds, .measured_seconds = measured.seconds};
  result.busy = {.name = "kernels", .seconds = predicted.busy, .measured_seconds = measured.busy};
  result.idle = {.name = "idle",
                 .seconds = std::max(0.0, predicted.seconds - predicted.busy),
                 .measured_seconds = std::max(0.0, measured.seconds - measured.busy)};
  result.sizes = joined(predicted.calls, measured.calls);
  for (const ComparedTime& row : result.sizes) {
    if (row.calls > 0) result.matched_seconds += row.measured_seconds;
  }
  result.operators =
      grouped(result.sizes, [](const ComparedTime& row) { return ComparedTime{.name = row.name, .kind = row.kind}; });
  result.classes = grouped(result.sizes, [](const ComparedTime& row) { return ComparedTime{.name = row.kind}; });
  result.collectives = joined(predicted.collectives, measured.collectives);
  for (ComparedTime& row : result.collectives) row.kind.clear();
  for (auto* rows : {&result.sizes, &result.operators, &result.classes, &result.collectives}) sort_by_difference(*rows);
  result.left_out = std::move(measured.left_out);
  return result;
}

using nlohmann::json;

std::string ratio_of(const ComparedTime& row) {
  return row.measured_seconds > 0 && row.seconds > 0 ? fmt::format("{:.2f}", row.seconds / row.measured_seconds) : "-";
}

std::string signed_seconds(double seconds) {
  return seconds == 0 ? "0" : (seconds < 0 ? "-" : "+") + human_seconds(std::abs(seconds));
}

// Formats 3, or 0.33 for a call that not every step makes.
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

// Returns by which factor most calls (by time) were measured more often than predicted: the number of steps of a trace
// without step annotations.
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

const ComparedTime* TraceComparison::most_off() const {
  const ComparedTime* most = &idle;
  for (const auto* rows : {&operators, &collectives}) {
    if (!rows->empty() && std::abs(rows->front().difference()) > std::abs(most->difference())) most = &rows->front();
  }
  return most->difference() != 0 ? most : nullptr;
}

TraceComparison compare_with_trace(const Profile& prediction, const std::string& trace) {
  return compared(sums_of(prediction), sums_of(trace));
}

TraceComparison compare_traces(const std::string& prediction, const std::string& trace) {
  return compared(sums_of(prediction), sums_of(trace));
}

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
        "\nmost calls occur {} times as often in the trace. If it has several steps, mark them with "
        "torch.profiler.schedule\n",
        count_of(times));
  }
  if (const ComparedTime* most = comparison.most_off()) {
    text += fmt::format("\nlargest difference: {}, {} predicted, {} measured\n", full_name_of(*most),
                        human_seconds(most->seconds), human_seconds(most->measured_seconds));
    const auto size = std::ranges::find(comparison.sizes, most->name, &ComparedTime::name);
    if (size != comparison.sizes.end() && !size->sizes.empty()) {
      text += fmt::format("  mostly {}: {} predicted, {} measured\n", size->sizes, human_seconds(size->seconds),
                          human_seconds(size->measured_seconds));
    }
  } else {
    text += "\nno differences\n";
  }
  text += table_of("operator", comparison.operators, limit) + table_of("class", comparison.classes, limit) +
          table_of("collective", comparison.collectives, limit);
  text += list_of("predicted only", in_one_only(comparison, true), true, limit);
  text += list_of("in the trace only", in_one_only(comparison, false), false, limit);
  if (!comparison.left_out.empty()) {
    text += "\nnot compared\n";
    for (size_t i = 0; i < comparison.left_out.size() && (limit == 0 || i < limit); ++i) {
      const SkippedCalls& left = comparison.left_out[i];
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
  for (const SkippedCalls& left : comparison.left_out) {
    object["left_out"].push_back(
        {{"op", left.op}, {"reason", left.reason}, {"calls", left.calls}, {"seconds", left.seconds}});
  }
  if (const ComparedTime* most = comparison.most_off()) object["most_off"] = json_of(*most);
  return object;
}

}  // namespace shadowgraph
