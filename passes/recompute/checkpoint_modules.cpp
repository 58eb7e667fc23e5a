// Selects the regions to checkpoint: by name, by mark, or by policy. Also contains the pass `free-at-last-use`.
//
// A policy gets the selected regions in program order, and returns segments: regions that are recomputed together.
// Names and fixed policies take a walk over the graph. `budget` makes log2(regions) copies of it, and `optimal`
// (checkpoint_curve.cpp) about 64; each is rewritten and its peak measured.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fnmatch.h>

#include "ir/edit/bulk_edits.h"
#include "passes/recompute/forward_checkpoints.h"
#include "passes/recompute/recompute_schedule.h"
#include "passes/recompute/regions.h"
#include "shadowgraph/graph/analysis.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/passes/recompute.h"
#include "shadowgraph/units.h"

namespace shadowgraph {

std::string name_of_region(const Graph& graph, RegionId region) {
  return std::string(graph.text_or_empty(graph.region(region).name));
}

std::vector<RegionId> nameable_regions(const Graph& graph) {
  const auto again = recompute_regions(graph);
  std::vector<bool> met(graph.region_count(), false);
  std::vector<RegionId> result;
  std::vector<RegionId> chain;
  for (const NodeId n : graph.nodes()) {
    if (graph.node(n).phase != Graph::kForward || again[graph.node(n).region].valid()) continue;
    // Climbs from the innermost region outwards, so the chain is reversed: parents are entered first.
    for (RegionId r = graph.node(n).region; r.valid() && !met[r.index]; r = graph.region(r).parent) {
      met[r.index] = true;
      chain.push_back(r);
    }
    for (; !chain.empty(); chain.pop_back()) {
      const RegionKind kind = graph.region(chain.back()).kind;
      if (kind == RegionKind::kModule || kind == RegionKind::kScope || kind == RegionKind::kCheckpoint) {
        result.push_back(chain.back());
      }
    }
  }
  return result;
}

std::string_view family_of(std::string_view path) {
  const size_t last = path.find_last_not_of("0123456789");
  // Requires a separator before the digits: "conv2d1" is a name, not number 1 of "conv2d".
  const bool numbered =
      last != std::string_view::npos && last + 1 < path.size() && last > 0 && (path[last] == '.' || path[last] == '_');
  return numbered ? path.substr(0, last) : std::string_view();
}

namespace {

// The longest family of numbered modules is nearly always the model's layers.
std::vector<RegionId> longest_family(const Graph& graph, const std::vector<RegionId>& nameable) {
  // Sorted, so that the choice between families of equal length is deterministic.
  std::map<std::string, std::vector<RegionId>> families;
  for (const RegionId r : nameable) {
    const std::string path = name_of_region(graph, r);
    const std::string_view family = family_of(path);
    if (graph.region(r).kind == RegionKind::kModule && !family.empty()) families[std::string(family)].push_back(r);
  }
  std::vector<RegionId> longest;
  for (auto& [name, regions] : families) {
    if (regions.size() > longest.size()) longest = std::move(regions);
  }
  return longest;
}

std::vector<std::string> split_at_plus(std::string_view text) {
  std::vector<std::string> parts;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find('+', at), text.size());
    if (end > at) parts.emplace_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

}  // namespace

std::vector<RegionId> regions_named(const Graph& graph, std::string_view patterns) {
  const std::vector<RegionId> nameable = nameable_regions(graph);
  if (patterns == "auto") return longest_family(graph, nameable);
  std::vector<bool> chosen(graph.region_count(), false);
  if (patterns.empty()) {
    for (const RegionId r : nameable) chosen[r.index] = graph.region(r).kind == RegionKind::kCheckpoint;
  }
  for (const std::string& pattern : split_at_plus(patterns)) {
    // whether it is inside a matching region; parents have smaller indices
    std::vector<bool> inside(graph.region_count(), false);
    std::vector<bool> matches(graph.region_count(), false);
    for (const RegionId r : nameable)
      matches[r.index] = fnmatch(pattern.c_str(), name_of_region(graph, r).c_str(), 0) == 0;
    for (uint32_t i = 1; i < graph.region_count(); ++i) {
      const RegionId parent = graph.region(RegionId(i)).parent;
      inside[i] = inside[parent.index] || matches[parent.index];
      // "layers.*" also matches "layers.0.attn"; a nested checkpoint would save nothing.
      if (matches[i] && !inside[i]) chosen[i] = true;
    }
  }
  std::vector<RegionId> result;
  for (const RegionId r : nameable) {
    if (chosen[r.index]) result.push_back(r);
  }
  return result;
}

std::vector<RegionId> regions_that_match(const Graph& graph, const std::string& patterns) {
  std::vector<RegionId> regions = regions_named(graph, patterns);
  if (!regions.empty()) return regions;
  std::string names;
  int listed = 0;
  for (const RegionId r : nameable_regions(graph)) {
    if (const std::string name = name_of_region(graph, r); !name.empty() && ++listed <= 12) names += "\n  " + name;
  }
  throw Error(fmt::format("no region matches modules={}{}{}", patterns,
                          names.empty() ? "; the graph has no named regions" : "; available regions include:", names));
}

CheckpointPolicy each_region() { return every_kth_region(1); }

CheckpointPolicy every_kth_region(int64_t k) {
  return [k](const Graph& graph, std::span<const RegionId> regions) {
    std::vector<CheckpointSegment> segments;
    for (size_t i = 0; i < regions.size(); i += static_cast<size_t>(k)) {
      segments.push_back({name_of_region(graph, regions[i]), {regions[i]}});
    }
    return segments;
  };
}

CheckpointPolicy square_root_segments() {
  return [](const Graph& graph, std::span<const RegionId> regions) {
    std::vector<CheckpointSegment> segments;
    // Only joins regions with the same parent: a segment across parents would split both.
    for (size_t begin = 0; begin < regions.size();) {
      size_t end = begin + 1;
      const RegionId parent = graph.region(regions[begin]).parent;
      while (end < regions.size() && graph.region(regions[end]).parent == parent) ++end;
      const size_t run = end - begin;
      // sqrt(n) segments of sqrt(n) regions balance kept memory and the memory of recomputing one segment.
      const auto parts = static_cast<size_t>(std::max(1.0, std::round(std::sqrt(static_cast<double>(run)))));
      for (size_t part = 0; part < parts; ++part) {
        const size_t from = begin + run * part / parts;
        const size_t to = begin + run * (part + 1) / parts;
        std::string name = name_of_region(graph, regions[from]);
        if (to - from > 1) name += " .. " + name_of_region(graph, regions[to - 1]);
        segments.push_back(
            {name,
             {regions.begin() + static_cast<std::ptrdiff_t>(from), regions.begin() + static_cast<std::ptrdiff_t>(to)}});
      }
      begin = end;
    }
    return segments;
  };
}

void check_countable(const Graph& graph) {
  int64_t bytes = 0;
  for (uint32_t i = 0; i < graph.storage_count(); ++i) bytes = saturating_add(bytes, graph.storage(StorageId(i)).bytes);
  if (bytes > kMaxSum) {
    throw Error(
        fmt::format("the total size of this graph's storages exceeds 2^58 bytes ({}), the limit for recompute plans; "
                    "check whether the file is damaged",
                    bytes));
  }
}

namespace {

// Sums allocations and frees along the program, without an allocator: one walk over a plan's copy.
template <class Counts>
int64_t peak_of(const Graph& graph, Counts&& counts) {
  check_countable(graph);
  IdMap<NodeId, int64_t> change;  // after a node, by node
  int64_t live = 0;
  for (uint32_t i = 0; i < graph.storage_count(); ++i) {
    const Storage& storage = graph.storage(StorageId(i));
    if (!counts(storage)) continue;
    const bool allocated_here =
        storage.born.valid() && !graph.is_erased(storage.born) && !graph.is_placeholder(storage.born);
    // Placeholders are alive before the first node.
    (allocated_here ? change[storage.born] : live) += storage.bytes;
  }
  int64_t peak = live;
  for (const NodeId n : graph.nodes()) {
    live += std::as_const(change)[n];
    peak = std::max(peak, live);
    for (const StorageId s : graph.frees(n)) {
      if (counts(graph.storage(s))) live -= graph.storage(s).bytes;
    }
  }
  return peak;
}

}  // namespace

int64_t peak_of_live_bytes(const Graph& graph) {
  return peak_of(graph, [](const Storage&) { return true; });
}

int64_t peak_of_live_bytes(const Graph& graph, c10::DeviceType device) {
  return peak_of(graph, [device](const Storage& storage) { return storage.device_type == device; });
}

// Checkpoints the first regions until the peak fits. The greedy baseline for least_recompute(), which compares regions.
CheckpointPolicy within_budget(int64_t bytes) {
  return [bytes](const Graph& graph, std::span<const RegionId> regions) {
    const auto all = each_region()(graph, regions);
    // Each attempt costs a copy of the graph, so bisect the number of regions: log2(regions) attempts.
    const auto peak_with = [&](size_t count) {
      Graph trial = clone(graph);
      checkpoint_segments(trial, std::span(all).first(count));
      return peak_of_live_bytes(trial);
    };
    const int64_t without = peak_of_live_bytes(graph);
    if (without <= bytes) return std::vector<CheckpointSegment>();
    const int64_t lowest = peak_with(all.size());
    if (lowest > bytes) {
      throw Error(
          fmt::format("the budget is {} bytes, but with all {} regions checkpointed the peak is {} ({} without); "
                      "select smaller regions, or more of them",
                      bytes, all.size(), lowest, without));
    }
    // The peak usually decreases with each region, except for tensors kept between them; the result is checked anyway.
    size_t too_few = 0;
    size_t enough = all.size();
    while (enough - too_few > 1) {
      const size_t middle = too_few + (enough - too_few) / 2;
      (peak_with(middle) <= bytes ? enough : too_few) = middle;
    }
    return std::vector<CheckpointSegment>(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(enough));
  };
}

FreeAtLastUseResult free_at_last_use(Graph& graph) {
  std::vector<NodeId> free_points = last_uses(graph);
  std::vector<bool> for_good(graph.storage_count(), false);  // owned by the caller
  for (const NodeId n : graph.nodes()) {
    const auto hold = [&](ValueId v) {
      if (const StorageId s = graph.value(v).storage; s.valid()) for_good[s.index] = true;
    };
    if (graph.is_placeholder(n)) graph.for_each_output(n, hold);
    if (is_end(graph.node(n).target)) graph.for_each_input(n, hold);
  }
  int64_t moved = 0;
  for (uint32_t i = 0; i < graph.storage_count(); ++i) {
    if (!free_points[i].valid()) continue;
    if (for_good[i]) free_points[i] = NodeId();
    moved += graph.storage(StorageId(i)).freed_after != free_points[i] ? 1 : 0;
  }
  if (moved != 0) set_free_points(graph, free_points);
  return {.moved = moved};
}

PassResult FreeAtLastUseResult::summary() const { return {.changed = moved != 0, .counters = {{"moved", moved}}}; }

// The pass `checkpoint`: selects segments from its options and reports the result.
//
// In a captured step the policy works on the graph itself. For a forward graph it works on the step that autograd would
// run (forward_checkpoints.cpp), in which the same regions and nodes have the same ids.

namespace {

using Policy = CheckpointModulesOptions::Policy;

// "" may match nothing, if no region is marked as a checkpoint.
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
    return plans_for_bytes(options) ? ""
                                    : "no region of the graph is marked as a checkpoint; select regions with modules=";
  }
  const std::string why =
      done.obstacles.empty() ? "backward reads none of their tensors" : done.obstacles.begin()->first;
  return fmt::format("nothing is recomputed for {} segments ({}, ...): {}", segments.size(), segments[0].name, why);
}

