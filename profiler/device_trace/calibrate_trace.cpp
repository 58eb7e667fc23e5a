#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/device_trace/trace_calls.h"
#include "profiler/time/operator_tables.h"
#include "shadowgraph/error.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/traces.h"
#include "shadowgraph/units.h"

namespace shadowgraph {
namespace {

// Matches CUDA device titles: "NVIDIA A100-SXM4-40GB" is a100_40gb; "NVIDIA GH200 480GB" matches nothing. Of several
// matches (DeviceSpec::reported_as) the one with the most words wins.
std::optional<DeviceSpec> device_of_title(std::string_view title) {
  std::vector<std::string> words(1);
  for (const char c : title) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0) {
      words.back() += static_cast<char>(std::tolower(byte));
    } else if (!words.back().empty()) {
      words.emplace_back();
    }
  }
  const auto has = [&](std::string_view word) { return std::ranges::find(words, word) != words.end(); };
  std::optional<DeviceSpec> best;
  size_t most = 0;
  for (const std::string& name : DeviceSpec::names()) {
    DeviceSpec known = DeviceSpec::named(name);
    std::istringstream wanted(known.reported_as);
    size_t found = 0;
    bool fits = true;
    for (std::string word; wanted >> word;) {
      const bool without = word.starts_with('-');
      fits = fits && has(word.substr(without ? 1 : 0)) != without;
      if (!without) ++found;
    }
    if (!fits || found <= most) continue;
    most = found;
    best = std::move(known);
  }
  return best;
}

// One size of one operator: its work, and the measured time.
struct Timed {
  const TracedWork* of = nullptr;
  double seconds = 0;  // the median
  double total = 0;
  double rate() const { return of->work.flops / seconds; }
};

class FittedDevice {
 public:
  FittedDevice(const TracedCalls& calls, const std::vector<TracedWork>& works, DeviceSpec& spec, bool known)
      : calls_(calls), spec_(spec), known_(known), file_(std::filesystem::path(calls.events.file).filename().string()) {
    std::vector<std::vector<double>> seconds(works.size());
    for (const TracedCall& call : calls.calls) seconds[call.distinct].push_back(call.seconds);
    for (size_t i = 0; i < works.size(); ++i) {
      if (works[i].free || !works[i].problem.empty() || seconds[i].empty()) continue;
      double total = 0;
      for (const double one : seconds[i]) total += one;
      const Timed timed{.of = &works[i], .seconds = median(std::move(seconds[i])), .total = total};
      if (timed.seconds > 0) timed_.push_back(timed);
    }
  }

  void fit() {
    if (!known_) reach_peaks();
    for (const auto& [kind, name] : enum_names(KernelClass{})) fit_class(kind);
    fit_host();
    fill_tables();
  }

 private:
  static bool computes(const Timed& timed) { return timed.of->work.flops > 0; }

  // Without a known device, uses the highest rates reached as peaks.
  void reach_peaks() {
    std::map<c10::ScalarType, double> others;
    double large = 0, any = 0;
    for (const Timed& timed : timed_) {
      const KernelWork& work = timed.of->work;
      auto& peaks = work.kind == KernelClass::kMatmul ? spec_.matmul : others;
      if (computes(timed)) peaks[work.dtype] = std::max(peaks[work.dtype], timed.rate());
      constexpr double kBeyondCaches = 64 << 20;  // bytes
      any = std::max(any, work.bytes / timed.seconds);
      if (work.bytes >= kBeyondCaches) large = std::max(large, work.bytes / timed.seconds);
    }
    for (const auto& [dtype, rate] : others) spec_.matmul.try_emplace(dtype, rate);
    spec_.bandwidth = large > 0 ? large : any;
    if (spec_.matmul.empty() || spec_.bandwidth <= 0) {
      throw Error(
          calls_.events.file +
          ": no call computes matrix products, so the device's peak rates are unknown; name the device to take them "
          "from (--spec h100)");
    }
    spec_.sources["bandwidth"] = "highest rate of a call in " + file_;
    spec_.sources["matmul"] = "highest rate of a matrix product in " + file_;
    if (!spec_.matmul.contains(c10::kFloat)) {
      const auto most = std::ranges::max_element(spec_.matmul, {}, [](const auto& entry) { return entry.second; });
      spec_.matmul[c10::kFloat] = most->second;
      spec_.sources["matmul.float32"] = "no float32 product in " + file_ + "; rate of " + dtype_name(most->first);
    }
  }

  double peak_ratio(c10::ScalarType dtype) const {
    const auto own = spec_.matmul.find(dtype);
    return own == spec_.matmul.end() ? 1 : own->second / spec_.matmul.at(c10::kFloat);
  }

