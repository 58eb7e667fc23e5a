// `shadowgraph checkpoint`: plans activation checkpointing.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

#include "cli/option_checks.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/source_options.h"
#include "cli/verbs.h"
#include "shadowgraph/draw/draw.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/fits.h"
#include "shadowgraph/profile/profile.h"
#include "shadowgraph/profile/recompute.h"
#include "shadowgraph/profile/step_time.h"

namespace shadowgraph::cli {
namespace {

enum class RecomputeCost : uint8_t { kFlops, kTime };  // time: on the device `spec`
constexpr auto enum_names(RecomputeCost) { return names_in_order<RecomputeCost>("flops", "time"); }

struct CheckpointRequest {
  CaptureRequest capture{.mode = CaptureMode::kTrain};
  std::string modules;                // modules that become stages; empty: detected
  std::optional<int64_t> bytes;       // limit of live tensor bytes for the cheapest plan
  std::optional<MemoryLimit> memory;  // limit for the cheapest plan, with allocator and context
  bool pareto = false;                // the whole curve
  RecomputeCost cost = RecomputeCost::kFlops;
  std::string spec;                       // device name or spec file; empty: by the graph's device
  std::optional<int64_t> link_bandwidth;  // B/s in each direction; empty: no offloading
  std::string output;                     // graph file for the step with the plan applied
  std::string picture;                    // SVG file of the curve
  std::string chain;                      // JSON file
  std::string module_statistics;          // JSON file
  bool json = false;

