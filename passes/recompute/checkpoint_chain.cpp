// Models a training step as a chain of stages: the cuts in forward, the memory of each stage, and its recompute
// options. The search for cuts is repeated without each tensor that is excluded; each attempt is linear.
//
// The solver's time grows with the options per stage, so at most options.max_options are kept: those close to the lower
// convex hull of cost over bytes. The greedy searches are quadratic in the tensor groups, times a walk over the stage.
// The numbers may be approximate, since the solver's plans are evaluated on the graph (checkpoint_curve.cpp).
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "passes/recompute/forward_checkpoints.h"
#include "passes/recompute/recompute_schedule.h"
#include "shadowgraph/graph/analysis.h"
#include "shadowgraph/passes/recompute.h"
#include "shadowgraph/units.h"

namespace shadowgraph {

// Uses of a storage in forward.
struct ForwardLife {
  int32_t born = -1;  // positions among the forward nodes
  int32_t last = -1;
  bool gradient = false;  // requires a gradient
  bool saved = false;     // saved for backward
  bool set_aside = false;
};

namespace {

// A stage with more nodes than this, and with more than this fraction of forward, is split at its longest tensors.
constexpr int32_t kLongStage = 24;
constexpr int32_t kLongPart = 8;
constexpr int kMaxKeptTensors = 64;

}  // namespace

class ChainBuilder {
 public:
  static constexpr int32_t kNowhere = -1;

  // Without a cost function, FLOPs and bytes approximate time.
  ChainBuilder(const Graph& graph, const CheckpointChainOptions& options)
      : graph_(graph), options_(options), effects_(Effects::of(graph)), lives_(graph.storage_count()) {
    check_countable(graph_);
    if (!options_.cost) options_.cost = flops_and_bytes();
    if (options_.whole_stages) options_.max_options = 1;
    list_forward();
    find_lifetimes();
  }

  // The order matters: each step needs the results of the previous ones.
  CheckpointChain run(std::span<const RegionId> regions) {
    if (forward_.empty() || !has_backward_) return {};
    if (regions.empty()) {
      cut();
    } else {
      cut_at(regions);
    }
    keep_tensors_across_stages();
    add_up_backward();
    for (size_t i = 0; i < ends_.size(); ++i) describe(i);
    measure();
    // Placeholders that are read before the first stage are the chain's input.
    std::unordered_set<StorageId> given;
    for (int32_t at = 0; at < ends_[0]; ++at) {
      graph_.for_each_input(forward_[size_t(at)], [&](ValueId v) {
        const Value& value = graph_.value(v);
        if (!value.storage.valid() || graph_.node(value.producer).target != target_of(Builtin::kInput)) return;
        if (given.insert(value.storage).second) chain_.input += graph_.storage(value.storage).bytes;
      });
    }
    return std::move(chain_);
  }

 private:
  using Storages = std::unordered_set<StorageId>;
  // One option to keep part of a stage's tensors.
  struct KeepOption {
    // `bytes` stay on the device. `cost` is that of recompute and of exposed transfer time.
    int64_t bytes = 0, cost = 0;
    Storages kept;
    Storages offloaded = {};
    int64_t exposed = 0;
  };

  int32_t begin_of(size_t stage) const { return stage == 0 ? 0 : ends_[stage - 1]; }

  void list_forward() {
    const IdMap<RegionId, RegionId> again = recompute_regions(graph_);
    for (const NodeId n : graph_.nodes()) {
      const Node& node = graph_.node(n);
      has_backward_ = has_backward_ || node.phase == Graph::kBackward;
      if (node.phase != Graph::kForward || graph_.is_placeholder(n) || is_end(node.target) ||
          std::as_const(again)[node.region].valid()) {
        continue;
      }
      place_[n] = static_cast<int32_t>(forward_.size());
      forward_.push_back(n);
      costs_.push_back(cost_of_node(n));
    }
  }