// A forward graph without gradients: autograd saves nothing.
CheckpointResult checkpoint_inference(const Graph& graph, const CheckpointModulesOptions& options) {
  const std::string why =
      "no output of this forward graph requires a gradient, so checkpoints cannot save memory; capture it with "
      "gradients enabled";
  const int64_t peak = peak_of_live_bytes(graph);
  CheckpointResult nothing;
  if (!plans_for_bytes(options)) {
    nothing.warning = why;
  } else if (peak > options.bytes) {
    throw Error(fmt::format("the budget is {} bytes, and the peak is {}: {}", options.bytes, peak, why));
  }
  return nothing;
}

// The peak of the backward is unknown, since tensors dropped by existing checkpoints are not in the graph.
CheckpointResult checkpoint_forward(Graph& graph, const CheckpointModulesOptions& options) {
  const std::vector<RegionId> regions = named_regions(graph, options.modules);
  if (!has_gradients(graph)) return checkpoint_inference(graph, options);
  const bool checkpointed = has_checkpoints(graph);
  if (checkpointed && plans_for_bytes(options)) {
    throw Error(
        "this forward graph already has checkpoints, whose recompute memory is unknown; use a graph without "
        "checkpoints for a budget in bytes");
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
    throw Error(fmt::format(
        "the budget is {} bytes, but {} of {} segments cannot be recomputed ({}, ...): the peak is {}", options.bytes,
        segments.size() - marked.segments.size(), segments.size(), done.obstacles.begin()->first, done.peak_after));
  }
  graph = std::move(rewritten);
  done.warning = warning_about(done, segments, options);
  return std::move(done);
}

}  // namespace

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
