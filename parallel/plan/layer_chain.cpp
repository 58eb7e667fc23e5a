#include "parallel/plan/layer_chain.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "ir/analysis/module_tree.h"
#include "parallel/stages/forward_line.h"
#include "parallel/stages/stage_parts.h"
#include "shadowgraph/error.h"
#include "shadowgraph/plan/pipeline.h"

namespace shadowgraph {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Calls `each` with every additive field of two stages.
template <class Each>
void for_each_additive_field(StageCosts& a, const StageCosts& b, Each&& each) {
  const auto pieces = [&](PieceSeconds& x, const PieceSeconds& y) {
    each(x.forward, y.forward);
    each(x.backward, y.backward);
    each(x.input_gradient, y.input_gradient);
    each(x.weight_gradient, y.weight_gradient);
  };
  each(a.forward, b.forward);
  each(a.input_gradient, b.input_gradient);
  each(a.weight_gradient, b.weight_gradient);
  pieces(a.exposed, b.exposed);
  pieces(a.exposed_unsharded, b.exposed_unsharded);
  pieces(a.copies, b.copies);
  each(a.unshard, b.unshard);
  each(a.reduce_gradients, b.reduce_gradients);
  each(a.accumulate, b.accumulate);
  each(a.optimizer, b.optimizer);
  each(a.weights, b.weights);
  each(a.expert_weights, b.expert_weights);
  each(a.parameters, b.parameters);
  each(a.expert_parameters, b.expert_parameters);
  each(a.optimizer_state, b.optimizer_state);
  each(a.other, b.other);
  each(a.inputs, b.inputs);
  each(a.gradients, b.gradients);
  each(a.carried, b.carried);
  each(a.on_host, b.on_host);
  each(a.awaiting, b.awaiting);
}

void add(StageCosts& a, const StageCosts& b) {
  for_each_additive_field(a, b, [](auto& x, const auto& y) { x += y; });
}
StageCosts difference(StageCosts a, const StageCosts& b) {
  for_each_additive_field(a, b, [](auto& x, const auto& y) { x -= y; });
  return a;
}

// Returns each stage's transient peak for one micro-batch: beyond resident and carried bytes.
std::vector<int64_t> transient_of(const PipelineStages& stages, const TrainingState& state, const DeviceSpec& spec) {
  const PipelineStages shared = replicated(stages, {.state = state}, spec, nullptr);
  const auto schedule = PipelineSchedule::named("gpipe", {.ranks = stages.count(), .microbatches = 1});
  const PipelineRun run = PipelineRun::of(shared, schedule);
  std::vector<int64_t> transient;
  for (int32_t s = 0; s < stages.count(); ++s) {
    transient.push_back(std::max<int64_t>(0, run.rank(s).peak - run.rank(s).resident - shared.of(s).carried));
  }
  return transient;
}

}  // namespace

std::pair<size_t, size_t> number_in_path(const std::string& path) {
  for (size_t begin = 0; begin < path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    size_t digits = end;
    while (digits > begin && is_digit(path[digits - 1])) --digits;
    if (digits < end && (digits == begin || path[digits - 1] == '_')) return {digits, end - digits};
    begin = end + 1;
  }
  return {0, 0};
}

UnitNames UnitNames::of(const Graph& step) {
  const ProgramCosts costs(step);
  const ForwardLine line(costs);
  UnitNames names{.begins = {""}};
  std::string now;
  std::set<std::string> entered;  // modules seen so far, with their ancestors
  for (int32_t i = 0; i < line.length(); ++i) {
    const std::string path = module_path(step, line.node(i));
    const auto [at, length] = number_in_path(path);
    const bool layer = length > 0;
    // Modules outside of layers begin a unit only after a layer.
    const std::string unit = layer ? path.substr(0, at + length) : path;
    const bool was_layer = number_in_path(now).second > 0;
    const bool begins = layer ? unit != now : was_layer && !unit.empty();
    if (begins && i == 0) {
      names.begins.front() = unit;  // the model begins with a layer
    } else if (begins && !entered.contains(unit)) {
      names.begins.push_back(unit);
    }
    if (layer || begins) now = unit;
    for (size_t end = path.find('.'); end != std::string::npos; end = path.find('.', end + 1)) {
      entered.insert(path.substr(0, end));
    }
    entered.insert(path);
  }
  return names;
}

