// The pass `checkpoint`: which segments its options mean, and what they came to.
//
// In a captured step the policy sees the graph as it is. For a forward graph it sees the step that autograd would make of
// it (assumed_step.cpp), where the same regions and nodes have the same ids.
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <optional>

#include "passes/checkpoint/forward_checkpoints.h"
#include "passes/checkpoint/region_names.h"
#include "shadowgraph/analysis/recompute_regions.h"
#include "shadowgraph/edit/copy.h"
#include "shadowgraph/passes/checkpoint.h"
#include "shadowgraph/passes/checkpoint_curve.h"

namespace shadowgraph {
namespace {

using Policy = CheckpointModulesOptions::Policy;

// "" may match nothing: no region is marked as a checkpoint.
std::vector<RegionId> named_regions(const Graph& graph, const std::string& patterns) {
  return patterns.empty() ? regions_named(graph, patterns) : regions_that_match(graph, patterns);
}

CheckpointPolicy policy_of(const CheckpointModulesOptions& options, bool whole_stages) {
  switch (options.policy) {
    case Policy::kEach:
      return each_region();
    case Policy::kEvery:
      return every_kth_region(options.every);
    case Policy::kSqrt:
      return square_root_segments();
    case Policy::kBudget:
      return within_budget(options.bytes);
    case Policy::kOptimal:
      break;
  }
  return least_recompute(options.bytes, {.chain = {.whole_stages = whole_stages}});
}

bool has_checkpoints(const Graph& graph) {
  for (const NodeId n : graph.nodes()) {
    for (RegionId r = graph.node(n).region; r.valid(); r = graph.region(r).parent) {
      if (graph.region(r).kind == RegionKind::kCheckpoint) return true;
    }
  }
  return false;
}

bool plans_for_bytes(const CheckpointModulesOptions& options) {
  return options.policy == Policy::kBudget || options.policy == Policy::kOptimal;
}

std::string warning_about(const CheckpointResult& done, const std::vector<CheckpointSegment>& segments,
                          const CheckpointModulesOptions& options) {
  if (done.segments != 0 || done.offloaded != 0) return "";
  if (segments.empty()) {
    return plans_for_bytes(options) ? "" : "no region of the graph is marked as a checkpoint, and no modules are named";
  }
  const std::string why =
      done.obstacles.empty() ? "backward reads nothing that they make" : done.obstacles.begin()->first;
  return fmt::format("nothing is computed again for {} segments ({}, ...): {}", segments.size(), segments[0].name, why);
}

// A forward that nobody differentiates: autograd keeps nothing.
CheckpointResult checkpoint_inference(const Graph& graph, const CheckpointModulesOptions& options) {
  const std::string why =
      "no output of this forward graph has a gradient, so no checkpoint can save anything; capture it with gradients "
      "on";
  const int64_t peak = peak_of_live_bytes(graph);
  CheckpointResult nothing;
  if (!plans_for_bytes(options)) {
    nothing.warning = why;
  } else if (peak > options.bytes) {
    throw Error(fmt::format("the budget is {} bytes, and the peak is {}: {}", options.bytes, peak, why));
  }
  return nothing;
}

// What a checkpoint dropped is no longer in the graph, so the peak of its backward is not known.
CheckpointResult checkpoint_forward(Graph& graph, const CheckpointModulesOptions& options) {
  const std::vector<RegionId> regions = named_regions(graph, options.modules);
  if (!has_gradients(graph)) return checkpoint_inference(graph, options);
  const bool checkpointed = has_checkpoints(graph);
  if (checkpointed && plans_for_bytes(options)) {
    throw Error(
        "this forward graph has checkpoints already, and what they compute again is not known: plan for bytes on a "
        "graph "
        "without");
  }
  const Graph step = assumed_step(graph);
  const std::vector<CheckpointSegment> segments = policy_of(options, /*whole_stages=*/true)(step, regions);
  Graph rewritten = clone(graph);
  MarkedSegments marked = mark_segments(rewritten, segments);
  CheckpointResult& done = marked.result;
  done.saved_before = bytes_kept_for_backward(graph);
  done.saved_after = bytes_kept_for_backward(rewritten);
  if (!checkpointed) {
    Graph planned = clone(step);
    if (!marked.segments.empty()) checkpoint_segments(planned, marked.segments);
    done.peak_before = peak_of_live_bytes(step);
    done.peak_after = peak_of_live_bytes(planned);
  }
  if (options.policy == Policy::kBudget && !done.obstacles.empty() && done.peak_after > options.bytes) {
    throw Error(fmt::format("the budget is {} bytes, but {} of {} segments cannot run twice ({}, ...): the peak is {}",
                            options.bytes, segments.size() - marked.segments.size(), segments.size(),
                            done.obstacles.begin()->first, done.peak_after));
  }
  graph = std::move(rewritten);
  done.warning = warning_about(done, segments, options);
  return std::move(done);
}

}  // namespace

// Takes GiB and GB apart: 40GB, as it stands on a card, is 7 % less than 40GiB.
int64_t bytes_from_text(const std::string& text) {
  static const std::map<std::string, double, std::less<>> kUnits = {
      {"", 1},      {"B", 1},    {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0}, {"TiB", 1099511627776.0},
      {"KB", 1000}, {"MB", 1e6}, {"GB", 1e9},     {"TB", 1e12},
  };
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string unit(end, static_cast<const char*>(text.data() + text.size()));
  std::erase(unit, ' ');
  const auto factor = kUnits.find(unit);
  if (error != std::errc() || factor == kUnits.end() || !(number * factor->second >= 1) ||
      number * factor->second > 9e18) {
    throw Error(
        fmt::format("bytes={} is no size: a number of at least 1, with a unit such as GiB or GB, or without", text));
  }
  return static_cast<int64_t>(std::floor(number * factor->second));
}

CheckpointResult checkpoint_modules(Graph& graph, const CheckpointModulesOptions& options) {
  if (is_forward_alone(graph)) return checkpoint_forward(graph, options);
  const std::vector<RegionId> regions = named_regions(graph, options.modules);
  const std::vector<CheckpointSegment> segments = policy_of(options, /*whole_stages=*/false)(graph, regions);
  const int64_t before = peak_of_live_bytes(graph);
  CheckpointResult done = checkpoint_segments(graph, segments);
  if (done.segments != 0 || done.offloaded != 0) {
    done.peak_before = before;
    done.peak_after = peak_of_live_bytes(graph);
  }
  done.warning = warning_about(done, segments, options);
  return done;
}

PassResult CheckpointResult::summary() const {
  PassResult summary{.changed = segments != 0 || offloaded != 0,
                     .counters = {{"segments", segments},
                                  {"recomputed", recomputed},
                                  {"redirected", redirected},
                                  {"kept", kept},
                                  {"random_states", random_states},
                                  {"offloaded", offloaded}}};
  if (summary.changed && peak_before != 0) {
    summary.report = fmt::format("peak of live bytes: {} before, {} after\n", peak_before, peak_after);
  }
  if (summary.changed && saved_before != 0) {
    summary.report += fmt::format("bytes saved for backward: {} before, {} after\n", saved_before, saved_after);
  }
  for (const auto& [what, count] : obstacles) summary.report += fmt::format("kept {} x {}\n", count, what);
  if (!warning.empty()) summary.warnings.push_back(warning);
  return summary;
}

}  // namespace shadowgraph