  // Throws Error if the total cost of all nodes exceeds kMaxSum.
  int64_t cost_of_node(NodeId n) {
    const int64_t cost = options_.cost(graph_, n);
    total_cost_ = saturating_add(total_cost_, std::max<int64_t>(0, cost));
    if (cost < 0 || total_cost_ > kMaxSum) {
      throw Error(
          "the total cost of this graph's operators exceeds 2^58, the limit for recompute plans; check whether the "
          "file is damaged");
    }
    return cost;
  }

  // Lifetimes are those of storages, not values: a view keeps its base alive.
  void find_lifetimes() {
    for (size_t at = 0; at < forward_.size(); ++at) {
      const auto touch = [&](ValueId v) {
        const StorageId s = graph_.value(v).storage;
        if (!s.valid()) return;
        ForwardLife& life = lives_[s.index];
        if (graph_.storage(s).born == forward_[at]) life.born = static_cast<int32_t>(at);
        life.last = static_cast<int32_t>(at);
        life.gradient = life.gradient || graph_.value(v).requires_grad;
      };
      graph_.for_each_input(forward_[at], touch);
      graph_.for_each_output(forward_[at], touch);
    }
    // Everything after forward counts as backward: the optimizer only reads gradients.
    for (const NodeId n : graph_.nodes()) {
      if (is_forward(n) || graph_.is_placeholder(n)) continue;
      graph_.for_each_input(n, [&](ValueId v) {
        if (const StorageId s = graph_.value(v).storage; s.valid()) lives_[s.index].saved = true;
      });
    }
  }

  bool is_forward(NodeId n) const { return std::as_const(place_)[n] != kNowhere; }
  bool is_relevant(const ForwardLife& life) const { return life.born != kNowhere && !life.set_aside; }

  // Cuts forward where only one tensor with a gradient is alive, through which everything later depends on the past.
  // Tensors without gradients (masks, position tables) are ignored, since nothing is recomputed through them.
  void cut() {
    const int32_t length = count();
    const std::vector<int32_t> between = places_between_writes();
    // A skip connection over half of the network leaves a stage without cuts. Keeping its tensor allows cuts inside.
    for (int set_aside = 0;; ++set_aside) {
      ends_.clear();
      // By position: the number of tensors with gradients that are produced at or before it and read after it.
      std::vector<int32_t> over(size_t(length) + 1, 0);
      // One walk over lifetimes computes the number alive at each position from allocations and frees.
      for (const ForwardLife& life : lives_) {
        if (!is_relevant(life) || !life.gradient || life.last <= life.born) continue;
        ++over[size_t(life.born)];
        --over[size_t(life.last)];
      }
      int32_t open = 0, unfinished = 0;
      for (int32_t at = 0; at + 1 < length; ++at) {
        open += over[size_t(at)];
        unfinished += between[size_t(at)];
        if (open == 1 && unfinished == 0) ends_.push_back(at + 1);
      }
      ends_.push_back(length);
      if (set_aside == kMaxKeptTensors || !set_aside_in_longest_stage()) break;
    }
    merge();
    fixed_.assign(ends_.size(), false);
  }

  // By position, the change of the number of tensors that are allocated but not completely written. A stage that is
  // recomputed as a whole must not start there: a mask is allocated by empty and drawn by the next node.
  std::vector<int32_t> places_between_writes() const {
    std::vector<int32_t> between(forward_.size() + 1, 0);
    if (!options_.whole_stages) return between;
    std::vector<int32_t> last_write(lives_.size(), kNowhere);
    for (size_t at = 0; at < forward_.size(); ++at) {
      for (const StorageWrite& write : effects_.writes(forward_[at])) {
        if (write.storage.index < lives_.size()) last_write[write.storage.index] = static_cast<int32_t>(at);
      }
    }
    for (size_t i = 0; i < lives_.size(); ++i) {
      if (lives_[i].born == kNowhere || last_write[i] <= lives_[i].born) continue;
      ++between[size_t(lives_[i].born)];
      --between[size_t(last_write[i])];
    }
    return between;
  }

