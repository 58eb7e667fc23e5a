#include "parallel/plan/layer_ways.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "ir/analysis/module_tree.h"
#include "parallel/stages/stage_seconds.h"
#include "profiler/program_costs.h"
#include "shadowgraph/error.h"
#include "shadowgraph/passes/checkpoint_curve.h"

namespace shadowgraph {
namespace {

bool lies_in(const Graph& graph, RegionId region, RegionId layer) {
  while (region.valid() && region != layer) region = graph.region(region).parent;
  return region.valid();
}

// Calls f(layer, name, node) for each forward node of these layers, in one walk.
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

// What a layer hands on alone is kept by those that it goes to.
bool serves_layer(const Graph& graph, StorageId storage, RegionId layer) {
  bool serves = false;
  graph.for_each_value_in(storage, [&](ValueId value) {
    graph.for_each_use(value,
                       [&](NodeId user) { serves = serves || lies_in(graph, charged_region(graph, user), layer); });
  });
  return serves;
}

RegionId region_of(const Graph& graph, const std::string& layer) {
  const std::vector<RegionId> regions = regions_named(graph, layer);
  if (regions.empty()) throw Error("there is no module " + layer);
  return regions.front();
}

}  // namespace

std::vector<LayerWay> ways_to_keep(const Graph& rank, const std::string& layer, const StageOptions& options) {
  constexpr int64_t kMostWays = 6;
  const RegionId region = region_of(rank, layer);
  const ProgramCosts costs(rank);
  const NodeSeconds seconds(costs, *options.spec, options.interconnect);
  const std::vector<RegionId> regions{region};
  const CheckpointChain chain =
      CheckpointChain::of(rank, regions,
                          {.cost = [&](const Graph&, NodeId node) { return std::llround(seconds.of(node) * 1e9); },
                           .most_options = kMostWays + 1});
  std::vector<LayerWay> ways;
  for (const CheckpointStage& part : chain.parts) {
    for (size_t option = 1; option < part.keep.size(); ++option) {
      LayerWay way;
      for_each_result(rank, regions, [&](size_t, std::string name, NodeId node) {
        bool kept = false;
        rank.for_each_output(node, [&](ValueId value) {
          const StorageId storage = rank.value(value).storage;
          kept = kept || (storage.valid() && rank.storage(storage).born == node &&
                          std::ranges::find(part.keep[option], storage) != part.keep[option].end() &&
                          serves_layer(rank, storage, region));
        });
        if (kept) way.push_back(std::move(name));
      });
      if (!way.empty()) ways.push_back(std::move(way));
    }
  }
  return ways;
}

std::vector<std::vector<StorageId>> kept_by(const Graph& rank, std::span<const RegionId> layers, const LayerWay& way) {
  std::vector<std::vector<StorageId>> storages(layers.size());
  std::vector<size_t> found(layers.size(), 0);
  for_each_result(rank, layers, [&](size_t layer, const std::string& name, NodeId node) {
    if (std::ranges::find(way, name) == way.end()) return;
    ++found[layer];
    rank.for_each_output(node, [&](ValueId value) {
      if (rank.value(value).storage.valid()) storages[layer].push_back(rank.value(value).storage);
    });
  });
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    if (found[layer] == way.size()) continue;
    throw Error(
        fmt::format("{} has {} of the {} results that the plan keeps: it is of another model, or of another way "
                    "to cut it; plan again with --recompute curve",
                    rank.text_or_empty(rank.region(layers[layer]).name), found[layer], way.size()));
  }
  return storages;
}

}  // namespace shadowgraph
