#include "parallel/plan/compute_again.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <map>
#include <unordered_map>
#include <vector>

#include "ir/edit/deaths.h"
#include "parallel/plan/layer_ways.h"
#include "shadowgraph/passes/checkpoint.h"
#include "shadowgraph/passes/offload.h"
#include "shadowgraph/profile/kernel_class.h"

namespace shadowgraph {

std::string_view to_string(Recompute what) {
  constexpr std::array<std::string_view, 4> kWords{"nothing", "selective", "whole", "curve"};
  return kWords[static_cast<size_t>(what)];
}

Recompute parse_recompute(std::string_view text) {
  using enum Recompute;
  for (const Recompute what : {kNothing, kSelective, kWhole, kCurve}) {
    if (to_string(what) == text) return what;
  }
  throw Error(
      fmt::format("backward computes again nothing, selective or whole layers, or by the curve, not '{}'", text));
}

std::string recomputing_of(const TrainingPlan& plan) {
  std::vector<std::string_view> words;
  if (!plan.selective.empty()) words.push_back(to_string(Recompute::kSelective));
  if (!plan.in_part.empty()) words.push_back(to_string(Recompute::kCurve));
  if (!plan.recomputed.empty()) words.push_back(to_string(Recompute::kWhole));
  return words.empty() ? std::string(to_string(Recompute::kNothing)) : fmt::format("{}", fmt::join(words, " and "));
}

namespace {

std::vector<RegionId> regions_of(const Graph& rank, std::span<const std::string> modules) {
  if (modules.empty()) return {};
  return regions_named(rank, fmt::format("{}", fmt::join(modules, "+")));
}

// Batches of small products are what attention by hand is made of: large results for little work.
bool is_dear(const Graph& step, NodeId node) {
  switch (kernel_class(step, node)) {
    case KernelClass::kMatmul: {
      const std::string& name = step.target(node).name();
      return name != "aten::bmm" && name != "aten::baddbmm";
    }
    case KernelClass::kConvolution:
    case KernelClass::kPointwiseConvolution:
    case KernelClass::kGroupedConvolution:
    case KernelClass::kDepthwiseConvolution:
    case KernelClass::kAttention:
    case KernelClass::kRecurrent:
      return true;
    default:
      return false;
  }
}

bool is_sum(const Graph& rank, NodeId node) {
  const std::string_view name = rank.target(node).name();
  return name.starts_with("_c10d_functional::reduce_scatter") || name.starts_with("_c10d_functional::all_reduce");
}

void keep_what_is_dear(const Graph& rank, std::vector<CheckpointSegment>& segments) {
  std::unordered_map<uint32_t, size_t> segment_of;
  for (size_t s = 0; s < segments.size(); ++s) {
    for (const RegionId region : segments[s].regions) segment_of.emplace(region.index, s);
  }
  for (const NodeId node : rank.nodes()) {
    const bool sums = is_sum(rank, node);
    if (rank.node(node).phase != Graph::kForward || (!sums && !is_dear(rank, node))) continue;
    for (RegionId region = rank.node(node).region; region.valid() && region != Graph::kRootRegion;
         region = rank.region(region).parent) {
      const auto found = segment_of.find(region.index);
      if (found == segment_of.end()) continue;
      std::vector<StorageId>& keep = segments[found->second].keep;
      // What is added up over ranks is a part that nobody else wants.
      if (sums) rank.for_each_input(node, [&](ValueId value) { std::erase(keep, rank.value(value).storage); });
      rank.for_each_output(node, [&](ValueId value) {
        if (rank.value(value).storage.valid()) keep.push_back(rank.value(value).storage);
      });
      break;
    }
  }
}

// torch's checkpoints hold all that is kept until a layer's backward is through, whether it is read or not.
void hold_what_is_kept(Graph& rank, const CheckpointSegment& segment) {
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
  std::map<StorageId, NodeId> deaths;
  for (const StorageId storage : early) deaths.emplace(storage, end);
  die_at(rank, deaths);
}

}  // namespace

void keep_on_host(Graph& rank, std::span<const std::string> modules) {
  if (!modules.empty()) offload_regions(rank, regions_of(rank, modules));
}

void compute_again(Graph& rank, std::span<const std::string> whole, std::span<const std::string> selective,
                   std::span<const PartlyKept> in_part) {
  std::vector<CheckpointSegment> segments;
  const auto add = [&](std::span<const std::string> modules) {
    for (CheckpointSegment& segment : each_region()(rank, regions_of(rank, modules))) {
      segment.collectives = true;
      segments.push_back(std::move(segment));
    }
  };
  add(selective);
  keep_what_is_dear(rank, segments);
  for (const PartlyKept& part : in_part) {
    const size_t before = segments.size();
    add(part.layers);
    std::vector<RegionId> layers;
    for (size_t s = before; s < segments.size(); ++s) layers.push_back(segments[s].regions.front());
    std::vector<std::vector<StorageId>> kept = kept_by(rank, layers, part.keeps);
    for (size_t s = before; s < segments.size(); ++s) segments[s].keep = std::move(kept[s - before]);
  }
  const size_t selected = segments.size();
  add(whole);
  checkpoint_segments(rank, segments);
  for (size_t s = 0; s < selected; ++s) hold_what_is_kept(rank, segments[s]);
}

}  // namespace shadowgraph