  // Keeps the tensor with the longest lifetime inside the longest stage, if that stage is long. Returns whether it did.
  bool set_aside_in_longest_stage() {
    size_t longest = 0;
    for (size_t i = 0; i < ends_.size(); ++i) {
      if (ends_[i] - begin_of(i) > ends_[longest] - begin_of(longest)) longest = i;
    }
    const int32_t begin = begin_of(longest), end = ends_[longest];
    if (end - begin <= std::max(kLongStage, count() / kLongPart)) return false;
    StorageId found;
    int32_t most = (end - begin) / 4;  // shorter lifetimes would allow few cuts
    for (uint32_t i = 0; i < lives_.size(); ++i) {
      const ForwardLife& life = lives_[i];
      if (!is_relevant(life) || !life.gradient || life.born < begin || life.last > end) continue;
      if (life.last - life.born > most) {
        most = life.last - life.born;
        found = StorageId(i);
      }
    }
    if (!found.valid()) return false;
    lives_[found.index].set_aside = true;
    note_kept(found, fmt::format("{} nodes", most));
    return true;
  }

  void note_kept(StorageId storage, const std::string& later) {
    const NodeId maker = graph_.storage(storage).born;
    chain_.not_a_chain.push_back(fmt::format("{} bytes of {}{} are read {} later: kept", graph_.storage(storage).bytes,
                                             graph_.target(maker).name(), path_of(maker), later));
  }

  int32_t count() const { return static_cast<int32_t>(forward_.size()); }

  // For messages: " in layers.3.mlp", or "" outside all modules.
  std::string path_of(NodeId n) const {
    for (RegionId r = graph_.node(n).region; r.valid() && r != Graph::kRootRegion; r = graph_.region(r).parent) {
      if (graph_.region(r).kind != RegionKind::kModule) continue;
      const std::string_view path = graph_.text_or_empty(graph_.region(r).name);
      if (!path.empty()) return fmt::format(" in {}", path);
    }
    return {};
  }

  // Merges the adjacent stages that keep least together until the desired number remains: the solver is cubic.
  void merge() {
    std::vector<int64_t> saved(ends_.size(), 0);
    std::vector<int64_t> saved_at(forward_.size(), 0);
    for (uint32_t i = 0; i < lives_.size(); ++i) {
      const ForwardLife& life = lives_[i];
      if (is_relevant(life) && life.saved) saved_at[size_t(life.born)] += graph_.storage(StorageId(i)).bytes;
    }
    for (size_t i = 0; i < ends_.size(); ++i) {
      saved[i] = std::accumulate(saved_at.begin() + begin_of(i), saved_at.begin() + ends_[i], int64_t{0});
    }
    const auto join = [&](size_t stage) {  // with the next one
      saved[stage] += saved[stage + 1];
      saved.erase(saved.begin() + static_cast<std::ptrdiff_t>(stage) + 1);
      ends_.erase(ends_.begin() + static_cast<std::ptrdiff_t>(stage));
    };
    // A stage that saves nothing has nothing to recompute.
    for (size_t i = 0; i + 1 < ends_.size();) saved[i] == 0 ? join(i) : void(++i);
    if (ends_.size() > 1 && saved.back() == 0) join(ends_.size() - 2);
    while (static_cast<int64_t>(ends_.size()) > std::max<int64_t>(1, options_.max_stages)) {
      size_t least = 0;
      for (size_t i = 0; i + 1 < ends_.size(); ++i) {
        if (saved[i] + saved[i + 1] < saved[least] + saved[least + 1]) least = i;
      }
      join(least);
    }
  }