void check_layers(const std::vector<std::string>& units, int64_t wanted, const std::string& model) {
  std::map<std::string, int64_t> lists;
  for (const std::string& unit : units) {
    const auto [at, length] = number_in_path(unit);
    if (length > 0) ++lists[unit.substr(0, at)];
  }
  for (const auto& [list, layers] : lists) {
    if (layers <= wanted) continue;
    throw Error(
        fmt::format("{} was requested with {} layers but has {} in '{}': if its source cannot build fewer layers, set "
                    "StepSource::layers to 0 (in Python layers=(0, ...)) to capture it whole",
                    model, wanted, layers, list));
  }
}

LayerChain::LayerChain(const Graph& step, const std::vector<std::string>& begins, const StageOptions& options,
                       const TrainingState& state)
    : begins_(begins) {
  const auto cut = [&](size_t first, size_t stride) {
    std::vector<std::string> cuts;
    for (size_t i = first; i < begins.size(); i += stride) cuts.push_back(begins[i]);
    return PipelineStages::at_modules(step, cuts, options);
  };
  const PipelineStages apart = cut(1, 1);
  for (int32_t s = 0; s < apart.count(); ++s) {
    units_.push_back(apart.of(s));
    const PieceSegments& segments = apart.parts().stages[static_cast<size_t>(s)].segments;
    int64_t flops = 0;
    for (const PieceSegment& segment : segments.forward) flops += segment.flops;
    for (const PieceSegment& segment : segments.backward) flops += segment.flops;
    flops_.push_back(flops);
  }
  transient_ = transient_of(apart, state, *options.spec);
  for (const TiedParameter& tied : apart.tied()) {
    tied_.push_back({tied.gradient_bytes, tied.weights, {tied.stages.begin(), tied.stages.end()}});
  }
  joins_.resize(units_.size() - 1);
  for (const size_t first : {size_t{1}, size_t{2}}) {
    if (begins.size() < 2) break;
    const PipelineStages pairs = cut(first, 2);
    // Splitting before 1, 3, 5, ... joins 1 and 2, 3 and 4, ...; splitting before 2, 4, ... joins 0 and 1, 2 and 3, ...
    for (size_t unit = first % 2; unit + 1 < units_.size(); unit += 2) {
      StageCosts both = units_[unit];
      add(both, units_[unit + 1]);
      joins_[unit] = difference(pairs.of(static_cast<int32_t>((unit + first % 2) / 2)), both);
    }
  }
  compute_prefix_sums();
}

void LayerChain::compute_prefix_sums() {
  const auto sums = [](const std::vector<StageCosts>& of) {
    std::vector<Sums> before(1);
    for (const StageCosts& f : of) {
      const PieceSeconds seconds = f.unsharded();
      before.push_back(before.back());
      before.back().seconds += {seconds.forward, seconds.backward, f.copies.forward};
      add(before.back().costs, f);
    }
    return before;
  };
  units_before_ = sums(units_);
  joins_before_ = sums(joins_);
}

std::optional<LayerChain> LayerChain::with_more_layers(int64_t more, int64_t first) const {
  if (more == 0) return *this;
  std::map<std::string, std::vector<size_t>> lists;
  for (size_t unit = 0; unit < begins_.size(); ++unit) {
    const auto [at, length] = number_in_path(begins_[unit]);
    if (length > 0) lists[begins_[unit].substr(0, at)].push_back(unit);
  }
  const auto longest = std::ranges::max_element(lists, {}, [](const auto& entry) { return entry.second.size(); });
  const auto third = static_cast<size_t>(first) + 2;
  if (longest == lists.end() || longest->second.size() < third + 2) {
    throw Error("extrapolating layers requires at least four layers of the same kind");
  }
  if (!are_alike(longest->second[third - 1], longest->second[third])) return std::nullopt;
  LayerChain chain = *this;
  const auto repeated = static_cast<ptrdiff_t>(longest->second[third]);
  const auto times = static_cast<size_t>(more);
  const auto repeat = [&](auto& of) { of.insert(of.begin() + repeated, times, of[static_cast<size_t>(repeated)]); };
  repeat(chain.begins_);
  repeat(chain.units_);
  repeat(chain.joins_);
  repeat(chain.transient_);
  repeat(chain.flops_);
  for (size_t i = static_cast<size_t>(repeated), layer = third; i < chain.begins_.size(); ++i, ++layer) {
    if (!chain.begins_[i].starts_with(longest->first)) break;
    chain.begins_[i] = longest->first + std::to_string(layer);
  }
  for (Tied& tied : chain.tied_) {
    std::vector<int64_t> units;
    for (const int64_t unit : tied.units) {
      if (unit <= repeated) units.push_back(unit);
      if (unit < repeated) continue;
      for (int64_t i = unit == repeated ? 1 : more; i <= more; ++i) units.push_back(unit + i);
    }
    tied.units = std::move(units);
  }
  for (size_t i = 0; i < chain.units_.size(); ++i) chain.units_[i].begins = chain.begins_[i];
  chain.compute_prefix_sums();
  return chain;
}

