#include "shadowgraph/profile/fits.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "core/libtorch/error_text.h"
#include "profiler/program_costs.h"
#include "shadowgraph/profile/memory.h"
#include "shadowgraph/profile/profile.h"
#include "shadowgraph/profile/step_time.h"

namespace shadowgraph {

// Returns the device memory of the recorded steps; empty if none was recorded, or the device has no allocator.
static std::optional<int64_t> bytes_of_run(const Profile& profile) {
  if (!profile.run || !profile.device_memory) return std::nullopt;
  const auto reserved = profile.run->reserved_peak();
  if (!reserved) return std::nullopt;
  return *reserved + profile.device_memory->context + profile.device_memory->nccl;
}

// Formats bytes as a number of `unit` (GiB or MiB), without the unit: "21.3".
static std::string in_unit(int64_t bytes, int64_t unit) {
  const double number = static_cast<double>(bytes) / static_cast<double>(unit);
  return fmt::format("{:.{}f}", number, number < 10 ? 2 : 1);
}

// Returns " of an L4 24 GB", " (title)", or nothing for a plain size.
static std::string device_phrase(const MemoryLimit& memory) {
  if (memory.device.empty()) return memory.title.ends_with("iB") ? "" : " (" + memory.title + ")";
  std::string title = memory.title;
  for (const std::string_view maker : {"NVIDIA ", "AMD ", "GeForce "}) {
    if (title.starts_with(maker)) title.erase(0, maker.size());
  }
  // Titles pronounced with a leading vowel sound: an H100, an L4, an RTX 4090, an MI300X.
  const bool vowel = std::string_view("AEFHILMNORSX8").find(title.front()) != std::string_view::npos;
  return fmt::format(" of {} {}", vowel ? "an" : "a", title);
}

std::optional<MemoryFit> fits(const Profile& profile) {
  if (!profile.limit) return std::nullopt;
  const bool allocator = !profile.device.is_cpu();
  MemoryFit answer{.memory = *profile.limit};
  if (allocator) {
    if (!profile.unlimited_bytes) return std::nullopt;
    answer.bytes = profile.limited_bytes.value_or(*profile.unlimited_bytes);
    if (const auto run = bytes_of_run(profile)) answer.bytes = *run;
  } else {
    answer.bytes = std::max(profile.peak_with_scratch.bytes, profile.leading_peak().bytes);
  }
  const bool out_of_memory = !profile.out_of_memory.empty() || (profile.run && !profile.run->out_of_memory.empty());
  answer.at_least = !profile.unknown_scratch.empty();
  answer.fits = !out_of_memory && answer.bytes <= answer.memory.bytes;
  if (allocator && answer.fits && *profile.unlimited_bytes > answer.memory.bytes) {
    answer.without_releasing = profile.unlimited_bytes;
  }
  const std::string step = profile.mode == ProgramMode::kTrain ? "steady state, " : "";
  answer.with = step + (allocator ? "with allocator and context" : "live tensors and known scratch");
  return answer;
}

std::string to_text(const MemoryFit& fits) {
  const int64_t unit = fits.memory.bytes >= kMebibyte * 1024 ? kMebibyte * 1024 : kMebibyte;
  std::string text =
      fmt::format("{}: {}{} of {} {}{} ({})", fits.fits ? "fits" : "does not fit", fits.at_least ? "at least " : "",
                  in_unit(fits.bytes, unit), in_unit(fits.memory.bytes, unit), unit == kMebibyte ? "MiB" : "GiB",
                  device_phrase(fits.memory), fits.with);
  if (fits.without_releasing) {
    text += fmt::format("; only by releasing cached memory, which costs time: with more it would hold {} {}",
                        in_unit(*fits.without_releasing, unit), unit == kMebibyte ? "MiB" : "GiB");
  }
  return text;
}

std::string fit_summary(const Profile& profile) {
  const auto verdict = fits(profile);
  if (!verdict) return {};
  const bool asked = verdict->memory.requested;
  return to_text(*verdict) +
         (asked ? "\n\n" : "\n  memory of the device whose times are estimated; --memory compares with another\n\n");
}

nlohmann::json to_json(const MemoryFit& fits) {
  nlohmann::json object{{"fits", fits.fits},
                        {"bytes", fits.bytes},
                        {"memory_bytes", fits.memory.bytes},
                        {"memory", fits.memory.title},
                        {"requested", fits.memory.requested},
                        {"with", fits.with},
                        {"at_least", fits.at_least},
                        {"text", to_text(fits)}};
  if (!fits.memory.device.empty()) object["device"] = fits.memory.device;
  if (fits.without_releasing) object["bytes_without_releasing"] = *fits.without_releasing;
  return object;
}

namespace {

// Sizes to capture for fitting. Sequence lengths are multiples of the kernels' padding, so padding is a polynomial too.
constexpr int64_t kSeqStep = 64;
// Four values of each: three determine a quadratic, one more checks it.
constexpr std::pair<int64_t, int64_t> kGridSamples[] = {
    {2, kSeqStep},     {3, kSeqStep},     {5, kSeqStep},     {7, kSeqStep},     {2, 2 * kSeqStep},
    {3, 2 * kSeqStep}, {2, 3 * kSeqStep}, {5, 3 * kSeqStep}, {2, 4 * kSeqStep},
};

NamedSizes named_sizes(int64_t batch, int64_t seq) { return {{"batch", batch}, {"seq", seq}}; }

class GridCosts {
 public:
  GridCosts(const CaptureAtSizes& capture, SizeGrid& grid) : capture_(capture), grid_(grid) { learn(); }

