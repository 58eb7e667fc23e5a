#include "cli/size_sweep.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/output.h"
#include "cli/progress.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/fits.h"
#include "shadowgraph/profile/profile.h"
#include "support/stopwatch.h"
#include "support/text.h"

namespace shadowgraph::cli {
namespace {

// Batches captured for the fit: small, because ranges begin small and kernels may depend on the size; 1 is often a
// special case. The second set is for programs that change within the first.
constexpr int64_t kSamples[][4] = {{2, 3, 5, 7}, {16, 17, 19, 23}};

struct Row {
  int64_t batch = 0;
  SizeCost cost;
  bool captured = false;
};

class BatchProfile {
 public:
  BatchProfile(const CaptureRequest& request, const SweepRequest& sweep) : request_(request), range_(sweep.range) {
    memory_.allocator = AllocatorSettings::parse(sweep.allocator);
    if (request.device.is_cpu()) return;
    spec = Machine::find(sweep.spec, {}, sweep.memory).specs();
    memory_.assumptions = DeviceAssumptions::of(*spec);
    if (sweep.memory) memory_.capacity = capacity_of(*sweep.memory, sweep.by, memory_.assumptions);
  }

  void run() {
    fit();
    for (int64_t batch = range_.first; batch <= range_.last; batch += range_.step) rows.push_back(row(batch));
  }

  std::vector<Row> rows;
  std::string why_captured;  // why batches were captured instead of computed from the fit
  int64_t captures = 0;
  double fit_seconds = 0;
  std::optional<SymbolicGraph> symbolic;
  std::optional<SizeSweep> sweep;
  std::optional<DeviceSpec> spec;  // absent for a CPU

 private:
  Graph capture(int64_t batch) {
    CaptureRequest at = request_;
    at.batch = batch;
    ++captures;
    return load(at).graph;
  }

  void fit() {
    const Stopwatch watch;
    for (const auto& sizes : kSamples) {
      std::vector<SizedGraph> samples;
      for (const int64_t batch : sizes) samples.push_back({{{"batch", batch}}, capture(batch)});
      try {
        symbolic = SymbolicGraph::fit(std::move(samples));
        break;
      } catch (const UnsupportedError& error) {
        if (why_captured.empty()) why_captured = error.what();
      }
    }
    if (!symbolic) return;
    why_captured.clear();
    trusted_ = symbolic->dimensions()[0].largest;
    memory_.device = symbolic->base().metadata.device;
    sweep.emplace(*symbolic, memory_, spec ? &*spec : nullptr);
    const int64_t end = range_.first + (range_.last - range_.first) / range_.step * range_.step;
    if (end > trusted_) {
      if (const auto difference = symbolic->difference_from({{"batch", end}}, capture(end))) {
        why_captured = fmt::format("at batch {} the program differs from that at {}: {}", end, trusted_, *difference);
      } else {
        trusted_ = end;
      }
    }
    fit_seconds = watch.seconds();
  }

  Row row(int64_t batch) {
    if (sweep && batch <= trusted_ && !symbolic->refusal({{"batch", batch}})) {
      return {batch, sweep->at({{"batch", batch}})};
    }
    return {batch, size_cost(capture(batch), memory_, spec ? &*spec : nullptr), /*captured=*/true};
  }