bool LayerChain::are_alike(size_t a, size_t b) const {
  const StageCosts &one = units_[a], &other = units_[b];
  return one.parameters == other.parameters && one.weights == other.weights && one.carried == other.carried &&
         flops_[a] == flops_[b];
}

// Excludes costs shared by adjacent units: joins_ already accounts for them.
StageCosts LayerChain::counted_twice(int64_t first, int64_t last) const {
  StageCosts duplicates;
  for (const Tied& tied : tied_) {
    int64_t before = last;  // none yet
    for (const int64_t unit : tied.units) {
      if (unit < first || unit >= last) continue;
      const StageCosts& of = units_[static_cast<size_t>(unit)];
      if (unit > before + 1) {
        duplicates.parameters += tied.bytes;
        duplicates.weights += tied.weights;
        if (tied.weights > 0) duplicates.gradients += tied.bytes;
        if (of.weights > 0) duplicates.optimizer_state += of.optimizer_state / of.weights * tied.weights;
      }
      before = unit;
    }
  }
  return duplicates;
}

StageCosts LayerChain::stage(int64_t first, int64_t last) const {
  return difference(sum(first, last), counted_twice(first, last));
}

StageCosts LayerChain::sum(int64_t first, int64_t last) const {
  StageCosts all = units_[static_cast<size_t>(first)];
  for (int64_t unit = first + 1; unit < last; ++unit) {
    add(all, units_[static_cast<size_t>(unit)]);
    add(all, joins_[static_cast<size_t>(unit - 1)]);
  }
  all.sends_forward = units_[static_cast<size_t>(last - 1)].sends_forward;
  return all;
}

StageCosts LayerChain::joined(const LayerChain& a, int64_t first, int64_t middle, const LayerChain& b, int64_t last) {
  StageCosts all = a.sum(first, middle);
  add(all, b.joins_[static_cast<size_t>(middle - 1)]);
  const StageCosts rest = b.sum(middle, last);
  add(all, rest);
  all.sends_forward = rest.sends_forward;
  return difference(std::move(all), b.counted_twice(first, last));
}

ChainSeconds LayerChain::seconds(int64_t first, int64_t last) const {
  return {between(first, last, &ChainSeconds::forward), between(first, last, &ChainSeconds::backward),
          between(first, last, &ChainSeconds::copies)};
}
int64_t LayerChain::parameters(int64_t first, int64_t last) const {
  return between(first, last, &StageCosts::parameters) - counted_twice(first, last).parameters;
}
int64_t LayerChain::weights(int64_t first, int64_t last) const {
  return between(first, last, &StageCosts::weights) - counted_twice(first, last).weights;
}
StageCosts LayerChain::model_state(int64_t first, int64_t last) const {
  const StageCosts duplicates = counted_twice(first, last);
  const auto all = [&](int64_t StageCosts::*figure) { return between(first, last, figure) - duplicates.*figure; };
  return {.weights = all(&StageCosts::weights),
          .expert_weights = all(&StageCosts::expert_weights),
          .parameters = all(&StageCosts::parameters),
          .expert_parameters = all(&StageCosts::expert_parameters),
          .optimizer_state = all(&StageCosts::optimizer_state),
          .gradients = all(&StageCosts::gradients)};
}

int64_t LayerChain::flops(int64_t first, int64_t last) const {
  return std::accumulate(flops_.begin() + first, flops_.begin() + last, int64_t{0});
}

// Backward of a unit runs after later units have freed their carried activations. Meanwhile the offloaded activations
// of the unit before are copied back.
int64_t LayerChain::transient(int64_t first, int64_t last) const {
  int64_t most = 0, gone = 0;
  for (int64_t unit = last - 1; unit >= first; --unit) {
    const int64_t reloaded = unit > first ? units_[static_cast<size_t>(unit - 1)].on_host : 0;
    most = std::max(most, transient_[static_cast<size_t>(unit)] + reloaded - gone);
    gone += units_[static_cast<size_t>(unit)].carried;
    if (gone > most) break;
  }
  return most;
}

}  // namespace shadowgraph
