// The scalar metrics of a profile, one row each. The text and JSON reports, docs/profile.schema.json, the Python
// attributes with their stubs, and the table in docs/memory.md are derived from it (scripts/write_profile_metrics.py).
#include "profiler/profile/metrics.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/memory.h"
#include "shadowgraph/profile/profile.h"
#include "shadowgraph/profile/step_time.h"
#include "shadowgraph/units.h"

namespace shadowgraph {

using enum MetricUnit;
using enum TextPart;
using P = const Profile&;
using Note = std::optional<std::string>;

const std::vector<MetricOf<PeakInfo>>& peak_metrics() {
  static const std::vector<MetricOf<PeakInfo>> rows{
      {"bytes", kBytes, "maximum bytes of storages alive at once on the device, without scratch memory inside kernels",
       &PeakInfo::bytes, kNowhere, "peak"},
      {"node", kCount, "index of the node at the peak, in program order, from 0", &PeakInfo::node},
  };
  return rows;
}

const std::vector<MetricOf<CommunicationSum>>& communication_metrics() {
  using Sum = CommunicationSum;
  static const std::vector<MetricOf<Sum>> rows{
      {"calls", kCount, "number of collectives included in these sums", &Sum::calls},
      {"payload_bytes", kBytes, "total size of the tensors communicated", &Sum::payload},
      {"wire_bytes", kBytes, "bytes sent by this process", &Sum::wire},
  };
  return rows;
}

const std::vector<MetricOf<DeviceMemory>>& device_memory_metrics() {
  using Memory = DeviceMemory;
  static const std::vector<MetricOf<Memory>> rows{
      {"requested_peak_bytes", kBytes, "peak of requested bytes: storages, known scratch, cuBLAS workspaces",
       &Memory::requested_peak},
      {"allocated_peak_bytes", kBytes, "peak of bytes in allocated blocks: torch.cuda.max_memory_allocated()",
       &Memory::allocated_peak, kAllocator, "allocated",
       [](P p) -> Note {
         const Memory& memory = *p.device_memory;
         const size_t steps = memory.reserved_after.size();
         return fmt::format("in {} step{}{}", steps, steps == 1 ? "" : "s",
                            memory.cublas_workspace == 0 ? ""
                                                         : fmt::format(", including {} of cuBLAS workspaces ({})",
                                                                       human_bytes(memory.cublas_workspace),
                                                                       memory.options.assumptions.why_workspace()));
       }},
      {"reserved_peak_bytes", kBytes, "peak of bytes in reserved segments: torch.cuda.max_memory_reserved()",
       &Memory::reserved_peak, kAllocator, "reserved",
       [](P p) -> Note {
         return fmt::format("by the caching allocator, {} of it cached but unused",
                            human_bytes(p.device_memory->fragmentation()));
       }},
      {"fragmentation_bytes", kBytes, "bytes reserved but not allocated when reserved bytes first reach their peak",
       &Memory::fragmentation},
      {"stuck_bytes", kBytes, "the part of fragmentation_bytes in segments that also hold live blocks",
       &Memory::stuck_at_peak},
      {"segments", kCount, "segments at the end, without expandable ones", &Memory::segments},
      {"retries", kCount, "allocations that succeeded only after cached memory was released", &Memory::retries},
      {"assumed.context_bytes", kBytes, "size of the CUDA context; included in footprint_bytes only", &Memory::context},
      {"assumed.cublas_workspace_bytes", kBytes,
       "size of the cuBLAS workspaces, one for each stream and thread with matrix products; included in all metrics of "
       "device_memory",
       &Memory::cublas_workspace},
      {"assumed.nccl_bytes", kBytes,
       "size of NCCL's buffers; included in footprint_bytes only. Absent without collectives",
       [](const Memory& m) { return m.nccl > 0 ? std::optional(m.nccl) : std::nullopt; }},
      {"footprint_bytes", kBytes, "reserved peak, CUDA context and NCCL buffers: about what nvidia-smi shows",
       &Memory::footprint, kAllocator, "on the device",
       [](P p) -> Note {
         const Memory& memory = *p.device_memory;
         return fmt::format("with an assumed CUDA context of {}{}", human_bytes(memory.context),
                            memory.nccl > 0 ? fmt::format(" and {} of NCCL buffers", human_bytes(memory.nccl)) : "");
       }},
  };
  return rows;
}

namespace {

std::vector<MetricOf<CacheInfo>> cache_metrics() {
  return {
      {"context", kCount, "tokens in the KV cache after the step", &CacheInfo::context},
      {"bytes_per_token", kBytes, "KV cache bytes per token of one sequence, all layers", &CacheInfo::bytes_per_token},
      {"bytes", kBytes, "KV cache bytes after the step, all sequences of the batch", &CacheInfo::bytes, kModel,
       "KV cache",
       [](P p) -> Note {
         const CacheInfo& cache = *p.cache;
         return fmt::format(
             "after {} of {} tokens, {} bytes per token and sequence, {}{}", cache.step, exact_count(cache.context),
             exact_count(cache.bytes_per_token), cache.kind,
             cache.context > cache.positions && cache.positions > 0
                 ? fmt::format("; beyond the {} positions the model was trained on", exact_count(cache.positions))
                 : "");
       }},
      {"positions", kCount, "maximum positions of the model's configuration", &CacheInfo::positions},
  };
}

std::vector<MetricOf<Profile>> model_figures() {
  return {
      {"parameters", kCount, "number of parameters; shared ones count once", [](P p) { return p.size.parameters; },
       kModel, "parameters",
       [](P p) -> Note {
         const ParameterCount& size = p.size;
         return fmt::format("({}){}", human_bytes(size.parameter_bytes),
                            size.whole_parameters == size.parameters
                                ? ""
                                : fmt::format(" on this rank, of {} on all ranks", exact_count(size.whole_parameters)));
       }},
      {"parameter_bytes", kBytes, "size of all parameters; shared ones count once",
       [](P p) { return p.size.parameter_bytes; }},
      {"whole_parameters", kCount, "number of parameters on all ranks; absent if this process holds all of them",
       [](P p) {
         const ParameterCount& size = p.size;
         return size.whole_parameters == size.parameters ? std::nullopt : std::optional(size.whole_parameters);
       }},
      {"buffers", kCount, "elements of all buffers; shared ones count once", [](P p) { return p.size.buffers; }, kModel,
       "buffers",
       [](P p) { return p.size.buffers == 0 ? Note() : fmt::format("({})", human_bytes(p.size.buffer_bytes)); }},
      {"buffer_bytes", kBytes, "size of all buffers; shared ones count once", [](P p) { return p.size.buffer_bytes; }},
      {"saved_bytes", kBytes, "size of all storages saved for backward, each counted once and in full",
       [](P p) { return p.saved.all; }, kModel, "saved",
       [](P p) -> Note { return fmt::format("for backward, {} of it activations", human_bytes(p.saved.activations)); }},
      {"saved_activation_bytes", kBytes, "size of the saved storages that the step itself allocated",
       [](P p) { return p.saved.activations; }},
      {"capture_seconds", kSeconds, "time that the capture took; absent for a graph read from a file",
       &Profile::capture_seconds},
  };
}

double activations_of(P p) {
  return static_cast<double>(p.leading_peak().by_kind[static_cast<size_t>(StorageKind::kActivation)]);
}

std::vector<MetricOf<Profile>> memory_figures() {
  return {
      {"peak_rounded_bytes", kBytes, "peak if each storage is rounded up to 512 bytes; may be at another node",
       &Profile::peak_rounded_bytes, kPeak, "in 512 B blocks"},
      {"peak_activation_share", kRatio,
       "fraction of the peak that is activations; of steady_peak if present. Absent for an empty graph",
       [](P p) {
         const auto bytes = static_cast<double>(p.leading_peak().bytes);
         return bytes > 0 ? std::optional(activations_of(p) / bytes) : std::nullopt;
       },
       kPeak, "activations",
       [](P p) { return activations_of(p) > 0 ? Note("of the peak; recompute or offload can reduce them") : Note(); }},
      {"peak_with_scratch.bytes", kBytes,
       "maximum bytes of storages and known scratch memory: an estimate; a lower bound if unknown_scratch is not empty",
       [](P p) { return p.peak_with_scratch.bytes; }, kScratch, "with scratch",
       [](P p) {
         const PeakInfo& peak = p.peak_with_scratch;
         return peak.bytes > p.leading_peak().bytes ? fmt::format("at node {}: {}", peak.node, peak.op) : Note();
       }},
      {"peak_with_scratch.node", kCount, "index of that node in program order, from 0",
       [](P p) { return p.peak_with_scratch.node; }},
      {"memory_layout.bytes", kBytes, "arena size of a static memory plan",
       [](P p) { return p.memory_layout().bytes; }},
      {"memory_layout.bound", kBytes,
       "maximum bytes alive at once, each storage rounded up to 512 bytes: a lower bound for memory_layout.bytes",
       [](P p) { return p.memory_layout().bound; }},
  };
}

std::vector<MetricOf<RunMemory>> run_figures() {
  return {
      {"steps", kCount, "number of recorded steps", [](const RunMemory& run) { return run.steps.size(); }},
      {"peak_bytes", kBytes, "maximum live bytes over all steps", &RunMemory::peak},
      {"reserved_peak_bytes", kBytes,
       "maximum bytes reserved by the caching allocator over all steps; absent for a CPU and if the run does not fit",
       &RunMemory::reserved_peak},
  };
}

template <class Time>
auto per_step(double (Time::*total)() const) {
  return [total](const Time& time) { return time.per_step((time.*total)()); };
}

std::vector<MetricOf<StepTime>> time_figures() {
  return {
      {"seconds", kSeconds, "estimated step time; of a loop, the mean of its captured steps, as all seconds here",
       per_step(&StepTime::seconds), kNowhere, "time"},
      {"steps", kCount,
       "number of captured steps: 1 unless the program is a loop. 0: unknown; all seconds are then of the whole "
       "capture",
       &StepTime::steps},
      {"device_seconds", kSeconds, "time the device is busy: the sum over kernels", per_step(&StepTime::busy), kTime,
       "device",
       [](P p) {
         const StepTime& time = *p.time();
         return time.host() == 0 ? Note()
                                 : fmt::format("busy, {} idle waiting for the host ({} kernel launches{})",
                                               human_seconds(time.per_step(time.waiting())), time.calls(),
                                               time.steps() == 1 ? "" : " in all");
       }},
      {"host_seconds", kSeconds, "time the host needs to launch all kernels; 0 if calls are synchronous",
       per_step(&StepTime::host)},
      {"waiting_seconds", kSeconds, "time the device is idle, waiting for the host", per_step(&StepTime::waiting)},
      {"flop_utilization", kRatio,
       "model FLOPs utilization (MFU): FLOPs without flops_beyond_pytorch and scores that causal masks exclude, over "
       "the device's peak rate times the step time",
       &StepTime::flop_utilization, kTime, "utilization", [](P) -> Note { return "of the peak for matrix products"; }},
      {"calls", kCount, "calls that launch a kernel, in all captured steps", &StepTime::calls},
  };
}

std::vector<MetricOf<OverlappedStep>> overlap_figures() {
  using Step = OverlappedStep;
  return {
      {"seconds", kSeconds, "step time with communication overlapped", per_step(&Step::seconds)},
      {"compute_seconds", kSeconds, "step time without collectives", per_step(&Step::compute)},
      {"exposed_seconds", kSeconds, "exposed communication: seconds - compute_seconds", per_step(&Step::exposed)},
      {"slowed_seconds", kSeconds, "time added to kernels that run concurrently with collectives",
       per_step(&Step::slowed)},
      {"waits_for_host_seconds", kSeconds, "time the device is idle, waiting for the host",
       per_step(&Step::waits_for_host)},
      {"at_least_seconds", kSeconds, "lower bound: the longest of compute and each group's communication",
       per_step(&Step::at_least)},
      {"at_most_seconds", kSeconds, "upper bound: no overlap", per_step(&Step::at_most)},
  };
}

struct ProfileRow {
  ProfileMetric metric;
  TextPart part;
  MetricNote note;
};

// The rows of all parts, in the order of the text.
std::vector<ProfileRow> all_rows() {
  std::vector<ProfileRow> all;
  // `part` returns a pointer or an optional, empty if the profile has no such part.
  const auto add = [&]<class T>(const std::string& object, const std::vector<MetricOf<T>>& rows, bool always,
                                auto part) {
    for (const MetricOf<T>& row : rows) {
      const auto value = [of = row.value, part](P p) {
        const auto found = part(p);
        return found ? of(*found) : std::nullopt;
      };
      all.push_back({{object.empty() ? row.key : object + "." + row.key, row.unit, row.doc, row.label, row.required,
                      always && row.required, value},
                     row.part,
                     row.note});
    }
  };
  const auto itself = [](P p) { return &p; };
  add("",
      std::vector<MetricOf<Profile>>{
          {"nodes", kCount, "nodes of the graph, placeholders included", &Profile::nodes, kModel, "nodes"}},
      true, itself);
  add("cache", cache_metrics(), false, [](P p) { return p.cache; });
  add("", model_figures(), true, itself);
  add("peak", peak_metrics(), true, [](P p) { return &p.peak; });
  add("", memory_figures(), true, itself);
  add("device_memory", device_memory_metrics(), false,
      [](P p) { return p.device_memory ? &*p.device_memory : nullptr; });
  add("run", run_figures(), false, [](P p) { return p.run ? &*p.run : nullptr; });
  add("time", time_figures(), false, [](P p) { return p.time(); });
  add("communication", communication_metrics(), false,
      [](P p) { return p.communication() == nullptr ? std::nullopt : std::optional(p.communication()->total()); });
  add("communication",
      std::vector<MetricOf<Communication>>{
          {"seconds", kSeconds, "time of all collectives without overlap; absent without interconnect specs",
           [](const Communication& sent) {
             return sent.has_seconds() ? std::optional(sent.total().seconds) : std::nullopt;
           }}},
      false, [](P p) { return p.communication(); });
  add("communication.overlap", overlap_figures(), false, [](P p) { return p.overlap(); });
  return all;
}

const std::vector<ProfileRow>& profile_rows() {
  static const std::vector<ProfileRow> rows = all_rows();
  return rows;
}

std::string human(const MetricValue& value, MetricUnit unit) {
  if (const int64_t* whole = std::get_if<int64_t>(&*value)) {
    return unit == kBytes ? human_bytes(*whole) : exact_count(*whole);
  }
  const double number = std::get<double>(*value);
  return unit == kSeconds ? human_seconds(number) : fmt::format("{:.1f} %", 100 * number);
}

}  // namespace

int64_t call_count(const std::vector<UncoveredOperator>& operators) {
  int64_t calls = 0;
  for (const UncoveredOperator& row : operators) calls += row.count;
  return calls;
}

std::string_view to_string(MetricUnit unit) {
  static constexpr std::string_view kNames[] = {"count", "bytes", "seconds", "ratio"};
  return kNames[static_cast<size_t>(unit)];
}

std::string ProfileMetric::name() const {
  std::string name = key;
  std::ranges::replace(name, '.', '_');
  return name;
}

const std::vector<ProfileMetric>& profile_metrics() {
  static const std::vector<ProfileMetric> metrics = [] {
    std::vector<ProfileMetric> all;
    for (const ProfileRow& row : profile_rows()) all.push_back(row.metric);
    return all;
  }();
  return metrics;
}

void add_metric(nlohmann::json& object, const std::string& key, const MetricValue& value) {
  if (!value) return;
  std::string path = "/" + key;
  std::ranges::replace(path, '.', '/');
  std::visit([&](auto number) { object[nlohmann::json::json_pointer(path)] = number; }, *value);
}

std::string metrics_text(const Profile& profile, TextPart part) {
  std::string text;
  for (const auto& [metric, of_part, note_of] : profile_rows()) {
    if (of_part != part) continue;
    const MetricValue value = metric.value(profile);
    const Note note = value && note_of ? note_of(profile) : Note("");
    if (!value || !note) continue;
    const std::string number = human(value, metric.unit);
    const bool left = part == kModel || part == kTime;
    text += part == kModel  ? fmt::format("{:<15}{}", metric.label, number)
            : part == kTime ? fmt::format("  {:<13}{}", metric.label, number)
                            : fmt::format("  {:<17}{:>12}", metric.label, number);
    if (!note->empty()) text.append(left ? " " : "  ").append(*note);
    text += '\n';
  }
  return text;
}

}  // namespace shadowgraph