  bool plans() const { return pareto || one_plan() || !picture.empty(); }
  bool one_plan() const { return bytes || memory; }
  bool by_time() const { return cost == RecomputeCost::kTime; }
};

// Returns the device of the graph, or of its largest storage.
c10::DeviceType device_of(const Graph& graph) {
  if (graph.metadata.device) return graph.metadata.device->type();
  const Storage* largest = nullptr;
  for (uint32_t i = 0; i < graph.storage_count(); ++i) {
    const Storage& storage = graph.storage(StorageId(i));
    if (largest == nullptr || storage.bytes > largest->bytes) largest = &storage;
  }
  return largest == nullptr ? c10::kCPU : largest->device_type;
}

bool has_backward(const Graph& graph) {
  return std::ranges::any_of(graph.nodes(), [&](NodeId n) { return graph.node(n).phase == Graph::kBackward; });
}

std::vector<RegionId> stages_named(const Graph& graph, const std::string& modules) {
  if (modules.empty()) return {};
  std::vector<RegionId> regions = regions_named(graph, modules);
  if (regions.empty()) throw Error("--modules " + modules + ": no module matches");
  return regions;
}

void check(const CheckpointRequest& request) {
  if (!request.plans() && request.chain.empty() && request.module_statistics.empty()) {
    throw Error("nothing to do: give --pareto, --memory, --bytes, --svg, --chain or --module-statistics");
  }
  if (!request.output.empty() && !request.one_plan()) throw Error("-o requires --memory or --bytes");
  if (request.bytes && request.memory) throw Error("--memory and --bytes cannot be combined; give one of them");
}

CheckpointCurveOptions curve_options(const CheckpointRequest& request, const StepTime* times) {
  CheckpointCurveOptions options;
  if (request.by_time()) {
    if (times == nullptr)
      throw Error("--cost time: no spec for this device; choose one with --spec (see 'shadowgraph list devices')");
    options.chain.cost = nanoseconds(*times);
  }
  if (request.link_bandwidth) {
    if (!request.by_time()) throw Error("--link-bandwidth requires --cost time");
    options.chain.link = static_cast<double>(*request.link_bandwidth) * 1e-9;
  }
  return options;
}

Graph apply_choice(const Graph& graph, const CheckpointChoice& choice, bool say) {
  Graph rewritten = clone(graph);
  for (const auto& [what, count] : checkpoint_segments(rewritten, choice.segments).obstacles) {
    if (say) print_log("shadowgraph: not recomputed, {} x {}\n", count, what);
  }
  return rewritten;
}

// Returns the cheapest plan that fits into --memory, including the caching allocator's overhead.
const CheckpointChoice& choice_that_fits(const CheckpointRequest& request, const Graph& graph,
                                         const CheckpointCurve& curve) {
  if (!has_backward(graph)) {
    throw Error("--memory requires a step with backward: capture with --mode train, or use --bytes");
  }
  std::optional<MemoryFit> last;
  ProfileOptions options{.top_at_peak = 0, .limit = request.memory};
  if (!request.memory->device.empty()) {
    options.memory.assumptions = DeviceAssumptions::of(DeviceSpec::named(request.memory->device));
  }
  for (const CheckpointChoice& choice : curve.choices()) {
    const Graph rewritten = apply_choice(graph, choice, false);
    last = fits(profile(rewritten, options));
    if (!last || !last->fits) continue;
    print_log("shadowgraph: {}\n", to_text(*last));
    return choice;
  }
  throw Error("no plan fits; give more memory, or use a smaller batch. The plan with the lowest peak " +
              (last ? to_text(*last) : "is not known"));
}

const CheckpointChoice& choice_within(const CheckpointRequest& request, const CheckpointCurve& curve,
                                      const RecomputeCurve& figures) {
  if (const CheckpointChoice* choice = curve.within(*request.bytes)) return *choice;
  throw Error(fmt::format(
      "no plan fits in {}: the lowest peak is {}, of which {} (parameters, inputs, ...) do not depend on the plan; "
      "give more memory, or use a smaller batch",
      human_bytes(*request.bytes), human_bytes(figures.points.back().peak), human_bytes(figures.elsewhere)));
}

// Writes `graph` with the plan that fits --bytes or --memory. Without --pareto, drops other points from `figures`.
void choose(const CheckpointRequest& request, const Graph& graph, const CheckpointCurve& curve,
            RecomputeCurve& figures) {
  const CheckpointChoice& choice =
      request.memory ? choice_that_fits(request, graph, curve) : choice_within(request, curve, figures);
  if (!request.output.empty()) write_graph_file(request.output, apply_choice(graph, choice, true));
  if (!request.pareto) {
    figures.points = {figures.points[static_cast<size_t>(&choice - curve.choices().data())]};
    figures.others.clear();
  }
}

int checkpoint(const CheckpointRequest& request) {
  check(request);
  const LoadedGraph loaded = load(request.capture);
  // A forward-only graph is planned as the step that autograd would derive from it.
  const bool forward = !has_backward(loaded.graph);
  const std::optional<Graph> assumed = forward ? std::optional(assumed_step(loaded.graph)) : std::nullopt;
  const Graph& graph = assumed ? *assumed : loaded.graph;
  const auto spec = Machine::find(request.spec, {}, {}, device_of(graph)).device;
  std::optional<StepTime> time;
  if (spec) time = StepTime::of(graph, *spec);
  const StepTime* times = time ? &*time : nullptr;
  CheckpointCurveOptions options = curve_options(request, times);
  options.chain.whole_stages = forward;
  const std::vector<RegionId> regions = stages_named(graph, request.modules);
  if (!request.chain.empty()) {
    const CheckpointChain chain = CheckpointChain::of(graph, regions, options.chain);
    write_file(request.chain, json_text(chain_json(graph, chain, times)));
  }
  if (!request.module_statistics.empty()) {
    if (times == nullptr)
      throw Error(
          "--module-statistics: no spec for this device; choose one with --spec (see 'shadowgraph list devices')");
    write_file(request.module_statistics, json_text(sac_ilp_module_info(graph, *time)));
  }
  if (!request.plans()) return 0;

  const CheckpointCurve curve =
      with_progress("planning recompute", [&] { return CheckpointCurve::of(graph, regions, options); });
  RecomputeCurve figures = RecomputeCurve::of(graph, curve, times);
  if (!request.picture.empty()) {
    write_file(request.picture, to_svg(figures, loaded.name + ": peak memory against recompute"));
  }
  if (request.one_plan()) choose(request, loaded.graph, curve, figures);
  if (request.pareto || request.one_plan()) print_text(request.json ? json_text(to_json(figures)) : to_text(figures));
  return 0;
}

void add_options(CLI::App& command, CheckpointRequest& request) {
  add_source(command, request.capture);
  add_capture_options(command, request.capture);
  add_spec_option(command, request.spec);
  add_bytes(command, "--link-bandwidth", request.link_bandwidth,
            "With --cost time: host link bandwidth in bytes/s, 25GB; also considers offloading to CPU");
  begin_group(command, "Plan");
  command.add_flag("--pareto", request.pareto, "Print the Pareto curve of peak memory against recompute cost");
  add_memory(command, request.memory, "Recompute as little as possible so that the step fits in a device: l4, 24GiB");
  add_bytes(command, "--bytes", request.bytes, "The same for live tensor bytes only: 40GB");
  command.add_option("--modules", request.modules,
                     "Modules to recompute in full or in part: 'transformer.h.*', auto (default: detected)");
  add_choice(command, "--cost", request.cost, "Recompute cost to minimize: flops, or time on the --spec device");
  begin_group(command, kOutput);
  command.add_option("-o,--output", request.output,
                     "With --memory or --bytes: write the graph with the plan applied to this file");
  command.add_option("--svg", request.picture, "Plot the curve to this SVG file");
  command.add_option("--chain", request.chain,
                     "Write the step as a chain of stages to this JSON file, for other solvers");
  command.add_option("--module-statistics", request.module_statistics,
                     "Write module statistics for torch.distributed._tools.sac_ilp to this JSON file");
  command.add_flag("--json", request.json, "Print JSON");
  command.footer(
      "Examples:\n"
      "  shadowgraph checkpoint gpt2 --batch 8 --seq 1024 --pareto --svg curve.svg\n"
      "  shadowgraph checkpoint step.sg --memory l4 -o smaller.sg");
}

}  // namespace

Work declare_checkpoint(CLI::App& command) { return work_of<CheckpointRequest>(command, add_options, checkpoint); }

}  // namespace shadowgraph::cli
