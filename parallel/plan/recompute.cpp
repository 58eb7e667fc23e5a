#include "parallel/plan/recompute.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <unordered_map>
#include <vector>

#include "ir/analysis/module_tree.h"
#include "ir/edit/bulk_edits.h"
#include "parallel/stages/stage_seconds.h"
#include "profiler/program_costs.h"
#include "shadowgraph/error.h"
#include "shadowgraph/passes/recompute.h"
#include "shadowgraph/profile/device_spec.h"

namespace shadowgraph {
namespace {

bool is_in(const Graph& graph, RegionId region, RegionId layer) {
  while (region.valid() && region != layer) region = graph.region(region).parent;
  return region.valid();
}

// Calls f(layer, name, node) for each forward node of these layers, in one pass over the graph.
template <class F>
void for_each_result(const Graph& graph, std::span<const RegionId> layers, F&& f) {
  std::unordered_map<RegionId, size_t> numbers;
  for (size_t layer = 0; layer < layers.size(); ++layer) numbers.emplace(layers[layer], layer);
  std::vector<std::unordered_map<TargetId, int>> seen(layers.size());
  for (const NodeId node : graph.nodes()) {
    if (graph.node(node).phase != Graph::kForward) continue;
    RegionId region = graph.node(node).region;
    while (region.valid() && !numbers.contains(region)) region = graph.region(region).parent;
    if (!region.valid()) continue;
    const size_t layer = numbers.at(region);
    f(layer, fmt::format("{}#{}", graph.target(node).name(), seen[layer][graph.node(node).target]++), node);
  }
}

// Returns whether the layer itself uses the storage. One that it only passes on is kept by the layers that use it.
bool serves_layer(const Graph& graph, StorageId storage, RegionId layer) {
  bool serves = false;
  graph.for_each_value_in(storage, [&](ValueId value) {
    graph.for_each_use(value,
                       [&](NodeId user) { serves = serves || is_in(graph, charged_region(graph, user), layer); });
  });
  return serves;
}

RegionId region_of(const Graph& graph, const std::string& layer) {
  const std::vector<RegionId> regions = regions_named(graph, layer);
  if (regions.empty()) throw Error("unknown module " + layer);
  return regions.front();
}

std::vector<RegionId> regions_of(const Graph& rank, std::span<const std::string> modules) {
  if (modules.empty()) return {};
  return regions_named(rank, fmt::format("{}", fmt::join(modules, "+")));
}

// Batched matmuls are excluded: in unfused attention they have large results for little work.
bool is_expensive(const Graph& step, NodeId node) {
  using K = KernelClass;
  constexpr std::array kExpensive{K::kConvolution,        K::kPointwiseConvolution,
                                  K::kGroupedConvolution, K::kDepthwiseConvolution,
                                  K::kAttention,          K::kRecurrent};
  const K kind = kernel_class(step, node);
  const std::string& name = step.target(node).name();
  if (kind == K::kMatmul) return name != "aten::bmm" && name != "aten::baddbmm";
  return std::ranges::find(kExpensive, kind) != kExpensive.end();
}

bool is_sum(const Graph& rank, NodeId node) {
  const std::string_view name = rank.target(node).name();
  return name.starts_with("_c10d_functional::reduce_scatter") || name.starts_with("_c10d_functional::all_reduce");
}

void keep_expensive_results(const Graph& rank, std::vector<CheckpointSegment>& segments) {
  std::unordered_map<uint32_t, size_t> segment_of;
  for (size_t s = 0; s < segments.size(); ++s) {
    for (const RegionId region : segments[s].regions) segment_of.emplace(region.index, s);
  }
  for (const NodeId node : rank.nodes()) {
    const bool sums = is_sum(rank, node);
    if (rank.node(node).phase != Graph::kForward || (!sums && !is_expensive(rank, node))) continue;
    for (RegionId region = rank.node(node).region; region.valid() && region != Graph::kRootRegion;
         region = rank.region(region).parent) {
      const auto found = segment_of.find(region.index);
      if (found == segment_of.end()) continue;
      std::vector<StorageId>& keep = segments[found->second].keep;
      // The partial sums are used only by the reduction.
      if (sums) rank.for_each_input(node, [&](ValueId value) { std::erase(keep, rank.value(value).storage); });
      rank.for_each_output(node, [&](ValueId value) {
        if (rank.value(value).storage.valid()) keep.push_back(rank.value(value).storage);
      });
      break;
    }
  }
}

// torch's checkpoint frees kept tensors only after the layer's backward, even if they are not read.
void extend_kept_lifetimes(Graph& rank, const CheckpointSegment& segment) {
  NodeId end;
  std::vector<StorageId> early;
  for (const StorageId storage : segment.keep) {
    const NodeId freed = rank.storage(storage).freed_after;
    if (!freed.valid()) continue;
    if (rank.node(freed).phase == Graph::kForward) {
      early.push_back(storage);
    } else if (!end.valid() || rank.is_before(end, freed)) {
      end = freed;
    }
  }
  if (!end.valid()) return;
  std::map<StorageId, NodeId> free_points;
  for (const StorageId storage : early) free_points.emplace(storage, end);
  free_storages_after(rank, free_points);
}

}  // namespace

std::vector<KeptResults> kept_result_options(const Graph& rank, const std::string& layer, const StageOptions& options) {
  constexpr int64_t kMaxOptions = 6;
  const RegionId region = region_of(rank, layer);
  const ProgramCosts costs(rank);
  const NodeSeconds seconds(costs, *options.spec, options.interconnect);
  const std::vector<RegionId> regions{region};
  const CheckpointChain chain =
      CheckpointChain::of(rank, regions,
                          {.cost = [&](const Graph&, NodeId node) { return std::llround(seconds.of(node) * 1e9); },
                           .max_options = kMaxOptions + 1});
  std::vector<KeptResults> options_by_size;
  for (const CheckpointStage& part : chain.parts) {
    for (size_t option = 1; option < part.keep.size(); ++option) {
      KeptResults results;
      for_each_result(rank, regions, [&](size_t, std::string name, NodeId node) {
        bool kept = false;
        rank.for_each_output(node, [&](ValueId value) {
          const StorageId storage = rank.value(value).storage;
          kept = kept || (storage.valid() && rank.storage(storage).born == node &&
                          std::ranges::find(part.keep[option], storage) != part.keep[option].end() &&
                          serves_layer(rank, storage, region));
        });
        if (kept) results.push_back(std::move(name));
      });
      if (!results.empty()) options_by_size.push_back(std::move(results));
    }
  }
  return options_by_size;
}

std::vector<std::vector<StorageId>> kept_storages(const Graph& rank, std::span<const RegionId> layers,
                                                  const KeptResults& kept) {
  std::vector<std::vector<StorageId>> storages(layers.size());
  std::vector<size_t> found(layers.size(), 0);
  for_each_result(rank, layers, [&](size_t layer, const std::string& name, NodeId node) {
    if (std::ranges::find(kept, name) == kept.end()) return;
    ++found[layer];
    rank.for_each_output(node, [&](ValueId value) {
      if (rank.value(value).storage.valid()) storages[layer].push_back(rank.value(value).storage);
    });
  });
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    if (found[layer] == kept.size()) continue;
    throw Error(
        fmt::format("{} has {} of the {} results that the plan keeps: the plan was made for another model or "
                    "parallelism; run plan again with --recompute curve",
                    rank.text_or_empty(rank.region(layers[layer]).name), found[layer], kept.size()));
  }
  return storages;
}

