#include <fmt/format.h>

#include <algorithm>

#include "ir/analysis/module_tree.h"
#include "parallel/plan/layer_chain.h"
#include "parallel/plan/planner.h"
#include "parallel/plan/recompute.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/shard/shard.h"

namespace shadowgraph {

std::vector<std::string> LayerCosts::layers() const {
  std::vector<std::string> layers = cache_.units;
  std::erase_if(layers, [](const std::string& unit) { return number_in_path(unit).second == 0; });
  return layers;
}

int64_t LayerCosts::layers_captured() const { return cache_.layers_differ ? 0 : representative_layers(source_); }

int64_t LayerCosts::more_layers() const {
  const int64_t captured = layers_captured();
  return captured > 0 ? source_.layers - captured : 0;
}

// Throws LayersDiffer.
LayerChain LayerCosts::chain(const Graph& step, const ExpertRanks& experts) const {
  const Graph rank = shard_experts_over(clone(step), experts);
  const StageOptions options{.spec = &request_.device, .interconnect = &request_.links, .gathers_once = false};
  const LayerChain few(rank, cache_.units, options, request_.state);
  std::optional<LayerChain> all = few.with_more_layers(more_layers(), source_.first_layers);
  if (!all) throw LayersDiffer{};
  return std::move(*all);
}

// Unless expert parallelism was requested, experts that do not support it are replicated on each rank.
ExpertLayers LayerCosts::experts_of(const Graph& step, int64_t tensor) {
  const bool requested = std::ranges::any_of(request_.experts, [](int64_t ranks) { return ranks > 1; });
  ExpertLayers layers;
  try {
    layers = expert_layers(step);
  } catch (const Error& error) {
    if (requested && tensor == 1) throw;
    const std::string with = tensor > 1 ? fmt::format(" with tensor-parallel degree {}", tensor) : "";
    const std::string note = fmt::format("experts are replicated on each rank{}: {}", with, error.what());
    if (std::ranges::find(cache_.notes, note) == cache_.notes.end()) cache_.notes.push_back(note);
    return layers;
  }
  if (requested && layers.experts == 0) {
    throw Error(source_.name +
                " has no experts that support expert parallelism: they must use grouped matmuls (torch._grouped_mm; in "
                "transformers experts_implementation=\"grouped_mm\")");
  }
  return layers;
}

std::vector<int64_t> LayerCosts::expert_ranks(const ExpertLayers& layers) const {
  std::vector<int64_t> sizes = expert_sizes(request_, std::max<int64_t>(1, layers.experts));
  std::erase_if(sizes, [&](int64_t ranks) { return layers.rows % ranks != 0; });
  return sizes;
}

void LayerCosts::count_flops(const Graph& step, int64_t tensor, int64_t micro_batch) {
  const LayerChain plain = chain(step, {});
  cache_.flops = static_cast<double>(plain.flops(0, plain.size())) * static_cast<double>(tensor) /
                 static_cast<double>(micro_batch);
}

// Unless context parallelism was requested, sequences that do not support it are not sharded.
std::vector<int64_t> LayerCosts::contexts() {
  std::vector<int64_t> sizes = context_sizes(request_);
  const auto is_cut = [](int64_t context) { return context > 1; };
  const auto first = std::ranges::find_if(sizes, is_cut);
  if (first == sizes.end()) return sizes;
  try {
    const StepSize size{.layers = layers_captured(), .attention = attention_kernels(request_).front()};
    const Graph whole = source_.capture(size);
    check_sequence_shards(whole, sequence_shard(source_, request_, *first).capture(size), *first);
    if (cache_.units.empty()) cache_.units = UnitNames::of(whole).begins;
    count_flops(whole, 1, size.micro_batch);
  } catch (const Error& error) {
    if (!request_.context.empty()) throw;
    cache_.notes.push_back(fmt::format("no context parallelism: {}", error.what()));
    std::erase_if(sizes, is_cut);
  }
  return sizes;
}

bool LayerCosts::by_curve() const {
  return std::ranges::find(request_.recompute, Recompute::kCurve) != request_.recompute.end();
}

std::vector<LayerCosts::StepLevel> LayerCosts::levels_of(const Graph& kept) const {
  std::vector<StepLevel> levels;
  const std::vector<std::string> names = layers();
  levels.push_back({Recompute::kNone, false, clone(kept)});
  levels.push_back({Recompute::kSelective, false, clone(kept)});
  apply_recompute(levels.back().step, {}, names);
  levels.push_back({Recompute::kFull, false, clone(kept)});
  apply_recompute(levels.back().step, names, {});
  if (by_curve()) {
    const StageOptions options{.spec = &request_.device, .interconnect = &request_.links, .gathers_once = false};
    for (KeptResults& option : kept_result_options(kept, names[names.size() / 2], options)) {
      levels.push_back({Recompute::kCurve, false, clone(kept), option});
      const PartialRecompute part{names, std::move(option)};
      apply_recompute(levels.back().step, {}, {}, {&part, 1});
    }
  }
  const size_t on_device = levels.size();
  for (size_t level = 0; request_.may_offload(Offload::kActivations) && level < on_device; ++level) {
    levels.push_back({levels[level].what, true, clone(levels[level].step), levels[level].keeps});
    apply_offload(levels.back().step, names);
  }
  return levels;
}

// Returns nullptr if the step cannot be sharded this way. Throws LayersDiffer.
const LayoutCosts* LayerCosts::costs_of(const LayoutSizes& sizes) {
  const int64_t tensor = sizes.tensor;
  std::tuple key{sizes, request_.may_offload(Offload::kActivations), by_curve()};
  std::get<0>(key).experts = 1;
  const auto known = cache_.layouts.find(key);
  if (known != cache_.layouts.end()) {
    const LayoutCosts* costs = known->second.get();
    const auto is_computed = [&](int64_t ranks) { return costs->chains.contains(ranks); };
    if (costs == nullptr || std::ranges::all_of(expert_ranks(costs->experts), is_computed)) return costs;
  }
  try {
    const Graph kept = rank_of_step(source_, layers_captured(), sizes, request_);
    if (cache_.units.empty()) cache_.units = UnitNames::of(kept).begins;
    if (layers_captured() > 0) check_layers(cache_.units, layers_captured(), source_.name);
    const std::vector<StepLevel> steps = levels_of(kept);
    auto& costs = cache_.layouts[key];
    if (!costs) costs = std::make_unique<LayoutCosts>(LayoutCosts{.experts = experts_of(kept, tensor)});
    for (const int64_t ranks : expert_ranks(costs->experts)) {
      if (costs->chains.contains(ranks)) continue;
      const ExpertRanks over{.ranks = ranks, .apart = tensor, .capacity = request_.expert_capacity};
      std::vector<RecomputeLevel> levels;
      for (const auto& [what, on_host, step, keeps] : steps) {
        levels.push_back({what, on_host, keeps, std::make_shared<LayerChain>(chain(step, over))});
      }
      costs->chains[ranks] = std::move(levels);
    }
    if (cache_.flops == 0) count_flops(kept, tensor, sizes.micro_batch);
    return costs.get();
  } catch (const UnsupportedError& error) {
    cache_.notes.push_back(fmt::format("no tensor parallelism of degree {}: {}", tensor, error.what()));
  } catch (const InfeasibleError& error) {
    cache_.notes.push_back(fmt::format("no tensor parallelism of degree {}: {}", tensor, error.what()));
  }
  cache_.layouts[key] = nullptr;
  return nullptr;
}

std::vector<LayoutSizes> LayerCosts::all_layouts() {
  std::vector<LayoutSizes> all;
  for (const int64_t context : contexts()) {
    for (const int64_t tensor : tensor_sizes(request_)) {
      if (request_.devices % (tensor * context) != 0) continue;
      for (const int64_t micro_batch : micro_batches(request_, context)) {
        LayoutSizes sizes{
            .tensor = tensor, .context = context, .micro_batch = micro_batch, .overlap = overlap_of(request_, tensor)};
        bool any = false;
        for (const AttentionKernel attention : attention_kernels(request_)) {
          for (const TensorParallelLayout layout : tensor_layouts(request_, tensor)) {
            sizes.attention = attention;
            sizes.layout = layout;
            if (costs_of(sizes) == nullptr) continue;
            all.push_back(sizes);
            any = true;
          }
        }
        if (!any) break;
      }
    }
  }
  return all;
}

const std::vector<LayoutSizes>& LayerCosts::layouts() {
  if (layouts_) return *layouts_;
  try {
    layouts_ = all_layouts();
  } catch (const LayersDiffer&) {
    cache_.units.clear();
    cache_.layouts.clear();
    cache_.flops = 0;
    cache_.layers_differ = true;
    cache_.notes = {"layers differ: all of them were captured"};
    layouts_ = all_layouts();
  }
  return *layouts_;
}

const LayoutCosts* LayerCosts::of(const LayoutSizes& sizes) {
  try {
    return costs_of(sizes);
  } catch (const LayersDiffer&) {  // with this layout only
    return nullptr;
  }
}

}  // namespace shadowgraph
