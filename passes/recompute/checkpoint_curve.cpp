// Computes the Pareto curve of peak memory and recompute cost by applying plans to the graph.
//
// Node costs: passes/ cannot depend on the profiler, a higher layer, so the few formulas that distinguish a matrix
// product from a gelu are here. Other operators are memory-bound and cost their bytes.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include "passes/recompute/forward_checkpoints.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/passes/recompute.h"
#include "shadowgraph/units.h"

namespace shadowgraph {
namespace {

ValueId operand(const Graph& graph, NodeId node, std::string_view name) {
  const Argument* argument = graph.find_argument(node, name);
  return argument != nullptr && argument->kind == ArgumentKind::kValue ? argument->ref.value : ValueId();
}

int64_t size_at(const Graph& graph, ValueId value, int64_t from_end) {
  const auto sizes = graph.sizes(value);
  const auto rank = static_cast<int64_t>(sizes.size());
  return from_end <= rank ? sizes[static_cast<size_t>(rank - from_end)] : 1;
}

ValueId first_result(const Graph& graph, NodeId node) {
  ValueId first;
  graph.for_each_output(node, [&](ValueId v) {
    if (!first.valid()) first = v;
  });
  return first;
}

// 2 m n k, where k is the last dimension of the first factor.
int64_t matrix_product(const Graph& graph, NodeId node, std::string_view first_factor) {
  const ValueId factor = operand(graph, node, first_factor);
  const ValueId result = first_result(graph, node);
  return factor.valid() && result.valid()
             ? saturating_multiply(saturating_multiply(2, graph.numel(result)), size_at(graph, factor, 1))
             : 0;
}

// Each output position uses the weights of one output channel; for transposed convolutions, each input position.
int64_t convolution(const Graph& graph, NodeId node) {
  const ValueId input = operand(graph, node, graph.find_argument(node, "input") != nullptr ? "input" : "self");
  const ValueId weight = operand(graph, node, "weight");
  const ValueId result = first_result(graph, node);
  if (!input.valid() || !weight.valid() || !result.valid() || graph.sizes(weight).empty()) return 0;
  const Argument* transposed = graph.find_argument(node, "transposed");
  const bool upwards = transposed != nullptr && transposed->kind == ArgumentKind::kBool && transposed->b;
  const int64_t places = graph.numel(upwards ? input : result);
  return saturating_multiply(saturating_multiply(2, places),
                             graph.numel(weight) / std::max<int64_t>(1, graph.sizes(weight)[0]));
}

// Two products: queries with keys, and the scores with values.
int64_t attention(const Graph& graph, NodeId node) {
  const ValueId query = operand(graph, node, "query");
  const ValueId key = operand(graph, node, "key");
  const ValueId value = operand(graph, node, "value");
  if (!query.valid() || !key.valid() || !value.valid()) return 0;
  const int64_t rows = graph.numel(query) / std::max<int64_t>(1, size_at(graph, query, 1));
  return saturating_multiply(saturating_multiply(saturating_multiply(2, rows), size_at(graph, key, 2)),
                             saturating_add(size_at(graph, query, 1), size_at(graph, value, 1)));
}

constexpr std::array<const char*, 3> kStates = {"hx", "hx_", "cx_"};

// Two FLOPs per weight and row: every step of a sequence multiplies with all weights.
int64_t recurrent(const Graph& graph, NodeId node) {
  const ValueId input = operand(graph, node, "input");
  if (!input.valid()) return 0;
  std::array<ValueId, 4> others{input};  // and the states, which are also matrices in one of the schemas
  std::transform(kStates.begin(), kStates.end(), others.begin() + 1,
                 [&](const char* name) { return operand(graph, node, name); });
  int64_t weights = 0;
  graph.for_each_input(node, [&](ValueId v) {
    if (std::find(others.begin(), others.end(), v) == others.end() && graph.value(v).kind == ValueKind::kTensor &&
        graph.sizes(v).size() == 2) {
      weights += graph.numel(v);
    }
  });
  return saturating_multiply(saturating_multiply(2, weights),
                             graph.numel(input) / std::max<int64_t>(1, size_at(graph, input, 1)));
}

}  // namespace

int64_t product_flops(const Graph& graph, NodeId node) {
  const std::string_view name = graph.target(node).name();
  if (name == "aten::mm" || name == "aten::bmm" || name == "aten::_int_mm" || name == "aten::_scaled_mm") {
    return matrix_product(graph, node, "self");
  }
  if (name == "aten::addmm" || name == "aten::_addmm_activation") return matrix_product(graph, node, "mat1");
  if (name == "aten::baddbmm") return matrix_product(graph, node, "batch1");
  if (name == "aten::linear" || name == "aten::mkldnn_linear" || name == "aten::_linear_pointwise") {
    return matrix_product(graph, node, "input");
  }
  if (name.find("backward") != std::string_view::npos) return 0;
  if (name.starts_with("aten::_scaled_dot_product") || name.starts_with("aten::_flash_attention") ||
      name.starts_with("aten::_efficient_attention")) {
    return attention(graph, node);
  }
  if (name.find("conv") != std::string_view::npos) return convolution(graph, node);
  if (name == "aten::_cudnn_rnn" || name == "aten::mkldnn_rnn_layer" || name == "aten::miopen_rnn") {
    return recurrent(graph, node);
  }
  return 0;
}

CostOfNode flops_and_bytes() {
  return [](const Graph& graph, NodeId node) {
    if (graph.facts(node).is_view) return int64_t{0};
    int64_t bytes = 0;
    const auto add = [&](ValueId v) {
      if (graph.value(v).kind == ValueKind::kTensor) bytes = saturating_add(bytes, graph.logical_bytes(v));
    };
    graph.for_each_input(node, add);
    graph.for_each_output(node, add);
    return saturating_add(product_flops(graph, node), bytes);
  };
}

namespace {

// Returns at most `most` evenly spaced indices of n, including the first and the last.
std::vector<size_t> evenly(size_t n, size_t most) {
  std::vector<size_t> chosen;
  if (n <= most || most < 2) {
    for (size_t i = 0; i < n; ++i) chosen.push_back(i);
  } else {
    for (size_t i = 0; i < most; ++i) chosen.push_back(i * (n - 1) / (most - 1));
  }
  return chosen;
}

// Returns the device type with the most bytes. With offload, only that device's peak counts.
c10::DeviceType main_device(const Graph& graph) {
  std::map<c10::DeviceType, int64_t> bytes;
  for (uint32_t i = 0; i < graph.storage_count(); ++i) {
    bytes[graph.storage(StorageId(i)).device_type] += graph.storage(StorageId(i)).bytes;
  }
  const auto most =
      std::max_element(bytes.begin(), bytes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == bytes.end() ? c10::kCPU : most->first;
}

// Returns the memory with which the chain keeps everything: the right end of the curve.
int64_t bytes_to_keep_all(std::span<const ChainStage> stages) {
  int64_t kept = 0;
  int64_t most = 0;
  const int64_t at_the_end = stages.empty() ? 0 : stages.back().resident;
  for (const ChainStage& stage : stages) {
    most = std::max(most, kept + std::max(stage.keeping_peak + at_the_end, stage.backward_peak));
    kept += stage.options[0].saved;
  }
  return most;
}

// Converts stages that keep a part to stages that keep nothing, unless another segment covers them already.
std::vector<CheckpointSegment> whole_segments(const Graph& graph, std::vector<CheckpointSegment> segments) {
  std::set<std::pair<NodeId, NodeId>> known;
  std::erase_if(segments, [&](CheckpointSegment& segment) {
    segment.keep.clear();
    return segment.regions.empty() && !known.emplace(segment.first, segment.last).second;
  });
  Graph trial = clone(graph);
  return mark_segments(trial, segments).segments;
}

}  // namespace

CheckpointCurve CheckpointCurve::of(const Graph& graph, std::span<const RegionId> regions,
                                    const CheckpointCurveOptions& options) {
  if (is_forward_alone(graph) && has_gradients(graph)) {
    CheckpointCurveOptions whole = options;
    whole.chain.whole_stages = true;
    return of(assumed_step(graph), regions, whole);
  }
  CheckpointCurve curve;
  CheckpointChainOptions chain_options = options.chain;
  if (chain_options.whole_stages && chain_options.link > 0) {
    throw Error("stages that are recomputed as a whole keep no activations to offload; disable offload");
  }
  if (!chain_options.cost) chain_options.cost = flops_and_bytes();
  curve.chain_ = CheckpointChain::of(graph, regions, chain_options);
  const c10::DeviceType device = main_device(graph);
  const auto peak_of_device = [&](const Graph& of) {
    return chain_options.link > 0 ? peak_of_live_bytes(of, device) : peak_of_live_bytes(of);
  };
  const auto attempt = [&](std::string policy, std::vector<CheckpointSegment> segments, int64_t exposed = 0) {
    if (chain_options.whole_stages) segments = whole_segments(graph, std::move(segments));
    CheckpointChoice choice{
        .policy = std::move(policy), .segments = std::move(segments), .cost = exposed, .repeated = {}};
    if (choice.segments.empty()) {
      choice.peak = peak_of_device(graph);
    } else {
      Graph copy = clone(graph);
      CheckpointResult done = checkpoint_segments(copy, choice.segments);
      choice.repeated = std::move(done.repeated);
      choice.offloaded = done.offloaded_bytes;
      choice.peak = peak_of_device(copy);
      for (const NodeId n : choice.repeated) choice.cost += chain_options.cost(graph, n);
    }
    curve.tried_.push_back(std::move(choice));
  };
  attempt("none", {});

  // Try the chain's plans. The chain's estimates differ slightly from the graph's memory, which is what counts.
  const std::vector<ChainStage>& stages = curve.chain_.stages;
  if (!stages.empty()) {
    const ChainSolver solver(stages, bytes_to_keep_all(stages), options.slots);
    const std::vector<ChainSchedule> plans = solver.curve();
    for (const size_t i : evenly(plans.size(), static_cast<size_t>(options.max_schedules))) {
      const ChainSchedule& plan = plans[i];
      const bool keeps_all = std::all_of(plan.option.begin(), plan.option.end(), [](size_t o) { return o == 0; });
      if (plan.segments.empty() && keeps_all) continue;
      std::vector<CheckpointSegment> segments = curve.chain_.segments(plan);
      attempt("optimal", std::move(segments), curve.chain_.exposed(plan));
    }
  }

  std::vector<RegionId> named(regions.begin(), regions.end());
  if (named.empty()) named = regions_named(graph, "auto");
  if (!named.empty()) {
    const std::vector<CheckpointSegment> each = each_region()(graph, named);
    for (size_t count = 1; count < each.size(); ++count) {
      attempt("budget", {each.begin(), each.begin() + static_cast<std::ptrdiff_t>(count)});
    }
    attempt("each", each);
    attempt("every 2", every_kth_region(2)(graph, named));
    attempt("sqrt", square_root_segments()(graph, named));
  }

  curve.choices_ = curve.tried_;
  std::stable_sort(curve.choices_.begin(), curve.choices_.end(),
                   [](const auto& a, const auto& b) { return std::pair(a.cost, a.peak) < std::pair(b.cost, b.peak); });
  size_t kept = 0;
  for (size_t i = 0; i < curve.choices_.size(); ++i) {
    if (kept != 0 && curve.choices_[i].peak >= curve.choices_[kept - 1].peak) continue;
    if (kept != i) curve.choices_[kept] = std::move(curve.choices_[i]);
    ++kept;
  }
  curve.choices_.resize(kept);
  return curve;
}

const CheckpointChoice* CheckpointCurve::within(int64_t bytes) const {
  const auto found = std::find_if(choices_.begin(), choices_.end(),
                                  [&](const CheckpointChoice& choice) { return choice.peak <= bytes; });
  return found == choices_.end() ? nullptr : &*found;
}

CheckpointPolicy least_recompute(int64_t bytes, CheckpointCurveOptions options) {
  return [bytes, options = std::move(options)](const Graph& graph, std::span<const RegionId> regions) {
    const CheckpointCurve curve = CheckpointCurve::of(graph, regions, options);
    const CheckpointChoice* choice = curve.within(bytes);
    if (choice == nullptr) {
      throw Error(
          fmt::format("the budget is {} bytes, but even with maximum recompute this step has a peak of {} ({} without "
                      "recompute); {} bytes are parameters, inputs and other storages that no plan changes",
                      bytes, curve.choices().back().peak, curve.tried().front().peak, curve.chain().elsewhere));
    }
    return choice->segments;
  };
}

}  // namespace shadowgraph