  const CaptureRequest& request_;
  const SizeRange& range_;
  DeviceMemoryOptions memory_;
  int64_t trusted_ = 0;
};

nlohmann::json to_json(const BatchProfile& profile, const CaptureRequest& request, const Row* largest,
                       const SweepRequest& sweep) {
  nlohmann::json rows = nlohmann::json::array();
  for (const Row& row : profile.rows) {
    rows.push_back({{"batch", row.batch},
                    {"peak_bytes", row.cost.peak_bytes},
                    {"flops", row.cost.flops.matmul},
                    {"elementwise_flops", row.cost.flops.elementwise},
                    {"transcendental", row.cost.flops.transcendental},
                    {"saved_bytes", row.cost.saved_bytes},
                    {"captured", row.captured}});
    if (row.cost.seconds) rows.back()["seconds"] = *row.cost.seconds;
    if (row.cost.reserved_bytes) {
      rows.back()["reserved_bytes"] = *row.cost.reserved_bytes;
      rows.back()["footprint_bytes"] = *row.cost.footprint_bytes;
    }
  }
  nlohmann::json json{{"model", request.source},
                      {"mode", request.trains() ? "train" : "infer"},
                      {"captures", profile.captures},
                      {"fit_seconds", profile.fit_seconds},
                      {"batches", std::move(rows)}};
  if (profile.spec) json["spec"] = profile.spec->title;
  if (!profile.why_captured.empty()) json["why_captured"] = profile.why_captured;
  if (profile.sweep) {
    nlohmann::json flops;
    for (const PhaseId phase : {Graph::kForward, Graph::kBackward, Graph::kOptimizer}) {
      if (profile.sweep->matmul_flops(phase)) {
        flops[profile.symbolic->base().phase_name(phase)] = profile.sweep->flops_text(phase);
      }
    }
    json["flops_polynomials"] = std::move(flops);
  }
  if (sweep.memory) {
    json["memory_limit"] = sweep.memory->bytes;
    json["by"] = to_string(sweep.by);
    json["largest_batch"] = largest == nullptr ? nlohmann::json() : nlohmann::json(largest->batch);
  }
  return json;
}

}  // namespace

std::optional<SizeRange> parse_size_range(const std::string& text) {
  const size_t dots = text.find("..");
  const size_t colon = text.find(':');
  if (dots == text.npos) return std::nullopt;
  const auto first = parse_number<int64_t>(text.substr(0, dots));
  const auto last = parse_number<int64_t>(text.substr(dots + 2, colon - dots - 2));
  const auto step = colon == text.npos ? std::optional<int64_t>(1) : parse_number<int64_t>(text.substr(colon + 1));
  if (!first || !last || !step || *first < 1 || *last < *first || *step < 1) return std::nullopt;
  return SizeRange{*first, *last, *step};
}

void sweep_batches(const CaptureRequest& request, const SweepRequest& sweep) {
  if (kind_of_source(request.source) == SourceKind::kGraph) {
    throw Error("--batch A..B captures several batches and needs a model; " + request.source +
                " is a saved graph with one batch");
  }
  BatchProfile profile(request, sweep);
  with_progress("profiling " + request.source + " at several batches", [&] { profile.run(); });
  const Row* largest = nullptr;
  for (const Row& row : profile.rows) {
    if (sweep.memory && bytes_of(row.cost, sweep.by) <= sweep.memory->bytes) largest = &row;
  }
  if (sweep.json) {
    print_text(json_text(to_json(profile, request, largest, sweep)));
    return;
  }
  print_out("{:>8} {:>12} {:>12} {:>12} {:>12} {:>12}\n", "BATCH", "PEAK", "RESERVED", "SAVED", "FLOPS", "TIME A STEP");
  for (const Row& row : profile.rows) {
    print_out("{:>8} {:>12} {:>12} {:>12} {:>12} {:>12}{}\n", row.batch, human_bytes(row.cost.peak_bytes),
              row.cost.reserved_bytes ? human_bytes(*row.cost.reserved_bytes) : "-", human_bytes(row.cost.saved_bytes),
              human_count(row.cost.flops.matmul), row.cost.seconds ? human_seconds(*row.cost.seconds) : "-",
              row.captured ? "  captured" : "");
  }
  if (profile.spec) print_out("\nstep times are estimated for {}\n", profile.spec->title);
  if (profile.sweep) {
    print_out("\nFLOPs, as polynomials:");
    for (const PhaseId phase : {Graph::kForward, Graph::kBackward}) {
      if (profile.sweep->matmul_flops(phase) && !profile.sweep->matmul_flops(phase)->terms().empty()) {
        print_out(" {} {};", profile.symbolic->base().phase_name(phase), profile.sweep->flops_text(phase));
      }
    }
    print_out("\n{} captures in {:.3f} s; the last one confirms the fit\n", profile.captures, profile.fit_seconds);
  }
  if (!profile.why_captured.empty()) {
    print_out("\nThe program depends on the batch size, so some batches were captured individually:\n{}\n",
              profile.why_captured);
  }
  if (sweep.memory) {
    const std::string what(sweep.by == MemoryMetric::kDevice ? "on the device" : to_string(sweep.by));
    const std::string limit = human_bytes(sweep.memory->bytes);
    print_out("{}\n", largest == nullptr
                          ? "no batch of the range fits in " + limit + " (bytes " + what + ")"
                          : fmt::format("largest batch within {}: {}, with {} {} at the peak", limit, largest->batch,
                                        human_bytes(bytes_of(largest->cost, sweep.by)), what));
  }
}

}  // namespace shadowgraph::cli