  void fit_class(KernelClass kind) {
    std::vector<Timed> own;
    std::map<c10::ScalarType, double> by_dtype;  // seconds of compute-bound calls
    for (const Timed& timed : timed_) {
      if (timed.of->work.kind != kind) continue;
      own.push_back(timed);
      if (computes(timed)) by_dtype[timed.of->work.dtype] += timed.total;
    }
    if (own.empty()) return;
    double ratio = 1;
    if (!by_dtype.empty()) {
      // Rates are fitted to the dtype with the most time; others scale with their peaks.
      const auto main = std::ranges::max_element(by_dtype, {}, [](const auto& entry) { return entry.second; })->first;
      ratio = peak_ratio(main);
      std::erase_if(own, [&](const Timed& t) { return !computes(t) || t.of->work.dtype != main; });
      const auto moves = [&](const Timed& t) { return t.of->work.bytes / spec_.bandwidth > t.seconds / 2; };
      if (!std::ranges::all_of(own, moves)) std::erase_if(own, moves);
    } else {
      std::erase_if(own, [](const Timed& t) { return t.of->work.bytes <= 0; });
    }
    if (own.empty()) return;
    ClassRates rates;
    fit_rates(thinned(own), rates);
    // Subtracting a class's fixed time may suggest a rate above any measured one.
    double fastest = 0;
    for (const Timed& timed : own) fastest = std::max(fastest, timed.rate());
    for (RatePoint& point : rates.compute) point.rate = std::min(point.rate, fastest) / ratio;
    spec_.classes[kind] = rates;
    spec_.sources[fmt::format("classes.{}", to_string(kind))] =
        fmt::format("fitted to {} sizes of calls in {}", own.size(), file_);
  }

  // Keeps one of several similar sizes: the one with the median rate.
  static std::vector<TimedCall> thinned(std::vector<Timed>& own) {
    constexpr double kClose = 1.5;  // ratio of work
    const auto work = [](const Timed& t) { return computes(t) ? t.of->work.flops : t.of->work.bytes; };
    std::ranges::sort(own, {}, work);
    std::vector<TimedCall> result;
    for (size_t begin = 0; begin < own.size();) {
      size_t end = begin;
      while (end < own.size() && work(own[end]) <= kClose * work(own[begin])) ++end;
      std::vector<Timed> near(own.begin() + static_cast<std::ptrdiff_t>(begin),
                              own.begin() + static_cast<std::ptrdiff_t>(end));
      std::ranges::sort(near, {}, [&](const Timed& t) { return work(t) / t.seconds; });
      const Timed& middle = near[near.size() / 2];
      result.push_back({middle.of->work.flops, middle.of->work.bytes, middle.seconds});
      begin = end;
    }
    return result;
  }

  // The host time of a call is the interval between two calls where the host is not blocked by the device.
  void fit_host() {
    if (!calls_.on_device) {
      spec_.host_call = 0;
      return;
    }
    std::vector<double> between;
    for (const TracedCall& call : calls_.calls) {
      if (call.issues_next) between.push_back(call.until_next);
    }
    if (between.empty()) return;
    spec_.host_call = median(std::move(between));
    spec_.sources["host_call"] = "median time between two calls in " + file_ + ", including the profiler's overhead";
  }

  void fill_tables() {
    std::map<std::pair<std::string, c10::ScalarType>, std::map<SizeKey, std::vector<double>>> found;
    for (const Timed& timed : timed_) {
      const TracedWork& of = *timed.of;
      const MeasuredSize size = size_of_work(of.work);
      if (!size.is_product() && size.bytes <= 0) continue;
      found[{of.op, of.work.dtype}][size_key(size)].push_back(timed.seconds);
    }
    OperatorTables tables;
    for (const auto& [name, sizes] : found) {
      auto& table = tables.by_name[name.first][name.second];
      for (const auto& [key, seconds] : sizes) {
        const MeasuredSize size = measured_size(key, median(seconds));
        // Product sizes and byte sizes of one operator cannot share a table: the first kind wins.
        const bool other_kind = !table.empty() && (table.front().is_product() != size.is_product() ||
                                                   (table.front().flops > 0) != (size.flops > 0));
        if (!other_kind) table.push_back(size);
      }
    }
    spec_.tables.add(tables);
    spec_.sources["tables"] = fmt::format("medians of calls in {}", file_);
  }

  const TracedCalls& calls_;
  DeviceSpec& spec_;
  bool known_;
  std::string file_;
  std::vector<Timed> timed_;
};

