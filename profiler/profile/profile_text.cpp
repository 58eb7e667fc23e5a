#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "ir/text/words.h"
#include "profiler/profile/metrics.h"
#include "profiler/program_costs.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/memory.h"
#include "shadowgraph/profile/profile.h"
#include "shadowgraph/profile/step_time.h"
#include "shadowgraph/units.h"

namespace shadowgraph {

constexpr size_t kTextWidth = 100;  // columns

// Breaks lines longer than `width` at a space; continuation lines are indented by 4 more columns.
std::string wrapped(const std::string& text, size_t width = kTextWidth) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = std::string_view(text).substr(at, end - at);
    const size_t indent = std::min(line.find_first_not_of(' '), line.size()) + 4;
    size_t before = 0;  // indentation of a continuation line
    while (before + line.size() > width) {
      const size_t words = std::min(line.find_first_not_of(' '), line.size());
      size_t space = line.rfind(' ', width - before);
      if (space == line.npos || space <= words) space = line.find(' ', width - before);  // one long word
      if (space == line.npos) break;
      const std::string_view head = line.substr(0, std::min(line.find_last_not_of(' ', space) + 1, space));
      result.append(before, ' ').append(head).append("\n");
      line.remove_prefix(std::min(line.find_first_not_of(' ', space), line.size()));
      before = indent;
    }
    result.append(before, ' ').append(line);
    if (end < text.size()) result += '\n';
    at = end + 1;
  }
  return result;
}