  // Uses regions as stages; nodes between them cannot be dropped.
  void cut_at(std::span<const RegionId> regions) {
    IdMap<RegionId, int32_t> stage_at(kNowhere);
    for (size_t i = 0; i < regions.size(); ++i) stage_at[regions[i]] = static_cast<int32_t>(i);
    IdMap<RegionId, int32_t> inside(kNowhere);
    for (uint32_t i = 1; i < graph_.region_count(); ++i) {
      const RegionId id(i);
      const int32_t own = std::as_const(stage_at)[id];
      inside[id] = own >= 0 ? own : std::as_const(inside)[graph_.region(id).parent];
    }
    struct Extent {
      int32_t first = kNowhere, last = kNowhere;
      size_t region = 0;
    };
    std::vector<Extent> extents(regions.size());
    for (size_t at = 0; at < forward_.size(); ++at) {
      const int32_t region = std::as_const(inside)[graph_.node(forward_[at]).region];
      if (region < 0) continue;
      Extent& extent = extents[size_t(region)];
      if (extent.first == kNowhere) extent.first = static_cast<int32_t>(at);
      extent.last = static_cast<int32_t>(at);
      extent.region = static_cast<size_t>(region);
    }
    std::erase_if(extents, [](const Extent& extent) { return extent.first == kNowhere; });
    std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) { return a.first < b.first; });
    const auto add_stage = [&](int32_t end, bool fixed, std::string_view name) {
      ends_.push_back(end);
      fixed_.push_back(fixed);
      names_.emplace_back(name);
    };
    int32_t end = 0;
    for (const Extent& extent : extents) {
      const std::string_view name = graph_.text_or_empty(graph_.region(regions[extent.region]).name);
      // Regions may be nested or interleaved; stages of a chain must be consecutive.
      if (extent.first < end) {
        chain_.not_a_chain.push_back(fmt::format("{} begins before the previous region ends: not a stage", name));
        continue;
      }
      if (extent.first > end) add_stage(extent.first, true, "");
      end = extent.last + 1;
      add_stage(end, false, name);
    }
    if (end < count()) add_stage(count(), true, "");
  }

  // Keeps tensors that are read beyond the next stage, under every plan, since a later stage needs them.
  void keep_tensors_across_stages() {
    stage_of_.resize(forward_.size());
    for (size_t i = 0; i < ends_.size(); ++i) {
      for (int32_t at = begin_of(i); at < ends_[i]; ++at) stage_of_[size_t(at)] = static_cast<int32_t>(i);
    }
    for (uint32_t i = 0; i < lives_.size(); ++i) {
      ForwardLife& life = lives_[i];
      if (!is_relevant(life)) continue;
      const int32_t stages = stage_of_[size_t(life.last)] - stage_of_[size_t(life.born)];
      if (stages == 0 || (stages == 1 && life.gradient)) continue;
      life.set_aside = true;
      // Masks and position tables do not prevent a chain.
      if (life.gradient) note_kept(StorageId(i), fmt::format("{} stages", stages));
    }
  }

  // The backward of a stage consists of the nodes that differentiate its nodes.
  void add_up_backward() {
    backward_costs_.assign(ends_.size(), 0);
    for (const NodeId n : graph_.nodes()) {
      const NodeId of = graph_.node(n).forward;
      if (graph_.node(n).phase != Graph::kBackward || !of.valid() || graph_.is_erased(of)) continue;
      const int32_t place = std::as_const(place_)[of];
      if (place != kNowhere) backward_costs_[size_t(stage_of_[size_t(place)])] += cost_of_node(n);
    }
  }

  // A stage is named after its most expensive module, which users recognize.
  std::string name_of(size_t stage) const {
    if (stage < names_.size() && !names_[stage].empty()) return names_[stage];
    int32_t most = begin_of(stage);
    for (int32_t at = begin_of(stage); at < ends_[stage]; ++at) {
      if (costs_[size_t(at)] > costs_[size_t(most)]) most = at;
    }
    const std::string path = path_of(forward_[size_t(most)]);
    return path.empty() ? fmt::format("stage {}", stage) : path.substr(4);
  }

  // Returns the cost of recomputing these storages of a stage if `kept` are available: a backward walk over the stage.
  int64_t cost_of(size_t stage, const Storages& wanted, const Storages& kept) const {
    Storages needed;
    for (const StorageId s : wanted) {
      if (!kept.contains(s)) needed.insert(s);
    }
    if (needed.empty()) return 0;
    int64_t cost = 0;
    for (int32_t at = ends_[stage]; at-- > begin_of(stage);) {
      const NodeId n = forward_[size_t(at)];
      bool runs = false;
      graph_.for_each_output(n, [&](ValueId v) { runs = runs || needed.contains(graph_.value(v).storage); });
      for (const StorageWrite& write : effects_.writes(n)) runs = runs || needed.contains(write.storage);
      if (!runs) continue;
      cost += costs_[size_t(at)];
      graph_.for_each_input(n, [&](ValueId v) {
        const StorageId s = graph_.value(v).storage;
        if (!s.valid() || kept.contains(s)) return;
        const ForwardLife& life = lives_[s.index];
        if (is_relevant(life) && life.born >= begin_of(stage)) needed.insert(s);
      });
    }
    return cost;
  }

  int64_t bytes_of(const Storages& storages) const {
    int64_t bytes = 0;
    for (const StorageId s : storages) bytes += graph_.storage(s).bytes;
    return bytes;
  }

  // Returns the peak of the stage's tensors in its forward, if those in `stay` live to its end.
  int64_t peak_with(size_t stage, const Storages& stay) const {
    const int32_t begin = begin_of(stage);
    std::vector<int64_t> change(size_t(ends_[stage] - begin) + 1, 0);
    for (const auto& [s, life] : own_) {
      change[size_t(life.born - begin)] += graph_.storage(s).bytes;
      if (!stay.contains(s) && life.last < ends_[stage])
        change[size_t(life.last - begin) + 1] -= graph_.storage(s).bytes;
    }
    int64_t live = 0, most = 0;
    for (const int64_t by : change) most = std::max(most, live += by);
    return most;
  }

  // Sets a stage's allocated, output and saved bytes, counted as whole storages.
  void describe(size_t stage) {
    const int32_t begin = begin_of(stage), end = ends_[stage];
    own_.clear();
    Storages outputs, saved;
    for (int32_t at = begin; at < end; ++at) {
      graph_.for_each_output(forward_[size_t(at)], [&](ValueId v) {
        const StorageId s = graph_.value(v).storage;
        if (!s.valid()) return;
        const ForwardLife& life = lives_[s.index];
        if (life.born != at || !is_relevant(life)) return;
        own_.emplace(s, life);
        if (life.last >= end) outputs.insert(s);
        if (life.saved) saved.insert(s);
      });
    }
    Storages all = saved;
    all.insert(outputs.begin(), outputs.end());
    ChainStage result{.name = name_of(stage)};
    CheckpointStage part{.first = forward_[size_t(begin)],
                         .last = forward_[size_t(end) - 1],
                         .keep = {{}},
                         .offload = {{}},
                         .exposed = {0}};
    result.backward = backward_costs_[stage];
    // The last nodes of a stage may only serve the next stage; recompute omits them.
    result.recompute = cost_of(stage, saved, {});
    result.forward = std::max(result.recompute, cost_of(stage, all, {}));
    result.output = bytes_of(outputs);
    result.forward_peak = peak_with(stage, outputs);
    result.keeping_peak = peak_with(stage, all);
    result.options = {{.saved = bytes_of(all)}};
    result.droppable = !fixed_[stage];
    if (result.droppable) find_options(stage, saved, outputs, result, part);
    chain_.stages.push_back(std::move(result));
    chain_.parts.push_back(std::move(part));
  }

  // Results of one node are grouped, since recomputing one of them yields the others.
  std::vector<Storages> groups_of(size_t stage, const Storages& saved, const Storages& outputs) const {
    std::vector<Storages> groups;
    for (int32_t at = begin_of(stage); at < ends_[stage]; ++at) {
      Storages group;
      graph_.for_each_output(forward_[size_t(at)], [&](ValueId v) {
        const StorageId s = graph_.value(v).storage;
        if (saved.contains(s) && !outputs.contains(s) && lives_[s.index].born == at) group.insert(s);
      });
      if (!group.empty()) groups.push_back(std::move(group));
    }
    return groups;
  }

  // Searches greedily from keeping all groups downwards, or from none upwards, one group per step; records all.
  void walk_greedily(bool down, size_t stage, const Storages& saved, const Storages& outputs,
                     std::span<const Storages> groups, std::vector<KeepOption>& candidates) const {
    // Every set along the search is a candidate, not only the last.
    const auto note = [&](const Storages& kept) {
      candidates.push_back({bytes_of(kept), cost_of(stage, saved, kept), kept});
      return candidates.back().cost;
    };
    const auto changed = [&](Storages kept, const Storages& group) {
      if (!down) kept.insert(group.begin(), group.end());
      for (const StorageId s : group) {
        if (down) kept.erase(s);
      }
      return kept;
    };
    Storages kept = outputs;
    for (const Storages& group : groups) {
      if (down) kept.insert(group.begin(), group.end());
    }
    int64_t cost = note(kept);
    std::vector<const Storages*> left;
    for (const Storages& group : groups) left.push_back(&group);
    while (!left.empty()) {
      size_t best = 0;
      double best_ratio = 0;
      for (size_t i = 0; i < left.size(); ++i) {
        const Storages next = changed(kept, *left[i]);
        const auto difference = static_cast<double>(std::abs(cost_of(stage, saved, next) - cost));
        const auto bytes = static_cast<double>(std::max<int64_t>(1, bytes_of(*left[i])));
        // Downwards, drop the group with the least cost per byte; upwards, keep the one with the most.
        const double ratio = down ? bytes / (difference + 1) : (difference + 1) / bytes;
        if (i == 0 || ratio > best_ratio) best = i, best_ratio = ratio;
      }
      kept = changed(kept, *left[best]);
      cost = note(kept);
      left.erase(left.begin() + static_cast<std::ptrdiff_t>(best));
    }
  }

  // Adds two variants of each option: one that offloads as much as computation hides, and one that offloads everything.
  // An offloaded tensor takes no memory here and no recompute, only exposed transfer time.
  void offload_to_cpu(size_t stage, int64_t backward, std::span<const Storages> groups,
                      std::vector<KeepOption>& candidates) const {
    int64_t running = 0;  // forward once, regardless of recompute
    for (int32_t at = begin_of(stage); at < ends_[stage]; ++at) running += costs_[size_t(at)];
    std::vector<const Storages*> may_leave;
    for (const Storages& group : groups) {
      if (std::all_of(group.begin(), group.end(),
                      [&](StorageId s) { return offload_points(graph_, effects_, s).last_forward.valid(); })) {
        may_leave.push_back(&group);
      }
    }
    // Large tensors first: fewer copies for the same bytes.
    std::stable_sort(may_leave.begin(), may_leave.end(),
                     [&](const Storages* a, const Storages* b) { return bytes_of(*a) > bytes_of(*b); });
    const size_t here = candidates.size();
    for (size_t i = 0; i < here; ++i) {
      for (const bool hidden : {true, false}) {
        KeepOption sent = candidates[i];
        int64_t bytes = 0;
        for (const Storages* group : may_leave) {
          if (!std::all_of(group->begin(), group->end(), [&](StorageId s) { return sent.kept.contains(s); })) continue;
          const int64_t more = bytes + bytes_of(*group);
          if (hidden && exposed_transfer(more, options_.link, running, backward) != 0) continue;
          bytes = more;
          sent.offloaded.insert(group->begin(), group->end());
        }
        if (bytes == 0) continue;
        sent.exposed = exposed_transfer(bytes, options_.link, running, backward);
        sent.bytes -= bytes;
        sent.cost += sent.exposed;
        candidates.push_back(std::move(sent));
      }
    }
  }

  // Returns the Pareto-optimal options in cost and bytes, the cheapest first. `all` is the size if everything is kept.
  std::vector<KeepOption> best_of(std::vector<KeepOption> candidates, int64_t all) const {
    std::stable_sort(candidates.begin(), candidates.end(), [](const KeepOption& a, const KeepOption& b) {
      return a.cost != b.cost ? a.cost < b.cost : a.bytes < b.bytes;
    });
    std::vector<KeepOption> front;
    for (KeepOption& option : candidates) {
      if ((option.cost > 0 || !option.offloaded.empty()) && option.bytes < (front.empty() ? all : front.back().bytes)) {
        front.push_back(std::move(option));
      }
    }
    // While there are too many, drop the option that is least below the line through its neighbors.
    while (static_cast<int64_t>(front.size()) > std::max<int64_t>(1, options_.max_options - 1)) {
      size_t least = 0;
      double min_loss = 0;
      for (size_t i = 0; i + 1 < front.size(); ++i) {  // the last option keeps nothing, and stays
        const double from_bytes = static_cast<double>(i == 0 ? all : front[i - 1].bytes);
        const double from_cost = static_cast<double>(i == 0 ? 0 : front[i - 1].cost);
        const double loss =
            (from_bytes - static_cast<double>(front[i].bytes)) * (static_cast<double>(front[i + 1].cost) - from_cost);
        if (i == 0 || loss < min_loss) least = i, min_loss = loss;
      }
      front.erase(front.begin() + static_cast<std::ptrdiff_t>(least));
    }
    return front;
  }

  // Finds options to keep part of what backward reads. Two greedy searches drop from all or add to none.
  void find_options(size_t stage, const Storages& saved, const Storages& outputs, ChainStage& result,
                    CheckpointStage& part) const {
    const std::vector<Storages> groups = groups_of(stage, saved, outputs);
    std::vector<KeepOption> candidates;
    for (const bool down : {true, false}) walk_greedily(down, stage, saved, outputs, groups, candidates);
    if (options_.link > 0) offload_to_cpu(stage, result.backward, groups, candidates);
    const auto listed = [](const Storages& storages) {
      std::vector<StorageId> list(storages.begin(), storages.end());
      std::sort(list.begin(), list.end());
      return list;
    };
    for (const KeepOption& option : best_of(std::move(candidates), result.options[0].saved)) {
      result.options.push_back({.saved = option.bytes, .cost = option.cost, .offloaded = bytes_of(option.offloaded)});
      part.keep.push_back(listed(option.kept));
      part.offload.push_back(listed(option.offloaded));
      part.exposed.push_back(option.exposed);
    }
  }

  // Measures the resident memory at the start of each stage's backward, and its peak, from the lifetimes in the graph.
  void measure() {
    const size_t count = chain_.stages.size();
    std::vector<int64_t> live(count, 0);
    int64_t others = 0;
    const auto bytes_with = [&](StorageId s) -> int64_t& {
      const ForwardLife& life = lives_[s.index];
      return is_relevant(life) ? live[size_t(stage_of_[size_t(life.born)])] : others;
    };
    std::unordered_map<NodeId, std::vector<StorageId>> allocated_at;
    for (uint32_t i = 0; i < graph_.storage_count(); ++i) {
      const Storage& storage = graph_.storage(StorageId(i));
      if (!storage.born.valid() || graph_.is_erased(storage.born) || graph_.is_placeholder(storage.born)) {
        others += storage.bytes;
      } else {
        allocated_at[storage.born].push_back(StorageId(i));
      }
      if (lives_[i].set_aside) chain_.elsewhere += storage.bytes;
    }
    chain_.elsewhere += others;
    int32_t stage = kNowhere;
    std::vector<bool> begun(count, false);
    for (const NodeId n : graph_.nodes()) {
      const bool backward = graph_.node(n).phase == Graph::kBackward;
      if (backward) {
        const NodeId of = graph_.node(n).forward;
        const int32_t place = of.valid() && !graph_.is_erased(of) ? std::as_const(place_)[of] : kNowhere;
        if (place != kNowhere && (stage == kNowhere || stage_of_[size_t(place)] < stage)) {
          stage = stage_of_[size_t(place)];
        }
        if (stage == kNowhere) stage = static_cast<int32_t>(count) - 1;
        if (!begun[size_t(stage)]) {
          // Resident memory without the chain's tensors kept by this and earlier stages.
          int64_t resident = others - chain_.elsewhere;
          for (size_t later = size_t(stage) + 1; later < count; ++later) resident += live[later];
          chain_.stages[size_t(stage)].resident = std::max<int64_t>(0, resident);
          begun[size_t(stage)] = true;
        }
      }
      if (const auto found = allocated_at.find(n); found != allocated_at.end()) {
        for (const StorageId s : found->second) bytes_with(s) += graph_.storage(s).bytes;
      }
      if (backward) {
        int64_t bytes = others - chain_.elsewhere;
        for (size_t own = size_t(stage); own < count; ++own) bytes += live[own];
        ChainStage& at = chain_.stages[size_t(stage)];
        at.backward_peak = std::max(at.backward_peak, bytes);
      }
      // Frees take effect after the node: the storage is still alive while the node runs.
      for (const StorageId s : graph_.frees(n)) bytes_with(s) -= graph_.storage(s).bytes;
    }
    // The peak of a stage without backward is at least the bytes it keeps.
    for (ChainStage& at : chain_.stages) at.backward_peak = std::max(at.backward_peak, at.options[0].saved);
  }

  const Graph& graph_;
  CheckpointChainOptions options_;
  const Effects effects_;
  std::vector<ForwardLife> lives_;  // by storage
  std::vector<NodeId> forward_;
  std::vector<int64_t> costs_;  // of the forward nodes
  int64_t total_cost_ = 0;
  IdMap<NodeId, int32_t> place_{kNowhere};
  bool has_backward_ = false;
  std::vector<int32_t> ends_;  // by stage, the first position after it
  std::vector<bool> fixed_;
  std::vector<std::string> names_;
  std::vector<int32_t> stage_of_;        // by position
  std::vector<int64_t> backward_costs_;  // by stage
  // Storages allocated by the current stage.
  std::unordered_map<StorageId, ForwardLife> own_;
  CheckpointChain chain_;
};