std::string recompute_summary(const TrainingPlan& plan) {
  std::vector<std::string_view> words;
  if (!plan.selective.empty()) words.push_back(to_string(Recompute::kSelective));
  if (!plan.in_part.empty()) words.push_back(to_string(Recompute::kCurve));
  if (!plan.recomputed.empty()) words.push_back(to_string(Recompute::kFull));
  return words.empty() ? std::string(to_string(Recompute::kNone)) : fmt::format("{}", fmt::join(words, " and "));
}

void apply_offload(Graph& rank, std::span<const std::string> modules) {
  if (!modules.empty()) offload_regions(rank, regions_of(rank, modules));
}

void apply_recompute(Graph& rank, std::span<const std::string> whole, std::span<const std::string> selective,
                     std::span<const PartialRecompute> in_part) {
  std::vector<CheckpointSegment> segments;
  const auto add = [&](std::span<const std::string> modules) {
    for (CheckpointSegment& segment : each_region()(rank, regions_of(rank, modules))) {
      segment.collectives = true;
      segments.push_back(std::move(segment));
    }
  };
  add(selective);
  keep_expensive_results(rank, segments);
  for (const PartialRecompute& part : in_part) {
    const size_t before = segments.size();
    add(part.layers);
    std::vector<RegionId> layers;
    for (size_t s = before; s < segments.size(); ++s) layers.push_back(segments[s].regions.front());
    std::vector<std::vector<StorageId>> kept = kept_storages(rank, layers, part.keeps);
    for (size_t s = before; s < segments.size(); ++s) segments[s].keep = std::move(kept[s - before]);
  }
  const size_t selected = segments.size();
  add(whole);
  checkpoint_segments(rank, segments);
  for (size_t s = 0; s < selected; ++s) extend_kept_lifetimes(rank, segments[s]);
}

}  // namespace shadowgraph