  // Returns nullopt if the program cannot run at these sizes.
  std::optional<int64_t> bytes(int64_t batch, int64_t seq) {
    const auto [entry, added] = known_.try_emplace({batch, seq});
    if (added) entry->second = work_out(batch, seq);
    return entry->second;
  }
  bool fits(int64_t batch, int64_t seq) {
    const auto held = bytes(batch, seq);
    return held && *held <= grid_.request.memory.bytes;
  }

 private:
  Graph captured(int64_t batch, int64_t seq) {
    Graph graph = capture_(batch, seq);
    ++grid_.captures;
    return graph;
  }

  void learn() {
    std::vector<SizedGraph> samples;
    for (const auto& [batch, seq] : kGridSamples) samples.push_back({named_sizes(batch, seq), captured(batch, seq)});
    try {
      symbolic_ = SymbolicGraph::fit(std::move(samples));
    } catch (const UnsupportedError& error) {
      grid_.why_captured = error.what();
      return;
    }
    const int64_t batch = grid_.request.batches.back();
    const int64_t seq = grid_.request.seqs.back();
    if (!symbolic_->refusal(named_sizes(batch, seq))) {
      try {
        if (const auto other = symbolic_->difference_from(named_sizes(batch, seq), captured(batch, seq))) {
          grid_.why_captured = fmt::format(
              "at batch {} and sequence {} the program differs from that at small sizes: {}", batch, seq, *other);
          return;
        }
      } catch (const std::exception& error) {  // beyond the sizes that the model supports
        say(error);
        grid_.why_captured = "the model does not support the largest sizes of the range";
        return;
      }
    }
    sweep_.emplace(*symbolic_, grid_.request.device_memory());
  }

  std::optional<int64_t> work_out(int64_t batch, int64_t seq) {
    if (sweep_ && !symbolic_->refusal(named_sizes(batch, seq))) {
      return bytes_of(sweep_->at(named_sizes(batch, seq)), grid_.request.by);
    }
    std::optional<Graph> graph;
    try {
      graph = captured(batch, seq);
    } catch (const std::exception& error) {
      if (grid_.captures == 0) throw;
      say(error);
      return std::nullopt;
    }
    return bytes_of(size_cost(*graph, grid_.request.device_memory()), grid_.request.by);
  }

  void say(const std::exception& error) {
    grid_.limit = message_of(error);
    grid_.limit = grid_.limit.substr(0, grid_.limit.find('\n'));
  }