namespace {

// Formats bytes with three significant digits: "1.23 GiB", "12.3 MiB", "512 B".
std::string short_bytes(int64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto number = static_cast<double>(bytes);
  size_t unit = 0;
  for (; number >= 999.5 && unit + 1 < std::size(kUnits); ++unit) number /= 1024;
  return fmt::format("{:.{}f} {}", number, unit == 0 || number >= 99.95 ? 0 : number >= 9.995 ? 1 : 2, kUnits[unit]);
}

struct TableColumn {
  const char* heading;
  bool needed;  // shown even if the table is too wide
  std::string (*figure)(const SummaryRow& row);
};

constexpr TableColumn kTableColumns[] = {
    {"Accumulate", false, [](const SummaryRow& row) { return short_bytes(row.accumulate); }},
    {"Saved", true, [](const SummaryRow& row) { return short_bytes(row.figures.incremental); }},
    {"Output", true, [](const SummaryRow& row) { return short_bytes(row.figures.output); }},
    {"Temp", true, [](const SummaryRow& row) { return short_bytes(row.figures.temporary); }},
    {"Param", true, [](const SummaryRow& row) { return short_bytes(row.figures.parameters); }},
    {"Backward", true, [](const SummaryRow& row) { return short_bytes(row.figures.backward); }},
    {"Fwd FLOPs", true, [](const SummaryRow& row) { return human_count(row.figures.forward_flops.matmul); }},
    {"Bwd FLOPs", true, [](const SummaryRow& row) { return human_count(row.figures.backward_flops.matmul); }},
    {"Fwd elem.", false, [](const SummaryRow& row) { return human_count(row.figures.forward_flops.elementwise); }},
    {"Bwd elem.", false, [](const SummaryRow& row) { return human_count(row.figures.backward_flops.elementwise); }},
};

struct DrawnColumn {
  std::vector<std::string> cells;  // the heading first
  size_t width = 0;
  bool needed = true;
};

DrawnColumn drawn(std::string heading, bool needed, const SummaryTable& table, auto&& cell) {
  DrawnColumn column{.cells = {std::move(heading)}, .needed = needed};
  for (const SummaryRow& row : table.rows) column.cells.push_back(cell(row));
  for (const std::string& text : column.cells) column.width = std::max(column.width, text.size());
  return column;
}

std::string right_aligned(const std::vector<DrawnColumn>& columns, size_t line) {
  std::string text;
  for (const DrawnColumn& column : columns) text += fmt::format("  {:>{}}", column.cells[line], column.width);
  return text;
}

// A path with its numbers replaced by '#': "layers.3.fc" becomes "layers.#.fc" and {3}.
struct NumberedPath {
  std::string pattern;
  std::vector<int64_t> numbers;
};

NumberedPath numbered(std::string_view path) {
  NumberedPath result;
  for (size_t at = 0; at < path.size();) {
    const size_t end = std::min(path.find_first_of(". ", at), path.size());
    const std::string_view part = path.substr(at, end - at);
    const bool number = !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == part.npos;
    if (number) {
      result.numbers.push_back(std::stoll(std::string(part)));
      result.pattern += '#';
    } else {
      result.pattern += part;
    }
    if (end < path.size()) result.pattern += path[end];
    at = end + 1;
  }
  return result;
}

struct LargestRow {
  int64_t total = 0, count = 0;
  const LiveStorage* first = nullptr;
  std::string pattern;
  std::vector<std::pair<int64_t, int64_t>> ranges;  // of each number
};

std::string path_of(const LargestRow& row) {
  std::string text;
  size_t number = 0;
  for (const char c : row.pattern) {
    if (c != '#' || number == row.ranges.size()) {
      text += c;
      continue;
    }
    const auto& [least, most] = row.ranges[number++];
    text += least == most ? fmt::format("{}", least) : fmt::format("{{{}..{}}}", least, most);
  }
  return text;
}

std::vector<LiveStorage> alive_at_peak(const Profile& profile) {
  const Graph& graph = profile.graph();
  const MemoryTimeline& timeline = profile.timeline();
  std::vector<StorageId> alive = timeline.alive_at(profile.leading_peak().node, std::numeric_limits<size_t>::max());
  if (const auto steady = steady_state(graph, timeline)) {
    alive.insert(alive.end(), steady->kept.begin(), steady->kept.end());
  }
  return describe_storages(graph, timeline, alive);
}

// Marks a figure that lacks something of some calls: "lower bound: scratch memory of 3 calls of 1 operators is unknown
// (aten::x x3)". `what`: the part before the counts.
std::string lower_bound_text(const char* what, const char* missing, std::vector<UncoveredOperator> most) {
  const int64_t calls = call_count(most);
  if (calls == 0) return {};
  std::string text = fmt::format("  lower bound: {} of {} call{} of {} operator{} {} (", what, calls,
                                 calls == 1 ? "" : "s", most.size(), most.size() == 1 ? "" : "s", missing);
  std::stable_sort(most.begin(), most.end(), [](const auto& a, const auto& b) { return a.count > b.count; });
  for (size_t i = 0; i < most.size() && i < 3; ++i) {
    text += fmt::format("{}{} x{}", i == 0 ? "" : ", ", most[i].op, most[i].count);
  }
  return text + (most.size() > 3 ? ", ...)\n" : ")\n");
}

// "a step", or for a loop, the steps that the time before it is of.
std::string step_phrase(int64_t steps) {
  return steps == 1   ? "a step"
         : steps == 0 ? "for everything captured, which may be several steps"
                      : fmt::format("a step, the mean of {} captured steps", steps);
}

std::string time_text(const StepTime& time, const Profile& profile) {
  std::string text = fmt::format("\n{:<15}{} {}, estimated for {}\n", "time",
                                 human_seconds(time.per_step(time.seconds())), step_phrase(time.steps()), time.spec());
  text += metrics_text(profile, TextPart::kTime);
  text += lower_bound_text("part of the time", "is unknown", time.uncovered());
  std::vector<std::pair<double, KernelClass>> classes;
  for (const auto& [kind, name] : enum_names(KernelClass{})) {
    if (time.seconds(kind) > 0) classes.emplace_back(time.seconds(kind), kind);
  }
  std::sort(classes.begin(), classes.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  for (size_t i = 0; i < classes.size() && i < 6; ++i) {
    text += fmt::format("  {:<28}{:>12}  {:>4.1f} %\n", to_string(classes[i].second),
                        human_seconds(time.per_step(classes[i].first)),
                        time.busy() > 0 ? 100 * classes[i].first / time.busy() : 0);
  }
  return text;
}

std::string overlap_text(const OverlappedStep& overlap, const Graph& graph, const Communication& communication) {
  const auto seconds = [&](double total) { return human_seconds(overlap.per_step(total)); };
  std::string text = fmt::format("  {:<13}{} {}, {} of it for collectives; between {} and {}\n", "overlapped",
                                 seconds(overlap.seconds()), step_phrase(overlap.steps()), seconds(overlap.exposed()),
                                 seconds(overlap.at_least()), seconds(overlap.at_most()));
  for (const ExposureCause& cause : overlap.causes()) {
    text += fmt::format("    {:<12}waiting {} {} for {}\n", seconds(cause.seconds), cause.waits,
                        cause.waits == 1 ? "time" : "times", to_string(cause, graph, communication));
  }
  if (overlap.slowed() > 0) {
    text += fmt::format("    {:<12}kernels slowed by concurrent collectives\n", seconds(overlap.slowed()));
  }
  return text;
}

std::string communication_text(const Graph& graph, const Communication& communication, const OverlappedStep* overlap) {
  const CommunicationSum total = communication.total();
  const bool loop = overlap != nullptr && overlap->steps() != 1;
  std::string text = fmt::format("\n{:<15}{} sent by this process in {} collectives{}", "communication",
                                 human_bytes(total.wire), total.calls, loop ? " of all captured steps" : "");
  text += communication.has_seconds()
              ? fmt::format(", {} on {}", human_seconds(total.seconds), communication.interconnect())
              : "; no interconnect specs, so no times";
  text += fmt::format("\n  {:<28}{:>8}{:>14}{:>14}{:>12}\n", "", "calls", "payload", "sent", "time");
  const auto row = [&](const std::string& name, const CommunicationSum& sum) {
    text += fmt::format("  {:<28}{:>8}{:>14}{:>14}{:>12}\n", name, sum.calls, human_bytes(sum.payload),
                        human_bytes(sum.wire), communication.has_seconds() ? human_seconds(sum.seconds) : "");
  };
  for (const auto& [kind, name] : enum_names(CollectiveKind{})) {
    if (const auto sum = communication.of(kind); sum.calls > 0) row(std::string(name), sum);
  }
  for (uint32_t i = 0; i < communication.groups().size(); ++i) {
    const ProcessGroupInfo& group = communication.groups()[i];
    row(fmt::format("group {} of {}", group.name, group.size), communication.of_group(i));
  }
  if (overlap != nullptr) text += overlap_text(*overlap, graph, communication);
  for (const UncoveredOperator& row : communication.uncovered()) {
    text += fmt::format("  not included: {} x{}\n", row.op, row.count);
  }
  return text;
}

std::string model_text(const Profile& profile) {
  std::string text;
  const auto line = [&](const char* name, const std::string& value) { text += fmt::format("{:<15}{}\n", name, value); };
  const auto optional_line = [&](const char* name, const std::optional<std::string>& value) {
    if (value) line(name, *value);
  };
  optional_line("model", profile.model);
  line("device", device_text(profile.device));
  if (profile.mode) line("mode", std::string(to_string(*profile.mode)));
  if (const auto& how = profile.optimizer_implementation; how && !profile.device.is_cpu()) {
    line("optimizer",
         fmt::format("{}{}", profile.optimizer ? *profile.optimizer + ", " : "",
                     *how == "fused"     ? "fused=True"
                     : *how == "foreach" ? "foreach=True: all parameters at once, PyTorch's default on CUDA"
                                         : "foreach=False: one parameter at a time"));
  } else {
    optional_line("optimizer", profile.optimizer);
  }
  text += metrics_text(profile, TextPart::kModel);
  return text;
}

std::string place_of(const PeakInfo& peak) {
  std::string where = fmt::format("node {}: {}", peak.node, peak.op);
  if (!peak.module.empty()) where += " of " + peak.module;
  return peak.source.empty() ? where : where + ", " + peak.source;
}

// Returns the training step that the peak belongs to, if first and later steps differ.
const char* step_of_peak(const Profile& profile) {
  const Metadata& metadata = profile.graph().metadata;
  if (profile.steady_peak || metadata.step == TrainingStep::kSteady) return " of the steady state";
  const bool later_differ = metadata.step == TrainingStep::kFirst && metadata.other.contains("zero_grads");
  return later_differ ? " of the first step (--steady-state: of later steps)" : "";
}

// Writes the steady-state peak first if there is one, then the peak of the recorded first step.
std::string peak_text(const Profile& profile) {
  const PeakInfo& peak = profile.leading_peak();
  std::string text =
      fmt::format("{:<15}{} ({} bytes) in {}{}, at {}\n", "peak", human_bytes(peak.bytes), exact_count(peak.bytes),
                  peak.phase.empty() ? "no phase" : peak.phase, step_of_peak(profile), place_of(peak));
  for (size_t kind = 0; kind < peak.by_kind.size(); ++kind) {
    if (peak.by_kind[kind] == 0) continue;
    text += fmt::format("  {:<17}{:>12}\n", to_string(static_cast<StorageKind>(kind)), human_bytes(peak.by_kind[kind]));
  }
  if (profile.steady_peak) {
    text += fmt::format("  {:<17}{:>12}  in {}\n", "first step", human_bytes(profile.peak.bytes), profile.peak.phase);
  }
  text += metrics_text(profile, TextPart::kPeak);
  if (profile.phase_peaks.size() <= 1) return text;
  std::vector<std::string> phases;
  for (const auto& [phase, most] : profile.phase_peaks) {
    if (!phase.empty()) phases.push_back(phase + " " + human_bytes(most.bytes));
  }
  return text + fmt::format("  {:<17}{}\n", "by phase", fmt::join(phases, ", "));
}

// Writes memory beyond live bytes: scratch inside kernels, the caching allocator's statistics, and other devices.
std::string memory_text(const Profile& profile) {
  std::string text = metrics_text(profile, TextPart::kScratch);
  text += lower_bound_text("scratch memory", "is unknown", profile.unknown_scratch);
  text += metrics_text(profile, TextPart::kAllocator);
  if (!profile.out_of_memory.empty()) text += "  does not fit: " + profile.out_of_memory + "\n";
  for (const DevicePeak& other : profile.other_devices) {
    text += fmt::format("  {:<17}{:>12}{}\n", "also on " + device_text(other.device), human_bytes(other.bytes),
                        other.memory                   ? "  reserved " + human_bytes(other.memory->reserved_peak)
                        : !other.out_of_memory.empty() ? "  does not fit: " + other.out_of_memory
                                                       : "");
  }
  return text;
}

std::string flops_text(const Profile& profile) {
  std::string text = fmt::format("\n{:<15}{:>12}{:>14}{:>17}\n", "FLOPs", "matmul", "elementwise", "transcendental");
  static constexpr const char* kFirst[] = {"forward", "backward", "optimizer"};
  const auto flops_line = [&](const std::string& phase, const NodeFlops& flops) {
    text += fmt::format("  {:<13}{:>12}{:>14}{:>17}\n", phase, human_count(flops.matmul),
                        human_count(flops.elementwise), human_count(flops.transcendental));
  };
  for (const char* phase : kFirst) {
    if (const auto found = profile.flops.find(phase); found != profile.flops.end()) flops_line(phase, found->second);
  }
  int64_t beyond = 0;
  for (const auto& [phase, flops] : profile.flops) {
    beyond = saturating_add(beyond, flops.beyond_pytorch);
    if (std::find(std::begin(kFirst), std::end(kFirst), phase) == std::end(kFirst)) flops_line(phase, flops);
  }
  if (beyond > 0)
    text += fmt::format("  {} of the matmul FLOPs are in operators that FlopCounterMode does not count\n",
                        human_count(beyond));
  text += lower_bound_text("FLOPs", "are unknown", profile.uncovered);
  return text;
}

std::string own_operators_text(const Profile& profile) {
  if (profile.custom_operators.empty()) return {};
  std::string text =
      fmt::format("\n{:<30}{:>8}{:>12}{:>12}{:>12}\n", "custom operators", "calls", "FLOPs", "moved", "scratch");
  for (const CustomOperatorCosts& row : profile.custom_operators) {
    text += fmt::format("  {:<28}{:>8}{:>12}{:>12}{:>12}\n", row.op, row.calls, human_count(row.flops),
                        human_bytes(row.bytes), human_bytes(row.scratch));
    if (row.unknown > 0) text += fmt::format("    {} calls that its cost rules do not cover\n", row.unknown);
  }
  return text;
}

std::string assumptions_text(const Profile& profile) {
  constexpr size_t kMostLines = 6;
  const std::vector<std::string> assumed = assumptions_of(profile.graph());
  if (assumed.empty()) return {};
  std::string text = "\nassumptions:\n";
  for (size_t i = 0; i < assumed.size() && i < kMostLines; ++i) text += "  " + assumed[i] + "\n";
  if (assumed.size() > kMostLines) text += fmt::format("  and {} more\n", assumed.size() - kMostLines);
  return text;
}

}  // namespace

// Optional columns that do not fit into the text width are left out (JSON has all).
std::string to_text(const SummaryTable& table) {
  const auto kind_of = [](const SummaryRow& row) {
    return row.repeats > 1 ? fmt::format("{} x{}", row.op_type, row.repeats) : row.op_type;
  };
  DrawnColumn kinds = drawn("Op type", true, table, kind_of);
  DrawnColumn names = drawn("Op", true, table, [](const SummaryRow& row) { return row.op; });
  std::vector<DrawnColumn> figures;
  size_t width = 0;
  for (const TableColumn& column : kTableColumns) {
    figures.push_back(drawn(column.heading, column.needed, table, column.figure));
    width += figures.back().width + 2;
  }
  const size_t all_names = kinds.width + 2 + names.width;
  for (size_t at = figures.size(); at-- > 0 && all_names + width > kTextWidth;) {
    if (figures[at].needed) continue;
    width -= figures[at].width + 2;
    figures.erase(figures.begin() + static_cast<std::ptrdiff_t>(at));
  }
  // If operator and type do not fit side by side, the type follows in parentheses; longer names get a line above.
  const size_t room = kTextWidth > width ? kTextWidth - width : 0;
  const size_t for_names = std::max<size_t>(std::min(all_names, room), 16);
  std::string text;
  for (size_t line = 0; line < names.cells.size(); ++line) {
    std::string name = all_names <= room ? fmt::format("{:<{}}  {}", kinds.cells[line], kinds.width, names.cells[line])
                                         : fmt::format("{} ({})", names.cells[line], kinds.cells[line]);
    if (name.size() > for_names) {
      text += name + "\n";
      name.clear();
    }
    text += fmt::format("{:<{}}", name, for_names) + right_aligned(figures, line) + "\n";
    if (line == 0) text += std::string(for_names + width, '-') + "\n";
  }
  return text;
}

// Those of identical layers share a row.
std::string largest_text(const Profile& profile) {
  if (profile.top_at_peak.empty()) return {};
  const std::vector<LiveStorage> alive = alive_at_peak(profile);
  std::map<std::tuple<int64_t, StorageKind, c10::ScalarType, std::vector<int64_t>, std::string>, LargestRow> rows;
  for (const LiveStorage& live : alive) {
    NumberedPath path = numbered(live.module.empty() ? live.producer : live.module + " " + live.producer);
    LargestRow& row = rows[{live.bytes, live.kind, live.dtype, live.shape, path.pattern}];
    if (row.count == 0) {
      row.first = &live;
      row.pattern = std::move(path.pattern);
      for (const int64_t number : path.numbers) row.ranges.emplace_back(number, number);
    }
    row.total += live.bytes;
    ++row.count;
    for (size_t i = 0; i < row.ranges.size() && i < path.numbers.size(); ++i) {
      row.ranges[i] = {std::min(row.ranges[i].first, path.numbers[i]), std::max(row.ranges[i].second, path.numbers[i])};
    }
  }
  std::vector<const LargestRow*> largest;
  for (const auto& [key, row] : rows) largest.push_back(&row);
  std::ranges::stable_sort(largest, [](const auto* a, const auto* b) { return a->total > b->total; });
  if (largest.size() > profile.top_at_peak.size()) largest.resize(profile.top_at_peak.size());
  std::vector<std::string> tensors;
  size_t width = 0;
  for (const LargestRow* row : largest) {
    const std::string times = row->count == 1 ? "" : fmt::format("{} x ", row->count);
    tensors.push_back(
        row->first->dtype == c10::ScalarType::Undefined
            ? times
            : fmt::format("{}{}[{}]", times, dtype_name(row->first->dtype), fmt::join(row->first->shape, ",")));
    width = std::max(width, tensors.back().size());
  }
  std::string text = "\nlargest at the peak:\n";
  for (size_t i = 0; i < largest.size(); ++i) {
    text += fmt::format("  {:>11}  {:<15}  {:<{}}  {}\n", human_bytes(largest[i]->total),
                        to_string(largest[i]->first->kind), tensors[i], width, path_of(*largest[i]));
  }
  return text;
}

std::string to_text(const Profile& profile) {
  std::string text = model_text(profile) + peak_text(profile) + memory_text(profile);
  if (profile.run) text.append("\n").append(to_text(*profile.run));
  text += flops_text(profile);
  if (profile.time() != nullptr) text += time_text(*profile.time(), profile);
  if (profile.communication() != nullptr)
    text += communication_text(profile.graph(), *profile.communication(), profile.overlap());
  if (!profile.uncovered.empty()) {
    text += "\nno FLOP formula, not included above:\n";
    for (const UncoveredOperator& row : profile.uncovered) text += fmt::format("  {} x{}\n", row.op, row.count);
  }
  text += own_operators_text(profile) + assumptions_text(profile) + largest_text(profile);
  if (const auto found = findings(profile); !found.empty()) text.append("\nfindings:\n").append(to_text(found));
  return wrapped(text);
}

}  // namespace shadowgraph