// Returns the device whose peaks apply: the requested one, or that of the trace. Its name is empty if none is known.
DeviceSpec base_device(const TracedCalls& calls, const std::string& asked) {
  if (!asked.empty()) return DeviceSpec::find(asked);
  return calls.on_device ? device_of_title(calls.events.device_title).value_or(DeviceSpec()) : DeviceSpec();
}

// Builds tables of collectives. The minimum per size counts: longer ones include waiting for slower processes.
std::optional<Interconnect> links_of(const TracedCalls& calls, const DeviceSpec& device, TraceCalibration& into) {
  std::map<std::pair<CollectiveKind, int64_t>, std::map<double, double>> least;
  double rate = 0, shortest = HUGE_VAL;
  for (const TracedCollective& sent : calls.collectives) {
    if (sent.what.processes < 2 || sent.what.payload <= 0 || sent.seconds <= 0) continue;
    ++into.collectives;
    const auto bytes = static_cast<double>(sent.what.payload);
    auto& seconds = least[{sent.what.kind, sent.what.processes}].try_emplace(bytes, sent.seconds).first->second;
    seconds = std::min(seconds, sent.seconds);
    const auto wire = static_cast<double>(wire_bytes(sent.what.kind, sent.what.payload, sent.what.processes));
    rate = std::max(rate, wire / sent.seconds);
    shortest = std::min(shortest, sent.seconds);
  }
  if (least.empty()) return std::nullopt;
  const std::string file = std::filesystem::path(calls.events.file).filename().string();
  auto links = Machine::of(device).links;
  if (!links) {
    links = Interconnect{.name = "traced", .title = "links of " + file, .base = shortest};
    links->levels.push_back({.name = "links", .bandwidth = rate});
    links->sources["*"] = "shortest collective in " + file + ", and the highest rate";
  }
  for (const auto& [of, by_bytes] : least) {
    CollectiveTable& table = links->tables[of.first][of.second];
    table.clear();
    for (const auto& [bytes, seconds] : by_bytes) {
      table.emplace_back(bytes, table.empty() ? seconds : std::max(seconds, table.back().second));
    }
  }
  links->sources["tables"] = "minimum per size in " + file;
  return links;
}

}  // namespace

TraceCalibration calibrate_from_trace(const std::string& path, const TraceCalibrationOptions& options) {
  const TracedCalls calls = TracedCalls::read_file(path);
  const std::vector<TracedWork> works = traced_work(calls);
  const std::string file = std::filesystem::path(path).filename().string();
  TraceCalibration result;
  DeviceSpec base = base_device(calls, options.device);
  const bool known = !base.name.empty();
  if (known) base.sources["*"] = fmt::format("copied from {}", base.title);
  result.spec = std::move(base);
  DeviceSpec& spec = result.spec;
  spec.device = calls.on_device ? c10::kCUDA : c10::kCPU;
  if (!known) spec.name = "traced";
  if (!calls.events.device_title.empty() && calls.on_device) spec.title = calls.events.device_title;
  spec.title =
      (spec.title.empty() ? std::string(calls.on_device ? "a device" : "a CPU") : spec.title) + ", traced in " + file;
  if (calls.on_device && calls.events.device_memory > 0) spec.memory = calls.events.device_memory;
  FittedDevice(calls, works, spec, known).fit();
  result.links = links_of(calls, spec, result);

  std::map<std::pair<std::string, std::string>, SkippedCalls> left_out;
  const auto leave_out = [&](const std::string& op, const std::string& reason, int64_t count, double seconds) {
    SkippedCalls& entry = left_out.try_emplace({op, reason}, SkippedCalls{.op = op, .reason = reason}).first->second;
    entry.calls += count;
    entry.seconds += seconds;
  };
  for (const TracedCall& call : calls.calls) {
    const TracedWork& work = works[call.distinct];
    if (work.free) continue;
    result.seconds += call.seconds;
    if (work.problem.empty()) ++result.calls;
    if (!work.problem.empty()) leave_out(work.op, work.problem, 1, call.seconds);
  }
  for (const TracedWork& work : works) result.sizes += work.problem.empty() && !work.free;
  for (const auto& [name, other] : calls.other) {
    result.seconds += other.seconds;
    leave_out(name, calls.on_device ? "kernel without a PyTorch operator" : "unknown operator", other.calls,
              other.seconds);
  }
  if (calls.events.comms_without_kernel > 0) {
    leave_out("record_param_comms", "collectives without a kernel in the trace", calls.events.comms_without_kernel, 0);
  }
  for (auto& [key, entry] : left_out) result.left_out.push_back(std::move(entry));
  std::ranges::stable_sort(result.left_out, std::greater<>(), &SkippedCalls::seconds);
  return result;
}

}  // namespace shadowgraph