  const CaptureAtSizes& capture_;
  SizeGrid& grid_;
  std::optional<SymbolicGraph> symbolic_;
  std::optional<SizeSweep> sweep_;
  std::map<std::pair<int64_t, int64_t>, std::optional<int64_t>> known_;
};

// Returns the largest of first, first + step, ..., `last` that fits; 0 if none does.
template <class MemoryFit>
int64_t largest_that(int64_t first, int64_t last, int64_t step, const MemoryFit& fits) {
  if (!fits(first)) return 0;
  int64_t good = 0;  // in steps from the first
  int64_t bad = (last - first) / step + 1;
  while (bad - good > 1) {
    const int64_t middle = good + (bad - good) / 2;
    (fits(first + middle * step) ? good : bad) = middle;
  }
  return first + good * step;
}

std::string size_text(int64_t size, int64_t last) {
  return size == 0 ? "-" : fmt::format("{}{}", size, size == last ? "+" : "");
}

}  // namespace

std::vector<int64_t> doubling_sizes(int64_t first, int64_t last) {
  std::vector<int64_t> sizes;
  for (int64_t size = first; size < last; size *= 2) sizes.push_back(size);
  sizes.push_back(last);
  return sizes;
}

SizeGrid SizeGrid::of(const CaptureAtSizes& capture, const SizeGridRequest& request) {
  if (request.batches.empty() || request.seqs.empty())
    throw Error("the size grid is empty; give at least one batch size and one sequence length");
  SizeGrid grid{.request = request};
  GridCosts costs(capture, grid);
  const std::vector<int64_t>& batches = request.batches;
  const std::vector<int64_t>& seqs = request.seqs;
  for (const int64_t batch : batches) {
    auto& row = grid.cells.emplace_back();
    for (const int64_t seq : seqs) row.push_back({costs.bytes(batch, seq), costs.fits(batch, seq)});
  }
  for (const int64_t seq : seqs) {
    grid.largest_batch.push_back(
        largest_that(batches.front(), batches.back(), 1, [&](int64_t batch) { return costs.fits(batch, seq); }));
  }
  const int64_t step = seqs.front() % kSeqStep == 0 ? kSeqStep : 1;
  for (const int64_t batch : batches) {
    grid.largest_seq.push_back(
        largest_that(seqs.front(), seqs.back(), step, [&](int64_t seq) { return costs.fits(batch, seq); }));
  }
  return grid;
}

std::string to_text(const SizeGrid& grid) {
  const SizeGridRequest& request = grid.request;
  std::string text = fmt::format("{:>13}", "batch \\ seq");
  for (const int64_t seq : request.seqs) text += fmt::format("{:>11}", seq);
  text += fmt::format("{:>13}\n", "largest seq");
  for (size_t row = 0; row < request.batches.size(); ++row) {
    text += fmt::format("{:>13}", request.batches[row]);
    for (const SizeGridCell& cell : grid.cells[row]) {
      text += fmt::format("{:>11}", !cell.bytes ? "none" : cell.fits ? human_bytes(*cell.bytes) : "-");
    }
    text += fmt::format("{:>13}\n", size_text(grid.largest_seq[row], request.seqs.back()));
  }
  text += fmt::format("{:>13}", "largest batch");
  for (const int64_t batch : grid.largest_batch)
    text += fmt::format("{:>11}", size_text(batch, request.batches.back()));
  text += fmt::format("\n\n-: does not fit; +: the largest size of the range fits; {} captures\n", grid.captures);
  if (!grid.limit.empty()) text += "none: the model does not support these sizes: " + grid.limit + "\n";
  if (!grid.why_captured.empty()) {
    text += "The program changes with these sizes, so each size was captured:\n" +
            grid.why_captured.substr(0, grid.why_captured.find('\n')) + "\n";
  }
  return text;
}

nlohmann::json to_json(const SizeGrid& grid) {
  const SizeGridRequest& request = grid.request;
  nlohmann::json cells = nlohmann::json::array();
  for (size_t row = 0; row < request.batches.size(); ++row) {
    for (size_t column = 0; column < request.seqs.size(); ++column) {
      const SizeGridCell& cell = grid.cells[row][column];
      cells.push_back({{"batch", request.batches[row]}, {"seq", request.seqs[column]}, {"fits", cell.fits}});
      if (cell.bytes) cells.back()["bytes"] = *cell.bytes;
    }
  }
  nlohmann::json object{{"memory_limit", request.memory.bytes},
                        {"by", to_string(request.by)},
                        {"cells", std::move(cells)},
                        {"captures", grid.captures}};
  for (size_t i = 0; i < request.seqs.size(); ++i) {
    object["largest_batch"].push_back({{"seq", request.seqs[i]}, {"batch", grid.largest_batch[i]}});
  }
  for (size_t i = 0; i < request.batches.size(); ++i) {
    object["largest_seq"].push_back({{"batch", request.batches[i]}, {"seq", grid.largest_seq[i]}});
  }
  if (!request.memory.device.empty()) object["device"] = request.memory.device;
  if (!grid.why_captured.empty()) object["why_captured"] = grid.why_captured;
  if (!grid.limit.empty()) object["limit"] = grid.limit;
  return object;
}

// Returns sizes for fitting: powers of two of each size, one more value to check, and a point off the grid. Enough for
// costs linear in batch and quadratic in sequence length. Evaluating a graph at a size is cheap.
static std::vector<std::vector<int64_t>> sample_points(const SymbolicGraph& symbolic) {
  std::vector<std::vector<int64_t>> points{{}};
  for (const auto& dimension : symbolic.dimensions()) {
    std::vector<std::vector<int64_t>> longer;
    for (const auto& point : points) {
      for (const int64_t k : {0, 1, 2, 5}) {
        longer.push_back(point);
        longer.back().push_back(dimension.smallest + k * dimension.step);
      }
    }
    points = std::move(longer);
  }
  auto& off = points.emplace_back();
  for (const auto& dimension : symbolic.dimensions()) off.push_back(dimension.smallest + 9 * dimension.step);
  return points;
}

static NamedSizes named(const SymbolicGraph& symbolic, const std::vector<int64_t>& point) {
  NamedSizes sizes;
  for (size_t i = 0; i < point.size(); ++i) sizes.emplace(symbolic.dimensions()[i].name, point[i]);
  return sizes;
}

constexpr std::array<int64_t NodeFlops::*, 4> kKinds = {&NodeFlops::matmul, &NodeFlops::elementwise,
                                                        &NodeFlops::transcendental, &NodeFlops::beyond_pytorch};

static int64_t steady_peak(const Graph& graph, const MemoryTimeline& timeline) {
  const auto steady = steady_state(graph, timeline);
  return steady ? steady->peak.bytes : timeline.peak().bytes;
}

// Returns the memory of a run on a device of unlimited memory, or if it exceeds the capacity, of one that releases
// cached blocks in time, if possible.
static DeviceMemory memory_within(const ProgramCosts& costs, DeviceMemoryOptions options) {
  const int64_t capacity = std::exchange(options.capacity, AllocatorSettings::kUnlimited);
  DeviceMemory memory = device_memory(costs, options);
  if (memory.footprint() <= capacity) return memory;
  options.capacity = capacity;
  try {
    return device_memory(costs, options);
  } catch (const OutOfMemoryError&) {
    return memory;
  }
}

static void add(SizeCost& cost, const DeviceMemory& memory) {
  cost.reserved_bytes = memory.reserved_peak;
  cost.footprint_bytes = memory.footprint();
}

SizeCost size_cost(const Profile& profile) {
  SizeCost cost{.peak_bytes = profile.leading_peak().bytes, .saved_bytes = profile.saved.activations};
  for (const auto& [phase, flops] : profile.flops) cost.flops += flops;
  if (profile.device_memory) add(cost, *profile.device_memory);
  if (profile.time() != nullptr) cost.seconds = profile.time()->seconds();
  return cost;
}

SizeCost size_cost(const Graph& graph, const DeviceMemoryOptions& memory, const DeviceSpec* spec) {
  ProfileOptions options{.top_at_peak = 0, .device = memory.device, .memory = memory, .spec = spec};
  options.memory.capacity = AllocatorSettings::kUnlimited;
  SizeCost cost = size_cost(profile(graph, options));
  if (cost.footprint_bytes.value_or(0) <= memory.capacity) return cost;
  options.memory.capacity = memory.capacity;
  const Profile limited = profile(graph, options);
  if (limited.device_memory) add(cost, *limited.device_memory);
  return cost;
}

int64_t capacity_of(const MemoryLimit& limit, MemoryMetric bytes, const DeviceAssumptions& assumptions) {
  if (bytes == MemoryMetric::kLive) return AllocatorSettings::kUnlimited;
  return limit.bytes + (bytes == MemoryMetric::kReserved ? assumptions.context : 0);
}

DeviceMemoryOptions SizeGridRequest::device_memory() const {
  return {.device = device,
          .allocator = allocator,
          .capacity = capacity_of(memory, by, assumptions),
          .assumptions = assumptions};
}

int64_t bytes_of(const SizeCost& cost, MemoryMetric bytes) {
  if (bytes == MemoryMetric::kLive) return cost.peak_bytes;
  const auto& asked = bytes == MemoryMetric::kReserved ? cost.reserved_bytes : cost.footprint_bytes;
  if (!asked)
    throw Error(
        fmt::format("--by {}: a CPU has no caching allocator; use --by live, or --device cuda", to_string(bytes)));
  return *asked;
}

SizeSweep::SizeSweep(const SymbolicGraph& symbolic, const DeviceMemoryOptions& memory, const DeviceSpec* spec)
    : symbolic_(symbolic), instance_(symbolic), memory_(memory), spec_(spec) {
  memory_.device = main_device(symbolic.base(), memory.device);
  const auto points = sample_points(symbolic);
  const PolynomialFit fit(points);
  std::vector<Flops> samples;
  for (const auto& point : points) samples.push_back(Flops::of(instance_.at(named(symbolic, point))));
  std::vector<int64_t> row(points.size());
  const auto fitted = [&](auto&& value) {
    for (size_t i = 0; i < points.size(); ++i) row[i] = value(samples[i]);
    return fit.of(row);
  };
  const Graph& graph = instance_.graph();
  std::map<std::vector<int64_t>, std::optional<Polynomial>> known;  // memoized: many nodes have equal costs
  for (const NodeId node : graph.nodes()) {
    for (size_t i = 0; i < points.size(); ++i) row[i] = samples[i].of(node).matmul;
    if (std::ranges::all_of(row, [](int64_t flops) { return flops == 0; })) {
      by_node_[node] = Polynomial();
      continue;
    }
    const auto [entry, added] = known.try_emplace(row);
    if (added) entry->second = fit.of(row);
    by_node_[node] = entry->second;
  }
  for (uint32_t i = 0; i < graph.phase_count(); ++i) {
    by_phase_[PhaseId(i)] = fitted([&](const Flops& flops) { return flops.of_phase(PhaseId(i)).matmul; });
  }
  for (size_t k = 0; k < kKinds.size(); ++k) {
    total_[k] = fitted([&](const Flops& flops) { return flops.total().*kKinds[k]; });
  }
}

SizeCost SizeSweep::at(const NamedSizes& sizes) {
  const Graph& graph = instance_.at(sizes);
  SizeCost cost;
  cost.saved_bytes = SavedBytes::of(graph).activations;
  const ProgramCosts costs(graph);
  cost.peak_bytes = steady_peak(graph, costs.timeline(memory_.device));
  if (!memory_.device->is_cpu()) add(cost, memory_within(costs, memory_));
  if (spec_ != nullptr) cost.seconds = StepTime::of(costs, *spec_).seconds();
  std::vector<int64_t> point;
  for (const auto& [name, size] : sizes) point.push_back(size);
  std::optional<NodeFlops> counted;
  for (size_t k = 0; k < kKinds.size(); ++k) {
    if (total_[k]) {
      cost.flops.*kKinds[k] = total_[k]->evaluate(point);
      continue;
    }
    if (!counted) counted = Flops::of(graph).total();
    cost.flops.*kKinds[k] = (*counted).*kKinds[k];
  }
  return cost;
}

std::string SizeSweep::flops_text(PhaseId phase) const {
  if (!by_phase_[phase]) return "no polynomial";
  std::vector<std::string> names;
  for (const auto& dimension : symbolic_.dimensions()) names.push_back(dimension.name);
  return by_phase_[phase]->to_text(names);
}

}  // namespace shadowgraph