CheckpointChain CheckpointChain::of(const Graph& graph, std::span<const RegionId> regions,
                                    const CheckpointChainOptions& options) {
  if (is_forward_alone(graph) && has_gradients(graph)) {
    CheckpointChainOptions whole = options;
    whole.whole_stages = true;
    return of(assumed_step(graph), regions, whole);
  }
  return ChainBuilder(graph, options).run(regions);
}

namespace {

// By stage: whether it is recomputed. A dropped stage keeps its part within the recompute: nothing is offloaded.
std::vector<bool> dropped_by(const ChainSchedule& plan) {
  std::vector<bool> dropped(plan.option.size(), false);
  for (const ChainSegment& segment : plan.segments) {
    for (size_t i = segment.first; i <= segment.last; ++i) dropped[i] = true;
  }
  return dropped;
}

}  // namespace

// Converts a plan to segments of nodes. A dropped range is one; a stage that keeps a part is nested or separate.
std::vector<CheckpointSegment> CheckpointChain::segments(const ChainSchedule& plan) const {
  std::vector<CheckpointSegment> segments;
  for (const ChainSegment& dropped : plan.segments) {
    std::string name = stages[dropped.first].name;
    if (dropped.last != dropped.first) name += " .. " + stages[dropped.last].name;
    segments.push_back({.name = std::move(name),
                        .regions = {},
                        .first = parts[dropped.first].first,
                        .last = parts[dropped.last].last});
  }
  const std::vector<bool> dropped = dropped_by(plan);
  for (size_t i = 0; i < stages.size(); ++i) {
    const size_t option = plan.option[i];
    if (option == 0) continue;
    segments.push_back({.name = stages[i].name,
                        .regions = {},
                        .first = parts[i].first,
                        .last = parts[i].last,
                        .keep = parts[i].keep[option]});
    if (!dropped[i]) segments.back().offload = parts[i].offload[option];
  }
  return segments;
}

int64_t CheckpointChain::exposed(const ChainSchedule& plan) const {
  const std::vector<bool> dropped = dropped_by(plan);
  int64_t cost = 0;
  for (size_t i = 0; i < stages.size(); ++i) {
    if (!dropped[i]) cost += parts[i].exposed[plan.option[i]];
  }
  return cost;
}

}  // namespace shadowgraph
